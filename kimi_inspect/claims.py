"""What is said of a checkpoint beside what is counted: by the Hub, the index, metadata, names, licences, publishers.

Nothing is guessed: where headers cannot tell, `agrees` is None, and so it is for totals of a set of which only a part
was opened. Totals are those of the set's own files; side files that were counted too are left out of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from kimi_inspect.checkpoint import Checkpoint
from kimi_inspect.counted import Counted
from kimi_inspect.findings import finding
from kimi_inspect.hub_card import HubCard
from kimi_inspect.labels import FILE_TYPES, GUESSED, find_wrong_labels
from kimi_inspect.name_claims import EXPERTS, QUANT, SIZE, Saying, names_say, size_label_says, words_claim
from kimi_inspect.published import CHECKED, published_of, repository_of
from kimi_inspect.report import Report
from kimi_inspect.sources import ListedFile
from kimi_inspect.values import Finding
from kimi_inspect.verdict import Claim

__all__ = ["claims_of", "label_findings"]

COUNT_TOLERANCE = 0.01
"""Share by which a total in metadata may be off: tools count buffers or not."""

_COMPLAINTS = {
    QUANT: "no tensor is packed so",
    EXPERTS: "its layers hold another number of experts",
    SIZE: "it holds another number of parameters",
}
"""Subjects of names that make a finding where they are wrong: whoever chooses by the name gets something else."""

_PARAMETER_COUNT = "general.parameter_count"

_LICENCE_FILE = re.compile(r"(?:LICEN[CS]E|COPYING)(?:[-._ ][^/]*)?", re.IGNORECASE)
_LICENCE_KEYS = ("general.license", "general.license.name", "general.license.link")


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
    build = Counted.of(checkpoint, report)
    return tuple(
        chain(
            _hub_claims(build, card) if card else (),
            [] if index_total is None else [_index_claim(build, index_total)],
            _metadata_claims(build) if build.is_gguf else (),
            (saying.claim for saying in names_say(build, reference_experts)),
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
    build = Counted.of(checkpoint, report)
    told: dict[str, list[Saying]] = {}
    for saying in chain(names_say(build, reference_experts), size_label_says(build)):
        if saying.wrong:
            told.setdefault(saying.claim.subject, []).append(saying)
    for subject, wrong in told.items():
        first = wrong[0].claim
        said = " and ".join(f"its {saying.claim.said_by} says {saying.claim.said}" for saying in wrong)
        message = f"{said}, and {_COMPLAINTS[subject]}"
        where, count = wrong[0].where, len(wrong)
        yield finding("label-disagrees", where, message, expected=first.said, actual=first.counted, count=count)
    yield from _wrong_total(build)


def _wrong_total(build: Counted) -> Iterator[Finding]:
    """Yield a total in GGUF metadata that is off, whether or not one counts embeddings, head, vision and drafts."""
    said, counted = _declared_parameters(build), build.parameters
    if said is None or counted is None or not (build.whole and build.comparable):
        return
    if not (counted - build.unnamed) * (1 - COUNT_TOLERANCE) <= said <= counted * (1 + COUNT_TOLERANCE):
        path = build.shards[0].path if build.shards else build.checkpoint.set_name
        message = f"its {_PARAMETER_COUNT} declares another number of parameters than the tensors have"
        yield finding("declared-total-wrong", path, message, file=path, expected=said, actual=counted)


def _declared_parameters(build: Counted) -> int | None:
    said = build.checkpoint.metadata.get(_PARAMETER_COUNT) if build.is_gguf else None
    return said if type(said) is int else None


def _hub_claims(build: Counted, card: HubCard) -> Iterator[Claim]:
    """Hold against the build what the Hub says; its totals may be those of another set or file, of its choice."""
    name, total, alone = "safetensors.total", card.safetensors_total, build.sole
    if build.is_gguf:
        name, total, alone = "gguf.total", card.gguf_total, build.sole and len(build.shards) == 1
    if total is not None:
        agrees = build.equal(total, build.parameters)
        agrees = agrees if agrees or alone else None
        yield number_claim("parameters", f"Hub, {name}", total, build.parameters, agrees)
    if card.gguf_architecture and build.is_gguf:
        counted = build.checkpoint.architecture
        agrees = card.gguf_architecture == counted if counted else None
        yield words_claim("architecture", "Hub, gguf.architecture", card.gguf_architecture, counted, agrees)
    for name in card.base_models:
        yield words_claim("base model", "Hub, base_model", name)


def _index_claim(build: Counted, total: int) -> Claim:
    agrees = build.equal(total, build.tensor_bytes)
    return number_claim("tensor bytes", "model-index", total, build.tensor_bytes, agrees)


def number_claim(subject: str, said_by: str, said: int, counted: int | None, agrees: bool | None) -> Claim:
    return Claim(subject=subject, said_by=said_by, said=said, counted=counted, agrees=agrees)


def _metadata_claims(build: Counted) -> Iterator[Claim]:
    """Hold against the tensors what a GGUF file says of itself."""
    metadata = build.checkpoint.metadata
    yield from (saying.claim for saying in size_label_says(build))
    number = metadata.get("general.file_type")
    if type(number) is int:
        name = FILE_TYPES.get(number & ~GUESSED)
        wrong = any(find_wrong_labels("", {"general.file_type": number}, set(build.encodings)))
        agrees = None if name is None or not build.encodings or not build.whole else not wrong
        yield words_claim(QUANT, "general.file_type", name or str(number), ", ".join(build.encodings) or None, agrees)
    parameters = _declared_parameters(build)
    if parameters is not None:
        agrees = build.equal(parameters, build.parameters)
        yield number_claim("parameters", _PARAMETER_COUNT, parameters, build.parameters, agrees)


def _licence_claims(build: Counted, card: HubCard, listing: Sequence[ListedFile]) -> Iterator[Claim]:
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
            yield words_claim("licence", said_by, said)
    for file in listing:
        if _LICENCE_FILE.fullmatch(file.path):
            yield words_claim("licence", "file", file.path)


def _published_claims(build: Counted) -> Iterator[Claim]:
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
            yield number_claim(subject, f"published, {CHECKED}", figure, counted, build.equal(figure, counted))
