"""What names and size labels say of a checkpoint: a quantization, a number of experts, a size."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

from kimi_inspect.counted import FOLDER, REPOSITORY, Counted
from kimi_inspect.labels import find_wrong_labels
from kimi_inspect.name_words import (
    ExpertWord,
    QuantWord,
    SizeWord,
    expert_words,
    is_model_size,
    quant_words,
    size_word,
)
from kimi_inspect.text import LONGEST, printable
from kimi_inspect.verdict import Claim

__all__ = ["EXPERTS", "QUANT", "SIZE", "Saying", "names_say", "size_label_says", "words_claim"]

SIZE_TOLERANCE = 0.1
"""How far a size in a name may be off: names are rounded, and leave out what each maker thinks is not the model."""

SIZE_WRONG = 1.5
"""Times that a size has to be off to make a finding: gemma-7b and MiniCPM-2B are a tenth and a fifth larger."""

REMOVED_TOLERANCE = 0.005
"""How far a share of experts that a name says was removed may be off: half a per cent of them, or one expert."""

QUANT, EXPERTS, SIZE = "quantization", "experts", "size"
"""Subjects of names: what their claims are about."""

_SIZE_LABEL = "general.size_label"


@frozen
class Saying:
    """What a name or a label says.

    Attributes:
        where: the name, or the file with the label.
        wrong: it makes a finding.
    """

    where: str
    claim: Claim
    wrong: bool


def names_say(build: Counted, reference_experts: int | None) -> Iterator[Saying]:
    """Yield what each name says; words that a name before it has said are left out."""
    seen: set[str] = set()
    for place, name in build.places:
        made = [
            *(_quant_claim(build, place, word) for word in quant_words(name)),
            *(_expert_claim(build, place, word, reference_experts) for word in expert_words(name)),
            *(_size_claim(build, place, word) for word in filter(None, [size_word(name)])),
        ]
        for claim in made:
            if str(claim.said).casefold() not in seen:
                seen.add(str(claim.said).casefold())
                yield Saying(name, claim, claim.agrees is False and _is_grave(build, place, name, claim))


def _is_grave(build: Counted, place: str, name: str, claim: Claim) -> bool:
    """Whether what a name says wrongly makes a finding."""
    if claim.subject == QUANT:
        return place != FOLDER and not build.is_gguf
    if claim.subject == SIZE:
        word = size_word(name)
        return place != FOLDER and word is not None and is_model_size(name) and _is_far_off(build, word)
    return True


def _quant_claim(build: Counted, place: str, word: QuantWord) -> Claim:
    agrees = _is_packed(build, word)
    if agrees is False and (not build.whole or (place == REPOSITORY and not build.sole)):
        agrees = None  # the rest, or another set, may be
    return words_claim(QUANT, place, word.text, ", ".join(build.encodings) or None, agrees)


def _is_packed(build: Counted, word: QuantWord) -> bool | None:
    """Whether a tensor is what a word says; None where that cannot be told."""
    if not build.encodings or (word.elsewhere if build.is_gguf else word.gguf):
        return None
    if word.gguf:
        return not any(find_wrong_labels(f"{word.text}.gguf", {}, set(build.encodings)))
    if any(_means(word, encoding) for encoding in build.encodings):
        return True
    return None if any(map(_is_unknown, build.encodings)) else False


def _means(word: QuantWord, encoding: str) -> bool:
    return encoding.startswith(word.encodings) if word.encodings else _bits(encoding) == word.bits


def _bits(encoding: str) -> int | None:
    """Return the bits of a value: the first number in the encoding's name."""
    number = re.search(r"\d+", encoding)
    return int(number[0]) if number and not _is_unknown(encoding) else None


def _is_unknown(encoding: str) -> bool:
    return encoding.startswith("unknown:")


def _expert_claim(build: Counted, place: str, word: ExpertWord, reference_experts: int | None) -> Claim:
    agrees = _is_pruned(build.experts, word, reference_experts) if build.experts and build.whole else None
    return words_claim(EXPERTS, place, word.text, build.experts, agrees)


def _is_pruned(experts: int, word: ExpertWord, reference_experts: int | None) -> bool | None:
    """Whether layers of so many experts are what a word says; a share needs a reference to be held against."""
    if word.kept is not None:
        of_another = word.of is not None and reference_experts not in (None, word.of)
        return None if word.kept == experts and of_another else word.kept == experts
    if word.removed is None or not reference_experts:
        return None
    off = abs(1 - experts / reference_experts - word.removed)
    return off <= max(REMOVED_TOLERANCE, 1 / reference_experts)


def _size_claim(build: Counted, place: str, word: SizeWord) -> Claim:
    counted, agrees = _size(build, word)
    if agrees is False and place == REPOSITORY and not build.sole:
        agrees = None  # another set may be as large
    return words_claim(SIZE, place, word.text, counted, agrees)


def size_label_says(build: Counted) -> Iterator[Saying]:
    """Yield what the size label of a GGUF file says."""
    label = build.checkpoint.metadata.get(_SIZE_LABEL) if build.is_gguf else None
    if not isinstance(label, str):
        return
    word = size_word(label)
    if word is not None and word.text != label:
        word = None
    counted, agrees = _size(build, word) if word else (None, None)
    where = build.shards[0].path if build.shards else build.checkpoint.set_name
    wrong = word is not None and agrees is False and _is_far_off(build, word)
    yield Saying(where, words_claim(SIZE, _SIZE_LABEL, label, counted, agrees), wrong)


def _size(build: Counted, word: SizeWord) -> tuple[str | None, bool | None]:
    """Return the size as llama.cpp's converter writes it, and whether a word fits it.

    It fits if it is within a tenth of the whole, of the whole without embeddings, head, vision and draft heads, or of
    anything between. With experts said, as in ``8x7B``, their number has to be right too.
    """
    from gguf.utility import model_weight_count_rounded_notation, size_label

    total, high = build.parameters, _largest(build, word)
    if total is None or high is None or not build.whole:
        return None, None
    fits = (
        word.parameters * (1 + SIZE_TOLERANCE) >= high - build.unnamed
        and word.parameters * (1 - SIZE_TOLERANCE) <= high
    )
    if word.experts is None or not build.experts:
        return model_weight_count_rounded_notation(total), fits
    counted = size_label(total, total - build.routed, build.routed // build.experts, build.experts)
    return counted, fits and word.experts == build.experts


def _largest(build: Counted, word: SizeWord) -> int | None:
    """Return the most that a word may mean: the whole, or all but the experts and one of these; None if not known."""
    if build.parameters is None or word.experts is None:
        return build.parameters
    return build.parameters - build.routed + build.routed // build.experts if build.experts else None


def _is_far_off(build: Counted, word: SizeWord) -> bool:
    """Whether a word is plainly wrong: many a name is a little off, which nobody is misled by."""
    high = _largest(build, word)
    if high is None or not (build.comparable and build.is_model):
        return False
    near = (high - build.unnamed) / SIZE_WRONG <= word.parameters <= high * SIZE_WRONG
    return not near or word.experts not in (None, build.experts)


def words_claim(
    subject: str, said_by: str, said: str, counted: str | int | None = None, agrees: bool | None = None
) -> Claim:
    """Make a claim of a stranger's words, printable, the end of very long ones cut off."""
    text = printable(said if len(said) <= LONGEST else said[:LONGEST] + "…")
    return Claim(subject=subject, said_by=said_by, said=text, counted=counted, agrees=agrees)
