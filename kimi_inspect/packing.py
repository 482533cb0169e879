"""How weights are packed, read from the tensors that stand together and held against the config.

A packed weight is several values to an element of a container type, with scales in a tensor of its own beside it. The
MXFP4 of the OCP Microscaling specification (v1.0): two FP4 codes a byte, one E8M0 scale a group of 32 values.
compressed-tensors stores it as `weight_packed` U8 [rows, columns / 2] and `weight_scale` U8 [rows, columns / 32].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.dtypes import SAFETENSORS_BITS
from kimi_inspect.findings import finding
from kimi_inspect.header import Kind
from kimi_inspect.patterns import Patterns
from kimi_inspect.table import Look
from kimi_inspect.values import Finding, Role

__all__ = ["Packing", "block_packing", "declared_packing", "find_packing"]

ROLES: dict[str, Role] = {
    "weight_scale": Role.SCALE,
    "weight_scale_inv": Role.SCALE,
    "weight_scale_2": Role.SCALE,
    "weight_global_scale": Role.SCALE,
    "input_scale": Role.SCALE,
    "input_global_scale": Role.SCALE,
    "weight_zero_point": Role.ZERO_POINT,
    "weight_g_idx": Role.BOOKKEEPING,
    "weight_shape": Role.BOOKKEEPING,
}
"""Last part of a name, and what it makes a tensor; anything else is a weight."""

BLOCK_ROLES: dict[str, Role] = {"scale": Role.SCALE, "input_scale": Role.SCALE}
"""The same in GGUF, where a weight stands beside: NVFP4 has a scale for the whole tensor."""

PACKED = "weight_packed"
SCALE = "weight_scale"

MXFP4_GROUP = 32
"""Values that share one scale."""

_FORMATS = {"mxfp4-pack-quantized": "mxfp4", "nvfp4-pack-quantized": "nvfp4"}
"""compressed-tensors' names of formats, and our encodings."""


@frozen(eq=False)
class Packing:
    """What each of n tensors means: `looks`, int32 [n] `look` into them, and what is wrong with it."""

    looks: list[Look]
    look: NDArray[np.int32]
    findings: list[Finding]


def declared_packing(config: Mapping[str, Any] | None) -> str | None:
    """Return the encoding that a config promises for its packed weights, or None if it promises none that we know.

    `quantization_config` may stand at the top or inside `text_config`, the format beside its groups or in them.
    """
    for level in (config or {}, (config or {}).get("text_config")):
        quantization = level.get("quantization_config") if isinstance(level, Mapping) else None
        if isinstance(quantization, Mapping):
            groups = quantization.get("config_groups")
            members = list(groups.values()) if isinstance(groups, Mapping) else []
            formats = [item.get("format") for item in [quantization, *members] if isinstance(item, Mapping)]
            known = {_FORMATS[name] for name in formats if isinstance(name, str) and name in _FORMATS}
            return known.pop() if len(known) == 1 else None
    return None


def find_packing(
    patterns: Patterns,
    kinds: Sequence[Kind],
    kind: NDArray[np.int32],
    *,
    config: Mapping[str, Any] | None,
    name_of: Callable[[int], str],
) -> Packing:
    """Say for each tensor what its bytes mean.

    Args:
        patterns: the patterns of the names.
        kinds: the distinct looks in the file.
        kind: int32 [n], into `kinds`.
        config: the parsed config.json, or None.
        name_of: gives the name of a row, for findings.
    """
    return _Packer(patterns, kinds, kind, declared_packing(config), name_of).packing()


def block_packing(patterns: Patterns, kinds: Sequence[Kind], kind: NDArray[np.int32]) -> Packing:
    """Say for each GGUF tensor what its bytes mean: its type tells, scales stand inside the blocks.

    Dimensions are those of the values, so their number is known even where the type is not.
    """
    texts = set(patterns.texts)
    roles = np.array([_ROLE_CODES[_block_role(text, texts)] for text in patterns.texts] or [0])
    combined = kind.astype(np.int64) * len(Role) + roles[patterns.code]
    present, look = np.unique(combined, return_inverse=True)
    looks = [_block_look(kinds[code // len(Role)], _ROLES[code % len(Role)]) for code in present.tolist()]
    return Packing(looks, look.astype(np.int32), [])


def _block_role(text: str, texts: Collection[str]) -> Role:
    stem, _, leaf = text.rpartition(".")
    return BLOCK_ROLES.get(leaf, Role.WEIGHT) if f"{stem}.weight" in texts else Role.WEIGHT


def _block_look(kind: Kind, role: Role) -> Look:
    return Look(
        encoding=kind.dtype.lower() if kind.nbytes is not None else f"unknown:{kind.dtype}",
        role=role,
        shape=kind.shape[::-1],
        parameters=prod(kind.shape) if role is Role.WEIGHT else 0,
    )


class _Packer:
    def __init__(
        self,
        patterns: Patterns,
        kinds: Sequence[Kind],
        kind: NDArray[np.int32],
        declared: str | None,
        name_of: Callable[[int], str],
    ) -> None:
        self._patterns = patterns
        self._kinds = kinds
        self._kind = kind
        self._declared = declared
        self._name_of = name_of
        self._looks: dict[Look, int] = {}
        self._look = np.zeros(len(kind), np.int32)
        self._orphans: list[int] = []
        self._misshapen: list[tuple[int, int]] = []
        self._found: dict[str, int] = {}

    def packing(self) -> Packing:
        self._plain()
        rows_of = self._rows()
        codes = {mask: code for code, mask in enumerate(self._patterns.masks)}
        for mask, code in codes.items():
            stem, _, leaf = mask.rpartition(b".")
            if leaf == PACKED.encode():
                scale = codes.get(stem + b"." + SCALE.encode())
                self._pack(rows_of(code), rows_of(scale) if scale is not None else np.zeros(0, np.int64))
        return Packing(list(self._looks), self._look, list(self._findings()))

    def _plain(self) -> None:
        """Give each tensor the look that its type and the last part of its name make."""
        roles = np.array([_ROLE_CODES[_leaf_role(text, _ROLE_OF)] for text in self._patterns.texts] or [0])
        combined = self._kind.astype(np.int64) * len(Role) + roles[self._patterns.code]
        present = np.flatnonzero(np.bincount(combined, minlength=1))
        table = np.zeros(int(combined.max(initial=0)) + 1, np.int32)
        for code in present.tolist():
            table[code] = self._code(_plain_look(self._kinds[code // len(Role)], _ROLES[code % len(Role)]))
        self._look = table[combined]

    def _rows(self) -> Callable[[int], NDArray[np.int64]]:
        """Sort the rows by pattern once; return what gives those of one pattern, in file order."""
        code = self._patterns.code
        order = np.argsort(code.astype(np.min_scalar_type(len(self._patterns.masks))), kind="stable")
        bounds = np.searchsorted(code[order], np.arange(len(self._patterns.masks) + 1))
        return lambda pattern: order[bounds[pattern] : bounds[pattern + 1]]

    def _code(self, look: Look) -> int:
        return self._looks.setdefault(look, len(self._looks))

    def _pack(self, weights: NDArray[np.int64], scales: NDArray[np.int64]) -> None:
        """Pair packed weights with their scales and give both the look that the pair makes."""
        partner = _match(self._patterns.key[weights], self._patterns.key[scales])
        self._orphans += weights[partner < 0].tolist()
        for kind in np.unique(self._kind[weights[partner < 0]]).tolist():
            rows = weights[(partner < 0) & (self._kind[weights] == kind)]
            self._look[rows] = self._code(_packed_look(self._kinds[kind], self._declared))
        paired, scales = weights[partner >= 0], scales[partner[partner >= 0]]
        pair = self._kind[paired].astype(np.int64) * len(self._kinds) + self._kind[scales]
        for both in np.unique(pair).tolist():
            weight, scale = self._kinds[both // len(self._kinds)], self._kinds[both % len(self._kinds)]
            self._settle(weight, scale, paired[pair == both], scales[pair == both])

    def _settle(self, weight: Kind, scale: Kind, weights: NDArray[np.int64], scales: NDArray[np.int64]) -> None:
        encoding = _encoding_of(weight, scale)
        if encoding is not None:
            self._found[encoding] = self._found.get(encoding, 0) + len(weights)
        elif self._declared == "mxfp4" and _is_mxfp4(weight, scale):
            encoding = self._declared
            self._misshapen += zip(weights.tolist(), scales.tolist(), strict=True)
        look = _packed_look(weight, encoding)
        self._look[weights] = self._code(look)
        self._look[scales] = self._code(
            Look(encoding=look.encoding, role=Role.SCALE, shape=scale.shape, parameters=0, group_size=look.group_size)
        )

    def _findings(self) -> Iterator[Finding]:
        if self._orphans:
            names = [self._name_of(row) for row in self._orphans[:10]]
            message = "a packed weight has no scale beside it; loaders fail, or put ones in its place"
            missing = [name.removesuffix(PACKED) + SCALE for name in names]
            yield finding(
                "scale-missing", missing[0], message, tensor=missing[0], count=len(self._orphans), examples=missing
            )
        if self._misshapen:
            weight, scale = self._misshapen[0]
            shape, name = self._kinds[self._kind[weight]].shape, self._name_of(scale)
            yield finding(
                "scale-shape",
                name,
                f"a scale does not fit its weight of shape {list(shape)}: each group of {MXFP4_GROUP} values has one",
                expected=[*shape[:-1], -(-2 * shape[-1] // MXFP4_GROUP)],
                actual=list(self._kinds[self._kind[scale]].shape),
                tensor=name,
                count=len(self._misshapen),
                examples=[self._name_of(row) for _, row in self._misshapen[:10]],
            )
        for encoding, count in self._found.items():
            if self._declared not in (None, encoding):
                message = f"{count:,} weights are packed as {encoding}, but the config declares {self._declared}"
                yield finding("packing-disagrees", "config.json", message, expected=self._declared, actual=encoding)


def _leaf_role(text: str, roles: Mapping[str, Role]) -> Role:
    return roles.get(text.rpartition(".")[2], Role.WEIGHT)


_ROLE_OF = {re.sub("[0-9]+", "0", leaf): role for leaf, role in ROLES.items()}
_ROLES = tuple(Role)
_ROLE_CODES = {role: code for code, role in enumerate(_ROLES)}


def _match(wanted: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each value wanted where it stands in `keys`, -1 if nowhere."""
    if np.array_equal(wanted, keys):
        return np.arange(len(keys))
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys, wanted, sorter=order)
    found = place < len(keys)
    found[found] = keys[order[place[found]]] == wanted[found]
    return np.where(found, order[np.where(found, place, 0)] if len(keys) else -1, -1)


def _plain_look(kind: Kind, role: Role) -> Look:
    known = kind.dtype in SAFETENSORS_BITS
    return Look(
        encoding=kind.dtype.lower() if known else f"unknown:{kind.dtype}",
        role=role,
        shape=kind.shape if known else None,
        parameters=0 if role is not Role.WEIGHT else prod(kind.shape) if known else None,
    )


def _packed_look(weight: Kind, encoding: str | None) -> Look:
    """Return the look of a packed weight; its shape is unknown where the encoding is none that we unpack."""
    if encoding != "mxfp4" or weight.dtype != "U8" or not weight.shape:
        return Look(encoding=f"unknown:{weight.dtype.lower()}", role=Role.WEIGHT, shape=None, parameters=None)
    shape = (*weight.shape[:-1], 2 * weight.shape[-1])
    return Look(encoding=encoding, role=Role.WEIGHT, shape=shape, parameters=prod(shape), group_size=MXFP4_GROUP)


def _is_mxfp4(weight: Kind, scale: Kind) -> bool:
    return weight.dtype == "U8" and scale.dtype in ("U8", "F8_E8M0") and bool(weight.shape)


def _encoding_of(weight: Kind, scale: Kind) -> str | None:
    """Return the encoding that a packed weight and its scale determine together, or None."""
    if not _is_mxfp4(weight, scale):
        return None
    values = 2 * weight.shape[-1]
    fits = values % MXFP4_GROUP == 0 and scale.shape == (*weight.shape[:-1], values // MXFP4_GROUP)
    return "mxfp4" if fits else None
