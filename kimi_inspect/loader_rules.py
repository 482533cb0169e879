"""What the rules of an engine look at and say, and how each kind of rule is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import frozen

from kimi_inspect.text import printable
from kimi_inspect.verdict import Support

__all__ = [
    "NO",
    "UNKNOWN",
    "YES",
    "Answer",
    "Build",
    "Loads",
    "Rule",
    "has_models",
    "has_types",
    "reads",
    "refuses_findings",
    "words",
]

YES, NO, UNKNOWN = Support.YES, Support.NO, Support.UNKNOWN


@frozen
class Answer:
    """What one rule says."""

    support: Support
    reason: str
    rule: str


@frozen(kw_only=True)
class Build:
    """What rules look at.

    Attributes:
        architecture: GGUF's `general.architecture`, and of safetensors the family.
        packings: layouts of weights with their encodings: ``("GPTQ", "int4")``; of GGUF the encodings alone matter.
        codes: of findings.
        config: the parsed config.json.
        paths: of the set's own files.
    """

    architecture: str | None
    packings: tuple[tuple[str, str], ...]
    codes: frozenset[str]
    config: Mapping[str, object]
    paths: tuple[str, ...]


Rule = Callable[[Build], Iterator[Answer]]


@frozen
class Loads:
    """A layout that an engine loads: of some encodings, of models of some families; of all where none is named."""

    layout: str
    encodings: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()

    def holds(self, packing: tuple[str, str], family: str | None) -> bool:
        """Whether it is this layout, with an encoding and of a family that are loaded."""
        return packing[0] == self.layout and all(
            not allowed or said in allowed for said, allowed in ((packing[1], self.encodings), (family, self.families))
        )


def words(text: str) -> frozenset[str]:
    """Part a list of names at the spaces."""
    return frozenset(text.split())


def reads(loads: Sequence[Loads], refuses: str, rule: str) -> Rule:
    """Make the rule that every layout has to be one that the engine loads; `refuses` names those it does not."""
    refused = frozenset(refuses.split(", "))

    def ask(build: Build) -> Iterator[Answer]:
        for packing in build.packings:
            if packing[0] in refused:
                yield Answer(NO, f"it does not read {_shown(packing)}", rule)
            elif not any(one.holds(packing, build.architecture) for one in loads):
                yield Answer(UNKNOWN, f"it is not known here to read {_shown(packing)}", rule)
        yield Answer(YES, f"it reads {', '.join(map(_shown, build.packings))}", rule)

    return ask


def _shown(packing: tuple[str, str]) -> str:
    layout, encoding = packing
    return printable(encoding if layout == "plain" else f"{encoding} ({layout})")


def has_models(known: Callable[[], frozenset[str]], rule: str, special: Mapping[str, Answer]) -> Rule:
    """Make the rule that the model has to be one that the engine has; of those in `special` more is known."""

    def ask(build: Build) -> Iterator[Answer]:
        name = build.architecture
        if name is None:
            yield Answer(UNKNOWN, "neither config nor metadata name the model", rule)
        elif name in special:
            yield special[name]
        elif name in known():
            yield Answer(YES, f"it has the model {name}", rule)
        else:
            yield Answer(UNKNOWN, f"it is not known here to have a model {printable(name)}", rule)

    return ask


def has_types(
    known: frozenset[str], rule: str, *, own: Mapping[str, str] | None = None, foreign: Mapping[str, str] | None = None
) -> Rule:
    """Make the rule for types of GGUF: `own` are those that upstream has not, `foreign` those of another engine."""
    has, others = own or {}, foreign or {}

    def ask(build: Build) -> Iterator[Answer]:
        encodings = [encoding for _, encoding in build.packings]
        for encoding in encodings:
            if encoding in others:
                yield Answer(NO, f"{others[encoding]} is a type of ik_llama.cpp's own", rule)
            elif encoding not in known and encoding not in has:
                what = printable(encoding.removeprefix("unknown:"))
                yield Answer(UNKNOWN, f"it is not known here to have the type {what}", rule)
        yield Answer(YES, f"it has the types {', '.join(has.get(one, one) for one in encodings)}", rule)

    return ask


def refuses_findings(support: Support, reasons: Mapping[str, str], rule: str) -> Rule:
    """Make the rule for files with certain findings."""
    return lambda build: (Answer(support, reason, rule) for code, reason in reasons.items() if code in build.codes)
