"""A checkpoint held against another one, by what their headers say of every place in every block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve

from kimi_inspect.checkpoint import UNREAD
from kimi_inspect.components import Component, Group
from kimi_inspect.difference_findings import difference_findings, kept_of, requantization_findings, requantizations_of
from kimi_inspect.differences import Differences, differences_of
from kimi_inspect.findings import SEVERITIES, finding
from kimi_inspect.holdings import Unit
from kimi_inspect.outcome import Outcome
from kimi_inspect.sides import Side, same_family
from kimi_inspect.values import Finding

__all__ = ["compare_structure"]

DIFFERENT = frozenset({"architecture-mismatch", "parameters-differ", "shape-differs"})

SPARSE, DENSE = frozenset({Component.ROUTED_EXPERTS, Component.ROUTER}), frozenset({Component.DENSE_MLP})
"""The two kinds of MLP that a layer may have."""


def compare_structure(mine: Side, its: Side, own: Sequence[Finding], *, partial: bool) -> Outcome:
    """Compare the units of a candidate with those of a reference.

    Args:
        mine: the candidate.
        its: the reference.
        own: what the candidate shows by itself.
        partial: it is a part of a set, chosen on purpose.
    """
    alike = frozenset(path for path, layout in mine.layouts.items() if its.layouts.get(path) == layout)
    codes = {item.code for item in own}
    if "architecture-mismatch" in codes:
        return Outcome(different=True, alike=alike)
    differences = differences_of(
        its.units, mine.units, tied=bool(its.tied), converted=mine.weights_format != its.weights_format
    )
    if partial or codes & UNREAD:
        differences = _of_what_is_there(differences, mine, its)
    found = [*_mismatch(mine, its, differences)]
    if not _is_other(differences):
        found += difference_findings(differences, own, sides=mine.companions)
    if mine.weights_format == its.weights_format:
        found = [_more(item) if item.code == "unexpected-tensor" else item for item in found]
    requantizations = requantizations_of(differences)
    return Outcome(
        findings=(*found, *requantization_findings(requantizations)),
        requantizations=requantizations,
        kept=kept_of(differences),
        different=bool(alike) or any(item.code in DIFFERENT for item in found),
        reduced=bool(differences.missing or differences.pruned),
        changed=not all(pair.is_stored_alike for pair in differences.pairs),
        alike=alike,
    )


def _more(unexpected: Finding) -> Finding:
    """Say of tensors in the reference's own names what they are: more than it has.

    Under a converter's names, what is left over may be what is missing by another name.
    """
    message = "a tensor that the reference does not have; it is another model"
    return evolve(unexpected, code="parameters-differ", severity=SEVERITIES["parameters-differ"], message=message)


def _of_what_is_there(differences: Differences, mine: Side, its: Side) -> Differences:
    """Leave out what shards that were not read may hold.

    Where the candidate's shards are some of the reference's, by their names, those that were read have to hold what
    the reference has in them. Of experts that lie apart, some may be in other shards.
    """
    missing = [unit for unit in differences.missing if mine.paths <= its.paths and unit.shard in mine.paths]
    misfits = [pair for pair in differences.misfits if pair.reference.tensors == pair.candidate.tensors]
    return Differences(pairs=differences.pairs, misfits=tuple(misfits), missing=tuple(missing))


def _mismatch(mine: Side, its: Side, differences: Differences) -> Iterator[Finding]:
    """Find that the two are of different families, by their names and by what they hold.

    GGUF has one architecture for many families, and a language model by itself goes by a name of its own. Under names
    that are not known for the same, what holds all the same, senses and drafts aside, is the same.
    """
    if _is_other(differences):
        fitting, places = len(differences.pairs), len(its.units)
        message = f"of {places:,} places of the reference {fitting:,} hold as many values; it is another model"
        yield finding("architecture-mismatch", "model", message, expected=_named(its), actual=_named(mine))
        return
    layers = _of_another_mlp(differences)
    if layers:
        # Llama and Mixtral are one architecture in GGUF: there no name tells them apart.
        what = "1 layer has" if len(layers) == 1 else f"{len(layers)} layers have"
        message = f"{what} routed experts in one of the two and a dense MLP in the other; it is another model"
        yield finding("architecture-mismatch", "model", message, expected=_named(its), actual=_named(mine))
        return
    if not mine.families or not its.families or same_family(mine.families, its.families):
        return
    lost = any(unit.component.group not in (Group.MULTIMODAL, Group.DRAFT) for unit in differences.missing)
    if lost or differences.misfits or _added_inside(differences):
        message = f"of the family {mine.families[0]}; the reference is {its.families[0]}"
        yield finding("architecture-mismatch", "model", message, expected=its.families[0], actual=mine.families[0])


def _is_other(differences: Differences) -> bool:
    """Whether of neither of the two half the places are the other's."""
    shared = len(differences.pairs) + len(differences.misfits)
    least = shared + min(len(differences.missing), len(differences.added))
    return 2 * len(differences.pairs) < least


def _of_another_mlp(differences: Differences) -> list[int]:
    """Return the layers whose MLP is dense in one of the two, and in the other experts with a router."""
    lost, more = _components_by_layer(differences.missing), _components_by_layer(differences.added)
    return [
        layer
        for layer in lost.keys() & more.keys()
        if (lost[layer] >= SPARSE and more[layer] >= DENSE) or (lost[layer] >= DENSE and more[layer] >= SPARSE)
    ]


def _components_by_layer(units: Iterable[Unit]) -> dict[int, set[Component]]:
    components: dict[int, set[Component]] = {}
    for unit in units:
        if unit.layer is not None:
            components.setdefault(unit.layer, set()).add(unit.component)
    return components


def _added_inside(differences: Differences) -> bool:
    """Whether there is more in components that both have."""
    of_both = {unit.component for unit in differences.missing}
    of_both |= {pair.reference.component for pair in (*differences.pairs, *differences.misfits)}
    return any(unit.component in of_both for unit in differences.added)


def _named(side: Side) -> str | None:
    return side.families[0] if side.families else None
