"""What is said of a checkpoint beside what is counted: by the Hub, the index, metadata, names, licences, publishers.

Nothing is guessed: where headers cannot tell, `agrees` is None, and so it is for totals of a set of which only a part
was opened. Totals are those of the set's own files; side files that were counted too are left out of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import PurePath

import numpy as np
from attrs import frozen

from kimi_inspect.components import Component, Group
from kimi_inspect.findings import finding
from kimi_inspect.hub_card import HubCard
from kimi_inspect.labels import FILE_TYPES, GUESSED, find_wrong_labels
from kimi_inspect.name_words import ExpertWord, QuantWord, SizeWord, expert_words, quant_words, size_word
from kimi_inspect.opening import Checkpoint
from kimi_inspect.published import CHECKED, published_of, repository_of
from kimi_inspect.report import Report
from kimi_inspect.sidecars import ShardName
from kimi_inspect.sources import ListedFile
from kimi_inspect.sums import exact_sum, exact_sums, present
from kimi_inspect.table import COMPONENTS, TensorTable
from kimi_inspect.text import LONGEST, printable
from kimi_inspect.values import Finding, Role, Shard
from kimi_inspect.verdict import Claim

__all__ = ["all_opened", "claims_of", "label_findings"]

SIZE_TOLERANCE = 0.1
"""How far a size in a name may be off: names are rounded, and leave out what each maker thinks is not the model."""

REMOVED_TOLERANCE = 0.005
"""How far a share of experts that a name says was removed may be off: half a per cent of them, or one expert."""

_QUANT, _EXPERTS = "quantization", "experts"
_COMPLAINTS = {_QUANT: "no tensor is packed so", _EXPERTS: "its layers hold another number of experts"}
"""Subjects of names that make a finding where they are wrong: whoever chooses by the name gets something else."""

_UNNAMED = frozenset({Component.EMBEDDINGS, Component.LM_HEAD}) | {
    component for component in Component if component.group in (Group.MULTIMODAL, Group.DRAFT)
}
"""What names of sizes may leave out."""

_MODELSCOPE = "ms://"
"""What the sources of ModelScope's repositories begin with."""

_LICENCE_FILE = re.compile(r"(?:LICEN[CS]E|COPYING)(?:[-._ ][^/]*)?", re.IGNORECASE)
_LICENCE_KEYS = ("general.license", "general.license.name", "general.license.link")


@frozen(kw_only=True)
class _Build:
    """The set's own files, counted.

    Attributes:
        whole: all of the set was opened and read.
        parameters: None if those of some tensors are not known.
        unnamed: of these, those of components that names of sizes may leave out.
        routed: of these, those of routed experts.
        experts: in each layer; None where there are none, or not the same number everywhere.
        encodings: of weights, most bytes first.
        places: where names stand, and the names.
        sole: nothing else can be opened there, so that the repository's name speaks of this set.
    """

    checkpoint: Checkpoint
    shards: tuple[Shard, ...]
    whole: bool
    parameters: int | None
    unnamed: int
    routed: int
    experts: int | None
    encodings: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    sole: bool

    @property
    def is_gguf(self) -> bool:
        return self.checkpoint.format == "gguf"

    @property
    def tensor_bytes(self) -> int:
        return sum(shard.tensor_bytes for shard in self.shards)

    def equal(self, said: int, counted: int | None) -> bool | None:
        """Compare a total; None where it is not known, or not that of the whole set."""
        return said == counted if self.whole and counted is not None else None


def claims_of(
    checkpoint: Checkpoint,
    report: Report,
    *,
    card: HubCard | None,
    listing: Sequence[ListedFile] = (),
    index_total: int | None = None,
    reference_experts: int | None = None,
) -> tuple[Claim, ...]:
    """Collect what is said of a checkpoint, and hold it against what is counted; nothing is read.

    Args:
        checkpoint: the checkpoint.
        report: what it holds, by `summarize`.
        card: what the Hub says of the repository, or None.
        listing: all files of the folder or repository, for a licence among them.
        index_total: `metadata.total_size` of the index, in bytes, or None.
        reference_experts: experts in each layer of the model that this one was made from, or None.
    """
    build = _build(checkpoint, report)
    return tuple(
        chain(
            _hub_claims(build, card) if card else (),
            [] if index_total is None else [_index_claim(build, index_total)],
            _metadata_claims(build) if build.is_gguf else (),
            (claim for _, claim in _name_claims(build, reference_experts)),
            _licence_claims(build, card or HubCard(), listing),
            _published_claims(build),
        )
    )


def label_findings(
    checkpoint: Checkpoint, report: Report, *, reference_experts: int | None = None
) -> Iterator[Finding]:
    """Yield what names say and no tensor bears out: a quantization, a number of experts.

    The quantization of a GGUF set is held against its label when it is opened. Of a set of which a part is missing, and
    of words that are not understood, nothing is said.
    """
    build = _build(checkpoint, report)
    told: dict[str, list[tuple[str, Claim]]] = {}
    for name, claim in _name_claims(build, reference_experts):
        if claim.agrees is False and claim.subject in _COMPLAINTS and not (build.is_gguf and claim.subject == _QUANT):
            told.setdefault(claim.subject, []).append((name, claim))
    for subject, wrong in told.items():
        name, first = wrong[0]
        said = " and ".join(f"its {claim.said_by} says {claim.said}" for _, claim in wrong)
        message = f"{said}, and {_COMPLAINTS[subject]}"
        yield finding("label-disagrees", name, message, expected=first.said, actual=first.counted, count=len(wrong))


def _build(checkpoint: Checkpoint, report: Report) -> _Build:
    sides = {item.path for item in checkpoint.companions if item.counted}
    shards = tuple(shard for shard in checkpoint.shards if shard.path not in sides)
    tensors = checkpoint.tensors.of_shards({shard.path for shard in shards})
    census = report.experts
    return _Build(
        checkpoint=checkpoint,
        shards=shards,
        whole=checkpoint.complete and all_opened([shard.path for shard in shards]),
        parameters=_parameters(tensors, COMPONENTS),
        unnamed=_parameters(tensors, _UNNAMED) or 0,
        routed=_parameters(tensors, {Component.ROUTED_EXPERTS}) or 0,
        experts=census.per_layer_min if census and census.per_layer_min == census.per_layer_max else None,
        encodings=_encodings(tensors),
        places=tuple(_places(checkpoint, shards)),
        sole=not checkpoint.other_sets,
    )


def all_opened(paths: Sequence[str]) -> bool:
    """Whether these are as many files as their names say that there are: globs may have chosen a part."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for name in map(ShardName.of, paths):
        if name.count is not None:
            numbers.setdefault((name.set_name, name.count), set()).add(name.number or 0)
    # Some sets are numbered from 0, and a few of these end with the number that they say is that of all.
    return all(len(found) == count + ({0, count} <= found) for (_, count), found in numbers.items())


def _parameters(tensors: TensorTable, components: Collection[Component]) -> int | None:
    """Count the values of some components, those of a name that came before once; None if some are not known."""
    columns, rows = tensors.columns, tensors.rows
    wanted = np.array([component in components for component in COMPONENTS])[columns.component[rows]]
    counts = tensors.parameters[wanted & ~columns.repeated[rows]]
    return None if (counts < 0).any() else exact_sum(counts)


def _encodings(tensors: TensorTable) -> tuple[str, ...]:
    """Return the encodings of weights, most bytes first."""
    columns, rows = tensors.columns, tensors.rows
    sizes: Counter[str] = Counter()
    nbytes = exact_sums(columns.look[rows], (columns.end - columns.begin)[rows], len(columns.looks))
    for code in present(columns.look[rows]).tolist():
        if columns.looks[code].role is Role.WEIGHT:
            sizes[columns.looks[code].encoding] += nbytes[code]
    return tuple(encoding for encoding, _ in sizes.most_common())


def _places(checkpoint: Checkpoint, shards: Sequence[Shard]) -> Iterator[tuple[str, str]]:
    """Yield where names stand that may say something, and these."""
    source = checkpoint.source
    repository = repository_of(source, checkpoint.commit)
    if repository is None and source.startswith(_MODELSCOPE):
        repository = source.removeprefix(_MODELSCOPE).partition("@")[0]
    if repository is not None:
        yield "repository name", repository.partition("/")[2]
    elif not source.endswith((".safetensors", ".gguf")) and not source.startswith("<"):
        yield "folder name", PurePath(source).name
    yield "set name", checkpoint.set_name
    if shards:
        yield "file name", ShardName.of(shards[0].path).stem


def _hub_claims(build: _Build, card: HubCard) -> Iterator[Claim]:
    """Hold against the build what the Hub says; its totals may be those of another set or file, of its choice."""
    name, total, alone = "safetensors.total", card.safetensors_total, build.sole
    if build.is_gguf:
        name, total, alone = "gguf.total", card.gguf_total, build.sole and len(build.shards) == 1
    if total is not None:
        agrees = build.equal(total, build.parameters)
        agrees = agrees if agrees or alone else None
        yield _counted("parameters", f"Hub, {name}", total, build.parameters, agrees)
    if card.gguf_architecture and build.is_gguf:
        counted = build.checkpoint.architecture
        agrees = card.gguf_architecture == counted if counted else None
        yield _said("architecture", "Hub, gguf.architecture", card.gguf_architecture, counted, agrees)
    for name in card.base_models:
        yield _said("base model", "Hub, base_model", name)


def _index_claim(build: _Build, total: int) -> Claim:
    agrees = build.equal(total, build.tensor_bytes)
    return _counted("tensor bytes", "model-index", total, build.tensor_bytes, agrees)


def _counted(subject: str, said_by: str, said: int, counted: int | None, agrees: bool | None) -> Claim:
    return Claim(subject=subject, said_by=said_by, said=said, counted=counted, agrees=agrees)


def _said(subject: str, said_by: str, said: str, counted: str | int | None = None, agrees: bool | None = None) -> Claim:
    """Make a claim of a stranger's words, printable, the end of very long ones cut off."""
    text = printable(said if len(said) <= LONGEST else said[:LONGEST] + "…")
    return Claim(subject=subject, said_by=said_by, said=text, counted=counted, agrees=agrees)


def _metadata_claims(build: _Build) -> Iterator[Claim]:
    """Hold against the tensors what a GGUF file says of itself."""
    metadata = build.checkpoint.metadata
    label = metadata.get("general.size_label")
    if isinstance(label, str):
        word = size_word(label)
        whole = word is not None and word.text == label
        counted, agrees = _size(build, word) if word and whole else (None, None)
        yield _said("size", "general.size_label", label, counted, agrees)
    number = metadata.get("general.file_type")
    if type(number) is int:
        name = FILE_TYPES.get(number & ~GUESSED)
        wrong = any(find_wrong_labels("", {"general.file_type": number}, set(build.encodings)))
        agrees = None if name is None or not build.encodings or not build.whole else not wrong
        yield _said(_QUANT, "general.file_type", name or str(number), ", ".join(build.encodings) or None, agrees)
    parameters = metadata.get("general.parameter_count")
    if type(parameters) is int:
        agrees = build.equal(parameters, build.parameters)
        yield _counted("parameters", "general.parameter_count", parameters, build.parameters, agrees)


def _size(build: _Build, word: SizeWord) -> tuple[str | None, bool | None]:
    """Return the size as llama.cpp's converter writes it, and whether a word fits it.

    It fits if it is within a tenth of the whole, of the whole without embeddings, head, vision and draft heads, or of
    anything between. With experts said, as in ``8x7B``, their number has to be right too.
    """
    from gguf.utility import model_weight_count_rounded_notation, size_label

    total = build.parameters
    if total is None or not build.whole:
        return None, None
    if word.experts is None:
        counted = model_weight_count_rounded_notation(total)
        return counted, _within(word.parameters, total - build.unnamed, total)
    if not build.experts:
        return None, None
    one, shared = build.routed // build.experts, total - build.routed
    counted = size_label(total, shared, one, build.experts)
    fits = _within(word.parameters, shared + one - build.unnamed, shared + one)
    return counted, fits and word.experts == build.experts


def _within(said: float, low: int, high: int) -> bool:
    return said * (1 + SIZE_TOLERANCE) >= low and said * (1 - SIZE_TOLERANCE) <= high


def _name_claims(build: _Build, reference_experts: int | None) -> Iterator[tuple[str, Claim]]:
    """Yield each name with what it says; words that a name before it has said are left out."""
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
                yield name, claim


def _quant_claim(build: _Build, place: str, word: QuantWord) -> Claim:
    agrees = _is_packed(build, word)
    if agrees is False and (not build.whole or (place == "repository name" and not build.sole)):
        agrees = None  # the rest, or another set, may be
    return _said(_QUANT, place, word.text, ", ".join(build.encodings) or None, agrees)


def _is_packed(build: _Build, word: QuantWord) -> bool | None:
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


def _expert_claim(build: _Build, place: str, word: ExpertWord, reference_experts: int | None) -> Claim:
    agrees = _is_pruned(build.experts, word, reference_experts) if build.experts and build.whole else None
    return _said(_EXPERTS, place, word.text, build.experts, agrees)


def _is_pruned(experts: int, word: ExpertWord, reference_experts: int | None) -> bool | None:
    """Whether layers of so many experts are what a word says; a share needs a reference to be held against."""
    if word.kept is not None:
        of_another = word.of is not None and reference_experts not in (None, word.of)
        return None if word.kept == experts and of_another else word.kept == experts
    if word.removed is None or not reference_experts:
        return None
    off = abs(1 - experts / reference_experts - word.removed)
    return off <= max(REMOVED_TOLERANCE, 1 / reference_experts)


def _size_claim(build: _Build, place: str, word: SizeWord) -> Claim:
    counted, agrees = _size(build, word)
    return _said("size", place, word.text, counted, agrees)


def _licence_claims(build: _Build, card: HubCard, listing: Sequence[ListedFile]) -> Iterator[Claim]:
    """Yield what is said of the licence; headers tell nothing of it."""
    metadata = build.checkpoint.metadata
    sayings = {
        "Hub, license": card.license,
        "Hub, license_name": card.license_name,
        "Hub, license_link": card.license_link,
        **({key: metadata.get(key) for key in _LICENCE_KEYS} if build.is_gguf else {}),
    }
    for said_by, said in sayings.items():
        if isinstance(said, str) and said:
            yield _said("licence", said_by, said)
    for file in listing:
        if _LICENCE_FILE.fullmatch(file.path):
            yield _said("licence", "file", file.path)


def _published_claims(build: _Build) -> Iterator[Claim]:
    checkpoint = build.checkpoint
    repository = repository_of(checkpoint.source, checkpoint.commit)
    said = published_of(repository, checkpoint.set_name, checkpoint.format) if repository else None
    if said is None:
        return
    file_bytes = sum(shard.file_bytes for shard in build.shards)
    for subject, figure, counted in (
        ("files", said.files, len(build.shards)),
        ("file bytes", said.file_bytes, file_bytes),
        ("parameters", said.parameters, build.parameters),
    ):
        if figure is not None:
            yield _counted(subject, f"published, {CHECKED}", figure, counted, build.equal(figure, counted))
