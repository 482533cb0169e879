"""What the names of repositories, sets and files say of a build: bits and formats, experts that are kept, sizes.

Only words that have one meaning are read; of any other name nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

__all__ = ["ExpertWord", "QuantWord", "SizeWord", "expert_words", "is_model_size", "quant_words", "size_word"]


@frozen(kw_only=True)
class QuantWord:
    """A quantization that a name says.

    Attributes:
        text: as written.
        bits: of a value, where only these are said.
        encodings: what the encodings begin with that it means, where it means some by name.
        gguf: it is a type or recipe of llama.cpp's, which `labels` knows.
        elsewhere: GGUF has none such: of a GGUF set it says what the weights were before.
    """

    text: str
    bits: int | None = None
    encodings: tuple[str, ...] = ()
    gguf: bool = False
    elsewhere: bool = False


@frozen(kw_only=True)
class ExpertWord:
    """How many experts a name says were kept.

    Attributes:
        text: as written.
        kept: in each layer, or None.
        of: how many there were, or None.
        removed: share that was taken away, 0 to 1, or None.
    """

    text: str
    kept: int | None = None
    of: int | None = None
    removed: float | None = None


@frozen(kw_only=True)
class SizeWord:
    """The parameters that a name says.

    Attributes:
        text: as written.
        parameters: of the whole; or, where `experts` are said, of all but the experts and one of these.
        experts: in each layer, as in ``8x7B``; None where they are not said.
    """

    text: str
    parameters: float
    experts: int | None = None


_BEFORE, _AFTER = r"(?<![A-Za-z0-9])(?<!\d\.)(?<!kv[-_])", r"(?![A-Za-z0-9])(?![-_]?kv)"
"""A word stands alone; beside `kv` it speaks of the cache, and behind a digit and a point it ends a fraction."""

_FORMATS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"mxfp4(?:_moe)?", ("mxfp4",)),
    (r"nvfp4", ("nvfp4",)),
    (r"bf16", ("bf16",)),
    (r"fp?16", ("f16",)),
    (r"fp?32", ("f32",)),
)
"""Formats by name, and what the encodings begin with that they mean."""

_PACKED = ("int", "affine", "nvfp4", "mxfp4", "f8_", "fp8_")
_ELSEWHERE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"mxfp8", ("mxfp8",)),
    (r"nf4", ("nf4",)),
    (r"fp8", ("f8_", "fp8_", "mxfp8")),
    (r"awq|gptq", _PACKED),
)
"""The same of formats that GGUF has not; the last are methods, which leave open what is packed into."""

_BITS = (r"([2-8])[-_ ]?bits?", r"int([2-8])", r"q([2-8])(?!_)", r"w([2-8])a(?:4|8|16)")
"""Words that say how many bits a value has."""

_GGUF = r"(?:(?:ud|klx|i1)-)?(?:i?q[1-8]_[0-9a-z_]+|tq[12]_0)"


def _word(pattern: str) -> re.Pattern[str]:
    return re.compile(f"{_BEFORE}(?:{pattern}){_AFTER}", re.IGNORECASE)


_NAMED = [(_word(pattern), encodings, False) for pattern, encodings in _FORMATS] + [
    (_word(pattern), encodings, True) for pattern, encodings in _ELSEWHERE
]
_NUMBERED = [_word(pattern) for pattern in _BITS]
_BY_GGUF = _word(_GGUF)

_TURNED = re.compile(r"(?<![A-Za-z])(?:to|from|de-?quanti[sz]ed|un-?quanti[sz]ed)(?![A-Za-z])", re.IGNORECASE)
"""Such a name speaks of what the build was made from as well."""

_PRUNED = re.compile(rf"{_BEFORE}reap[-_]?(\d{{1,6}}(?:\.\d{{1,4}})?)(?:%|pct|p)?(?![A-Za-z0-9.%])", re.IGNORECASE)
_KEPT = re.compile(rf"{_BEFORE}(\d{{1,6}})of(\d{{1,6}})(?![A-Za-z0-9])", re.IGNORECASE)

_SIZE = re.compile(rf"{_BEFORE}(?:(\d{{1,4}})x)?(\d{{1,5}}(?:\.\d{{1,3}})?)([mbt])(?![A-Za-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(rf"{_BEFORE}\d{{1,4}}e(?![A-Za-z0-9])", re.IGNORECASE)
"""``17B-16E``: the size beside experts counted so is that of one token's way."""

_BESIDE = re.compile(
    r"(?<![a-z])(?:"
    r"reap|prun(?:ed|ing)|sliced|layers?|tiny|random|dummy|debug|"  # fewer or smaller than what the size is of
    r"eagle|medusa|hydra|dflash|mtp|drafts?|drafter|assistant|speculators?|lora|qlora|adapters?|"  # for such a model
    r"mmproj|projector|vision|vit|clip|encoder|vae|tokens?|steps?"
    r")(?![a-z])",
    re.IGNORECASE,
)
"""In a name with such a word a size may be that of another model, which this one was made of or for, or of its data."""

_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_SMALLEST = 30e6
"""Fewer are as likely tokens of context: ``1M``."""


def quant_words(name: str) -> Iterator[QuantWord]:
    """Yield the quantizations that a name says, those by name first; none of a name that says what it was made from.

    >>> [(word.text, word.bits, word.encodings) for word in quant_words("Kimi-K3.1-Pro-REAP80-MLX-q4")]
    [('q4', 4, ())]
    """
    if _TURNED.search(name):
        return
    for pattern, encodings, elsewhere in _NAMED:
        for found in pattern.finditer(name):
            yield QuantWord(text=found[0], encodings=encodings, elsewhere=elsewhere)
    for pattern in _NUMBERED:
        yield from (QuantWord(text=found[0], bits=int(found[1])) for found in pattern.finditer(name))
    yield from (QuantWord(text=found[0], gguf=True) for found in _BY_GGUF.finditer(name))


def expert_words(name: str) -> Iterator[ExpertWord]:
    """Yield the prunings that a name says: a share below 100 per cent that was removed, or experts that were kept.

    >>> [(word.removed, word.kept, word.of) for word in expert_words("REAP80 REAP-179 224of896")]
    [(0.8, None, None), (None, 179, None), (None, 224, 896)]
    """
    for found in _PRUNED.finditer(name):
        number = float(found[1])
        if 0 < number < 100:
            yield ExpertWord(text=found[0], removed=number if number < 1 else number / 100)
        elif number.is_integer() and number >= 100:
            yield ExpertWord(text=found[0], kept=int(number))
    for found in _KEPT.finditer(name):
        if 0 < int(found[1]) <= int(found[2]):
            yield ExpertWord(text=found[0], kept=int(found[1]), of=int(found[2]))


def size_word(name: str) -> SizeWord | None:
    """Return the first size that a name says; None where it says none, or one that may be something else.

    >>> size_word("Kimi-Linear-48B-A3B-Instruct"), size_word("Mixtral-8x7B-v0.1").experts
    (SizeWord(text='48B', parameters=48000000000.0, experts=None), 8)
    """
    found = _SIZE.search(name)
    if found is None or _ACTIVE.search(name):
        return None
    parameters = float(found[2]) * _UNITS[found[3].lower()]
    if parameters < _SMALLEST:
        return None
    return SizeWord(text=found[0], parameters=parameters, experts=int(found[1]) if found[1] else None)


def is_model_size(name: str) -> bool:
    """Whether the size that a name says is plainly that of the model: the only one, and no word gives it another sense.

    >>> [is_model_size(name) for name in ("Kimi-Linear-48B-A3B", "OLMoE-1B-7B", "EAGLE3-Llama-8B", "Kimi-K3.1-Pro")]
    [True, False, False, False]
    """
    sizes = [found for found in _SIZE.finditer(name) if float(found[2]) * _UNITS[found[3].lower()] >= _SMALLEST]
    return len(sizes) == 1 and not _BESIDE.search(name) and not _ACTIVE.search(name)
