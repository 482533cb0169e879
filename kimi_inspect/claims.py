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

from kimi_inspect.causes import Told
from kimi_inspect.components import Component, Group
from kimi_inspect.findings import finding
from kimi_inspect.hub_card import HubCard
from kimi_inspect.labels import FILE_TYPES, GUESSED, find_wrong_labels
from kimi_inspect.name_words import (
    ExpertWord,
    QuantWord,
    SizeWord,
    expert_words,
    is_model_size,
    quant_words,
    size_word,
)
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

SIZE_WRONG = 1.5
"""Times that a size has to be off to make a finding: gemma-7b and MiniCPM-2B are a tenth and a fifth larger."""

COUNT_TOLERANCE = 0.01
"""Share by which a total in metadata may be off: tools count buffers or not."""

REMOVED_TOLERANCE = 0.005
"""How far a share of experts that a name says was removed may be off: half a per cent of them, or one expert."""

_QUANT, _EXPERTS, _SIZE = "quantization", "experts", "size"
_COMPLAINTS = {
    _QUANT: "no tensor is packed so",
    _EXPERTS: "its layers hold another number of experts",
    _SIZE: "it holds another number of parameters",
}
"""Subjects of names that make a finding where they are wrong: whoever chooses by the name gets something else."""

_REPOSITORY, _FOLDER = "repository name", "folder name"
"""Places of names; that of a folder is the reader's own, and often says what lay in it once."""

_UNNAMED = frozenset({Component.EMBEDDINGS, Component.LM_HEAD}) | {
    component for component in Component if component.group in (Group.MULTIMODAL, Group.DRAFT)
}
"""What names of sizes may leave out."""

_INTEGERS = re.compile(r"[iu]\d+")
"""Encodings of weights that are plain integers: a packing that no rule knows, of which each may hold several values."""

_PARAMETER_COUNT, _SIZE_LABEL = "general.parameter_count", "general.size_label"

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
        comparable: no finding tells of tensors that are missing or too many, so that totals can be held against it.
        is_model: it holds a model, not what goes beside one, and all its values are counted one by one.
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
    comparable: bool
    is_model: bool

    @property
    def is_gguf(self) -> bool:
        return self.checkpoint.format == "gguf"

    @property
    def tensor_bytes(self) -> int:
        return sum(shard.tensor_bytes for shard in self.shards)

    def equal(self, said: int, counted: int | None) -> bool | None:
        """Compare a total; None where it is not known, or not that of the whole set."""
        return said == counted if self.whole and counted is not None else None


@frozen
class _Saying:
    """What a name or a label says.

    Attributes:
        where: the name, or the file with the label.
        wrong: it makes a finding.
    """

    where: str
    claim: Claim
    wrong: bool


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
            (saying.claim for saying in _names_say(build, reference_experts)),
            _licence_claims(build, card or HubCard(), listing),
            _published_claims(build),
        )
    )


def label_findings(
    checkpoint: Checkpoint, report: Report, *, reference_experts: int | None = None
) -> Iterator[Finding]:
    """Yield what names and labels say and no tensor bears out: a quantization, a number of experts, a size, a total.

    The quantization of a GGUF set is held against its label when it is opened. Of a set of which a part is missing, and
    of words that are not understood, nothing is said.
    """
    build = _build(checkpoint, report)
    told: dict[str, list[_Saying]] = {}
    for saying in chain(_names_say(build, reference_experts), _size_label(build)):
        if saying.wrong:
            told.setdefault(saying.claim.subject, []).append(saying)
    for subject, wrong in told.items():
        first = wrong[0].claim
        said = " and ".join(f"its {saying.claim.said_by} says {saying.claim.said}" for saying in wrong)
        message = f"{said}, and {_COMPLAINTS[subject]}"
        where, count = wrong[0].where, len(wrong)
        yield finding("label-disagrees", where, message, expected=first.said, actual=first.counted, count=count)
    yield from _wrong_total(build)


def _wrong_total(build: _Build) -> Iterator[Finding]:
    """Yield a total in GGUF metadata that is off, whether or not one counts embeddings, head, vision and drafts."""
    said, counted = _declared_parameters(build), build.parameters
    if said is None or counted is None or not (build.whole and build.comparable):
        return
    if not (counted - build.unnamed) * (1 - COUNT_TOLERANCE) <= said <= counted * (1 + COUNT_TOLERANCE):
        path = build.shards[0].path if build.shards else build.checkpoint.set_name
        message = f"its {_PARAMETER_COUNT} declares another number of parameters than the tensors have"
        yield finding("declared-total-wrong", path, message, file=path, expected=said, actual=counted)


def _declared_parameters(build: _Build) -> int | None:
    said = build.checkpoint.metadata.get(_PARAMETER_COUNT) if build.is_gguf else None
    return said if type(said) is int else None


def _build(checkpoint: Checkpoint, report: Report) -> _Build:
    sides = {item.path for item in checkpoint.companions if item.counted}
    shards = tuple(shard for shard in checkpoint.shards if shard.path not in sides)
    tensors = checkpoint.tensors.of_shards({shard.path for shard in shards})
    census, encodings = report.experts, _encodings(tensors)
    told = Told(checkpoint.findings, checkpoint.tensors)
    return _Build(
        checkpoint=checkpoint,
        shards=shards,
        whole=checkpoint.complete and all_opened([shard.path for shard in shards]),
        parameters=_parameters(tensors, COMPONENTS),
        unnamed=_parameters(tensors, _UNNAMED) or 0,
        routed=_parameters(tensors, {Component.ROUTED_EXPERTS}) or 0,
        experts=census.per_layer_min if census and census.per_layer_min == census.per_layer_max else None,
        encodings=encodings,
        places=tuple(_places(checkpoint, shards)),
        sole=not checkpoint.other_sets,
        comparable=not (told.changes_size or told.other_model),
        is_model=bool(_parameters(tensors, {Component.EMBEDDINGS})) and not any(map(_INTEGERS.fullmatch, encodings)),
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
    """Yield where names stand that may say something, and these; that of a folder last, as it says the least."""
    source = checkpoint.source
    repository = repository_of(source, checkpoint.commit)
    if repository is None and source.startswith(_MODELSCOPE):
        repository = source.removeprefix(_MODELSCOPE).partition("@")[0]
    if repository is not None:
        yield _REPOSITORY, repository.partition("/")[2]
    yield "set name", checkpoint.set_name
    if shards:
        yield "file name", ShardName.of(shards[0].path).stem
    if repository is None and not source.endswith((".safetensors", ".gguf")) and not source.startswith("<"):
        yield _FOLDER, PurePath(source).name


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
    yield from (saying.claim for saying in _size_label(build))
    number = metadata.get("general.file_type")
    if type(number) is int:
        name = FILE_TYPES.get(number & ~GUESSED)
        wrong = any(find_wrong_labels("", {"general.file_type": number}, set(build.encodings)))
        agrees = None if name is None or not build.encodings or not build.whole else not wrong
        yield _said(_QUANT, "general.file_type", name or str(number), ", ".join(build.encodings) or None, agrees)
    parameters = _declared_parameters(build)
    if parameters is not None:
        agrees = build.equal(parameters, build.parameters)
        yield _counted("parameters", _PARAMETER_COUNT, parameters, build.parameters, agrees)


def _size_label(build: _Build) -> Iterator[_Saying]:
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
    yield _Saying(where, _said(_SIZE, _SIZE_LABEL, label, counted, agrees), wrong)


def _size(build: _Build, word: SizeWord) -> tuple[str | None, bool | None]:
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


def _largest(build: _Build, word: SizeWord) -> int | None:
    """Return the most that a word may mean: the whole, or all but the experts and one of these; None if not known."""
    if build.parameters is None or word.experts is None:
        return build.parameters
    return build.parameters - build.routed + build.routed // build.experts if build.experts else None


def _is_far_off(build: _Build, word: SizeWord) -> bool:
    """Whether a word is plainly wrong: many a name is a little off, which nobody is misled by."""
    high = _largest(build, word)
    if high is None or not (build.comparable and build.is_model):
        return False
    near = (high - build.unnamed) / SIZE_WRONG <= word.parameters <= high * SIZE_WRONG
    return not near or word.experts not in (None, build.experts)


def _names_say(build: _Build, reference_experts: int | None) -> Iterator[_Saying]:
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
                yield _Saying(name, claim, claim.agrees is False and _is_grave(build, place, name, claim))


def _is_grave(build: _Build, place: str, name: str, claim: Claim) -> bool:
    """Whether what a name says wrongly makes a finding."""
    if claim.subject == _QUANT:
        return place != _FOLDER and not build.is_gguf
    if claim.subject == _SIZE:
        word = size_word(name)
        return place != _FOLDER and word is not None and is_model_size(name) and _is_far_off(build, word)
    return True


def _quant_claim(build: _Build, place: str, word: QuantWord) -> Claim:
    agrees = _is_packed(build, word)
    if agrees is False and (not build.whole or (place == _REPOSITORY and not build.sole)):
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
    if agrees is False and place == _REPOSITORY and not build.sole:
        agrees = None  # another set may be as large
    return _said(_SIZE, place, word.text, counted, agrees)


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
