"""How a config.json says that weights are stored: one witness beside the tensors themselves.

The forms are those of compressed-tensors, GPTQ, AWQ, bitsandbytes, block FP8, MXFP4 as in gpt-oss, NVIDIA ModelOpt and
MLX. They may stand at the top of the config or inside `text_config`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

__all__ = ["Declaration", "Spec", "declaration_of", "ignored_modules"]

KEYS = ("quantization", "quantization_config", "compression_config")
"""Where the forms stand; MLX writes the first and repeats it as the second."""

MAX_PATTERN = 4096
"""A longer pattern is not read."""

MAX_GLOBS = 64
"""Alternatives of one pattern that are followed."""

_ANYTHING = "\0"
_PATTERN = re.compile(r"(\.[*+]|\\d[*+]|\[0-9\][*+])|\((?:\?:)?([\w.\\|-]+)\)|(\\?[\w.$/-])|(.)", re.DOTALL)

_COMPRESSED = {"mxfp4-pack-quantized": "mxfp4", "nvfp4-pack-quantized": "nvfp4", "mxfp8-quantized": "mxfp8"}
_MODELOPT = {"NVFP4": "nvfp4", "MXFP4": "mxfp4", "MXFP8": "mxfp8"}


@frozen(kw_only=True)
class Spec:
    """How some weights are stored, as far as it is said.

    Attributes:
        encoding: as in `TensorInfo`, or None.
        bits: of a value.
        group_size: values that share one scale; None if they do not say, or share by whole rows.
        block: rows and columns that share one scale.
        leaf: what the weights are called in that form, where integers are packed in several.
        scale: what their scales are called, where that form has a name of its own for them.
        method: who packed them, where two methods share names and widths.
    """

    encoding: str | None
    bits: int | None = None
    group_size: int | None = None
    block: tuple[int, int] | None = None
    leaf: str = field(default="weight_packed", eq=False)
    scale: str | None = field(default=None, eq=False)
    method: str | None = field(default=None, eq=False)


MXFP4 = Spec(encoding="mxfp4", bits=4, group_size=32)


@frozen
class _Group:
    """Modules whose name fits, and their form."""

    fits: Callable[[str], bool]
    spec: Spec


@frozen
class Declaration:
    """What a config says: a form for all, for groups of modules, or for single ones.

    Attributes:
        packed: it says that something is packed, understood or not.
        foreign: by a method that no rule knows.
        default: the form of what nothing else is said of, or None.
        groups: the first that fits decides.
        modules: forms of single modules by name; None for one that is not packed.
    """

    packed: bool = False
    foreign: bool = False
    default: Spec | None = None
    groups: tuple[_Group, ...] = ()
    modules: Mapping[str, Spec | None] = field(factory=dict, hash=False)

    @property
    def uniform(self) -> bool:
        """Whether one form stands for all."""
        return not self.modules and len({group.spec for group in self.groups} | {self.default}) == 1

    @property
    def encodings(self) -> set[str]:
        """All encodings that are declared."""
        specs = [self.default, *(group.spec for group in self.groups), *self.modules.values()]
        return {spec.encoding for spec in specs if spec and spec.encoding}

    @property
    def sole(self) -> str | None:
        """The encoding of all that is packed, if there is but one."""
        return next(iter(self.encodings)) if len(self.encodings) == 1 else None

    def of(self, module: str) -> Spec | None:
        """Return the form of a module, named as its tensors are, without their last part."""
        if module in self.modules:
            return self.modules[module]
        return next((group.spec for group in self.groups if group.fits(module)), self.default)


def declaration_of(config: Mapping[str, Any] | None) -> Declaration:
    """Read what a config says of packing; nothing of what is not understood."""
    for level in _levels(config):
        for key in KEYS:
            said = level.get(key)
            if isinstance(said, Mapping):
                return evolve(_declaration(said, level), packed=True)
    return Declaration()


def ignored_modules(config: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return what tells whether compressed-tensors leaves a module as it is."""
    for level in _levels(config):
        said = level.get("quantization_config")
        names = said.get("ignore") if isinstance(said, Mapping) else None
        if isinstance(names, list):
            return _target([name for name in names if isinstance(name, str)])
    return lambda _: False


def _levels(config: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    text = (config or {}).get("text_config")
    yield from (level for level in (config, text) if isinstance(level, Mapping))


def _declaration(said: Mapping[str, Any], level: Mapping[str, Any]) -> Declaration:
    method = said.get("quant_method")
    if method is None:
        method = "compressed-tensors" if "config_groups" in said or "format" in said else "mlx"
    read = _METHODS.get(method) if isinstance(method, str) else None
    return read(said, level) if read else Declaration(foreign=True)


def _number(said: Mapping[str, Any], key: str) -> int | None:
    value = said.get(key)
    return value if type(value) is int and value > 0 else None


def _compressed(said: Mapping[str, Any], _: Mapping[str, Any]) -> Declaration:
    """Read compressed-tensors' groups: each has a form, and targets that are names, patterns or classes of modules."""
    groups = []
    said_groups = said.get("config_groups")
    for item in said_groups.values() if isinstance(said_groups, Mapping) else [{}]:
        if isinstance(item, Mapping):
            form, weights, targets = item.get("format") or said.get("format"), item.get("weights"), item.get("targets")
            names = [name for name in targets if isinstance(name, str)] if isinstance(targets, list) else ["Linear"]
            spec = _compressed_spec(str(form), weights if isinstance(weights, Mapping) else {})
            groups.append(_Group(_target(names), spec))
    # Which modules are of a class such as Linear, a config does not say: such a group stands for all the rest.
    groups.sort(key=lambda group: group.fits(""))
    if len(groups) == 1:
        return Declaration(default=groups[0].spec)
    return Declaration(groups=tuple(groups))


def _target(names: list[str]) -> Callable[[str], bool]:
    """Return what tells whether a module is one of these: names, `re:` and a pattern, or classes, which fit all."""
    if any("." not in name and name[:1].isupper() for name in names):
        return lambda _: True
    globs = [glob for name in names if name.startswith("re:") for glob in _globs(name)]
    exact = frozenset(names)
    return lambda module: module in exact or any(_fits(module, glob) for glob in globs)


def _globs(target: str) -> list[list[str]]:
    r"""Turn a target into globs: the texts that have to stand in a name one after another, the first at its start.

    Of regular expressions only what configs use is understood, which is compared in linear time, whoever wrote the
    config: `.*`, `.+` and `\d+` for anything, `(a|b)` for either, `\.`, `^` and `$`. Any other fits nothing.
    """
    if len(target) > MAX_PATTERN:
        return []
    texts = [""]
    for token in _PATTERN.finditer(target[3:].removeprefix("^")):
        anything, either, literal, _ = token.groups()
        if anything:
            texts = [text + _ANYTHING for text in texts]
        elif either:
            texts = [text + part.replace("\\", "") for text in texts for part in either.split("|")][:MAX_GLOBS]
        elif literal:
            texts = [text + literal[-1] for text in texts]
        else:
            return []
    return [(text[:-1] + "\n" if text.endswith("$") else text + _ANYTHING).split(_ANYTHING) for text in texts]


def _fits(module: str, glob: list[str]) -> bool:
    """Compare a name with texts that anything may stand between."""
    name = module + "\n"
    first, *rest = glob
    if not name.startswith(first):
        return False
    at = len(first)
    for text in rest:
        found = name.find(text, at)
        if found < 0:
            return False
        at = found + len(text)
    return True


def _compressed_spec(form: str, weights: Mapping[str, Any]) -> Spec:
    bits, group = _number(weights, "num_bits"), _number(weights, "group_size")
    if form in _COMPRESSED:
        encoding = _COMPRESSED[form]
        return Spec(
            encoding=encoding, bits=8 if encoding == "mxfp8" else 4, group_size=16 if encoding == "nvfp4" else 32
        )
    if weights.get("type", "int") == "int":
        return Spec(encoding=f"int{bits}" if bits else None, bits=bits, group_size=group)
    block = _block(weights.get("block_structure"))
    return Spec(encoding="fp8_block" if block else None, bits=bits, group_size=group, block=block)


def _block(said: object) -> tuple[int, int] | None:
    """Read the sides of a block: a list of two, or ``128x128``."""
    sides = said.split("x") if isinstance(said, str) else said
    if (
        not isinstance(sides, list)
        or len(sides) != 2
        or not all(re.fullmatch("[1-9][0-9]{0,6}", str(n)) for n in sides)
    ):
        return None
    return int(sides[0]), int(sides[1])


def _integers(said: Mapping[str, Any], _: Mapping[str, Any]) -> Declaration:
    """Read GPTQ's and AWQ's forms."""
    bits = _number(said, "bits")
    if not bits:
        return Declaration()
    group, method = _number(said, "group_size"), said.get("quant_method")
    return Declaration(default=Spec(encoding=f"int{bits}", bits=bits, group_size=group, leaf="qweight", method=method))


def _bitsandbytes(said: Mapping[str, Any], _: Mapping[str, Any]) -> Declaration:
    if said.get("load_in_8bit") is True:
        return Declaration(default=Spec(encoding="bnb_int8", bits=8))
    kind = said.get("bnb_4bit_quant_type")
    encoding = {"nf4": "nf4", "fp4": "bnb_fp4"}.get(str(kind)) if said.get("load_in_4bit") is True else None
    return Declaration(default=Spec(encoding=encoding, bits=4) if encoding else None)


def _fp8(said: Mapping[str, Any], level: Mapping[str, Any]) -> Declaration:
    """Read block FP8; DeepSeek V4 says beside it that its experts are FP4."""
    block = _block(said.get("weight_block_size"))
    spec = Spec(encoding="fp8_block", bits=8, block=block, scale="weight_scale_inv") if block else None
    experts = _Group(lambda module: ".experts." in module and "shared" not in module, MXFP4)
    return Declaration(default=spec, groups=(experts,) if level.get("expert_dtype") == "fp4" else ())


def _mxfp4(_said: Mapping[str, Any], _: Mapping[str, Any]) -> Declaration:
    return Declaration(default=MXFP4)


def _modelopt(said: Mapping[str, Any], _: Mapping[str, Any]) -> Declaration:
    encoding = _MODELOPT.get(str(said.get("quant_algo")))
    return Declaration(default=Spec(encoding=encoding) if encoding else None)


def _mlx(said: Mapping[str, Any], _: Mapping[str, Any]) -> Declaration:
    """Read MLX's form for all modules, and its forms for single ones under their names."""
    modules = {
        name: _mlx_spec(value) if isinstance(value, Mapping) else None
        for name, value in said.items()
        if (isinstance(value, Mapping) and name != "mode") or value is False
    }
    return Declaration(default=_mlx_spec(said) if _number(said, "bits") else None, modules=modules)


def _mlx_spec(said: Mapping[str, Any]) -> Spec:
    bits, group, mode = _number(said, "bits"), _number(said, "group_size"), said.get("mode", "affine")
    known = {"affine": f"affine{bits}", "mxfp4": "mxfp4", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
    encoding = known.get(mode) if isinstance(mode, str) else None
    return Spec(encoding=encoding, bits=bits, group_size=group, leaf="weight")


_METHODS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Declaration]] = {
    "compressed-tensors": _compressed,
    "gptq": _integers,
    "awq": _integers,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "mlx": _mlx,
}
"""By `quant_method`, what reads the form: given itself, and the level of the config where it stands."""
