"""What the differences between two checkpoints mean for whoever chooses one: findings, one for each cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kimi_inspect.components import Component, Group
from kimi_inspect.differences import Differences, Pair
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.holdings import Unit
from kimi_inspect.report import total
from kimi_inspect.text import number_ranges
from kimi_inspect.values import Companion, Finding, Severity
from kimi_inspect.verdict import Kept, Requantization

__all__ = [
    "OF_EXPERTS",
    "difference_findings",
    "kept_of",
    "pruning_finding",
    "requantization_findings",
    "requantizations_of",
]

OF_EXPERTS = frozenset({"expert-missing", "expert-count-disagrees", "experts-uneven"})

LOSSLESS: dict[str, frozenset[str]] = {
    "bf16": frozenset({"f32", "f64"}),
    "f16": frozenset({"f32", "f64"}),
    "f32": frozenset({"f64"}),
    "f8_e4m3": frozenset({"bf16", "f16", "f32"}),
    "f8_e5m2": frozenset({"bf16", "f16", "f32"}),
}
"""Encodings that hold every value of another one."""


def difference_findings(
    differences: Differences, own: Sequence[Finding], *, sides: Sequence[Companion] = ()
) -> Iterator[Finding]:
    """Yield what the candidate lacks, has besides, and has otherwise, but for what it shows by itself.

    Args:
        differences: against the reference.
        own: findings of the candidate alone.
        sides: its side files.
    """
    told = {item.code for item in own if item.severity is Severity.ERROR}
    by_experts = bool(told & OF_EXPERTS)
    missing = [
        unit
        for unit in differences.missing
        if not (by_experts and unit.component is Component.ROUTED_EXPERTS)
        and not ("layer-missing" in told and unit.layer is not None)
    ]
    found = [*_missing(missing, differences, sides), *_added(differences)]
    found += [] if by_experts else [*pruning_finding(differences.pruned)]
    told_of = {Component.ROUTER, Component.ROUTED_EXPERTS} if by_experts else set()
    found += _misfits(pair for pair in differences.misfits if pair.reference.component not in told_of)
    yield from (item for item in found if not _is_told(item, own))


def _is_told(item: Finding, own: Sequence[Finding]) -> bool:
    """Whether the candidate shows this by itself: under the same code, of the same component, as often."""
    of_part = item.code in ("component-missing", "mtp-missing")
    return any(
        one.code == item.code and (one.where == item.where if of_part else one.count >= item.count) for one in own
    )


def _missing(missing: Sequence[Unit], differences: Differences, sides: Sequence[Companion]) -> Iterator[Finding]:
    """Yield components, layers and single tensors of the reference that are not there."""
    there = [*(pair.candidate for pair in (*differences.pairs, *differences.misfits)), *differences.added]
    components = {unit.component for unit in there}
    layers = {unit.layer for unit in there if unit.component is not Component.MTP}
    of_layers = [unit for unit in missing if unit.component is not Component.MTP and unit.layer not in layers | {None}]
    if of_layers:
        yield _layers_missing(of_layers, len(layers - {None}))
    rest = [unit for unit in missing if unit not in of_layers]
    lost = dict.fromkeys(unit.component for unit in rest if unit.component not in components)
    for component in lost:
        # A projector goes with its tower.
        if not (component is Component.PROJECTOR and Component.VISION_TOWER in lost):
            yield _component_missing(component, [unit for unit in rest if unit.component is component], sides)
    single = [unit for unit in rest if unit.component not in lost]
    if single:
        message = "a tensor of the reference is not there; loaders fail, or leave what is in memory"
        yield _of_units("tensor-missing", single, message)


def _layers_missing(units: Sequence[Unit], there: int) -> Finding:
    layers = sorted({unit.layer for unit in units if unit.layer is not None})
    what = "1 layer of the reference is" if len(layers) == 1 else f"{len(layers)} layers of the reference are"
    message = f"{what} not there: {number_ranges(layers)}"
    return finding(
        "layer-missing",
        f"layer {layers[0]}",
        message,
        expected=there + len(layers),
        actual=there,
        layer=layers[0],
        count=len(layers),
        examples=[f"layer {layer}" for layer in layers[:MAX_EXAMPLES]],
    )


def _component_missing(component: Component, units: Sequence[Unit], sides: Sequence[Companion]) -> Finding:
    parameters = total(unit.parameters for unit in units)
    size = f"{parameters:,} parameters" if parameters is not None else f"{len(units)} tensors"
    if component is Component.MTP:
        message = f"the reference's draft layer ({size}) is not there; it decodes without speculation"
        return finding("mtp-missing", component, message, expected=str(component), count=1)
    by_side = component.group is Group.MULTIMODAL
    beside = next((side.path for side in sides if side.role == "vision" and not side.counted), None)
    advice = "; its embeddings serve in its place" if component is Component.LM_HEAD else "; loaders fail"
    if by_side:
        advice = f"; {beside} may hold it: count it in (--companions)" if beside else "; a model without that sense"
    return finding(
        "component-missing",
        component,
        f"the reference has {component} ({size}), and no tensor of it is there{advice}",
        expected=str(component),
        severity=Severity.WARNING if by_side and component is not Component.PROJECTOR else None,
    )


def _of_units(code: str, units: Sequence[Unit], message: str, **details: Any) -> Finding:
    names = [unit.example for unit in units[:MAX_EXAMPLES]]
    count = sum(unit.tensors for unit in units)
    first = units[0]
    return finding(
        code, first.example, message, tensor=first.example, layer=first.layer, count=count, examples=names, **details
    )


def _added(differences: Differences) -> Iterator[Finding]:
    """Yield components, layers and single tensors that the reference lacks."""
    there = [*(pair.reference for pair in (*differences.pairs, *differences.misfits)), *differences.missing]
    components = {unit.component for unit in there}
    layers = {unit.layer for unit in there}
    new = dict.fromkeys(unit.component for unit in differences.added if unit.component not in components)
    new.pop(Component.OTHER, None)
    for component in new:
        units = [unit for unit in differences.added if unit.component is component]
        message = f"{component}, {sum(unit.stored_bytes for unit in units):,} bytes, is not in the reference"
        yield finding("extra-component", component, message, actual=str(component), count=len(units))
    rest = [unit for unit in differences.added if unit.component not in new]
    of_layers = [unit for unit in rest if unit.layer not in layers]
    if of_layers:
        more = sorted({unit.layer for unit in of_layers if unit.layer is not None})
        message = f"the reference has no layer {number_ranges(more)}"
        parameters = total(unit.parameters for unit in of_layers)
        yield _of_units("parameters-differ", of_layers, message, expected=0, actual=parameters)
    single = [unit for unit in rest if unit.layer in layers]
    if single:
        message = "a tensor that the reference does not have; loaders pass over it, or refuse it"
        parameters = total(unit.parameters for unit in single)
        yield _of_units("unexpected-tensor", single, message, expected=0, actual=parameters)


def pruning_finding(pruned: Any) -> Iterator[Finding]:
    """Yield that experts were left out.

    Args:
        pruned: by layer, how many the reference has and how many are there.
    """
    if not pruned:
        return
    layers = sorted(pruned)
    full, kept = pruned[layers[0]]
    fewest = min(count for _, count in pruned.values())
    most = max(count for _, count in pruned.values())
    said = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    where = "1 layer" if len(layers) == 1 else f"{len(layers)} layers"
    message = f"{said} of {full} routed experts are kept in {where}; expect other answers"
    yield finding(
        "experts-pruned",
        f"layer {layers[0]}",
        message,
        expected=full,
        actual=kept,
        layer=layers[0],
        count=len(layers),
        examples=[f"layer {layer}: {pruned[layer][1]} of {pruned[layer][0]}" for layer in layers[:MAX_EXAMPLES]],
    )


def _misfits(misfits: Iterable[Pair]) -> Iterator[Finding]:
    """Yield units of another size or shape, one finding for each kind of difference in each component."""
    groups: dict[tuple[str, Component], list[Pair]] = {}
    for pair in misfits:
        groups.setdefault((_kind(pair), pair.reference.component), []).append(pair)
    for (code, component), pairs in groups.items():
        expected, actual, what = _measured(code, component, pairs[0])
        yield _of_units(code, [pair.candidate for pair in pairs], what, expected=expected, actual=actual)


def _kind(pair: Pair) -> str:
    """Return the code for a unit of another size or shape."""
    its, mine = pair.reference, pair.candidate
    if (mine.experts or 0) < (its.experts or 0) and mine.each == its.each:
        return "expert-missing"
    if its.component is Component.ROUTER and its.shape and mine.shape and its.shape[1:] == mine.shape[1:]:
        return "expert-count-disagrees"
    return "shape-differs" if its.parameters == mine.parameters else "parameters-differ"


def _measured(code: str, component: Component, pair: Pair) -> tuple[object, object, str]:
    """Return what is compared of a unit, in the reference and in the candidate, and the message."""
    its, mine = pair.reference, pair.candidate
    if code == "expert-missing":
        message = f"{mine.experts} of the reference's {its.experts} experts are there"
        return its.experts, mine.experts, message
    if code == "expert-count-disagrees":
        expected, actual = (its.shape or (None,))[0], (mine.shape or (None,))[0]
        of_reference = f"that of the reference among {expected}" if expected != actual else "fewer of which are there"
        return expected, actual, f"the router chooses among {actual} experts, {of_reference}"
    if code == "shape-differs":
        return its.shape, mine.shape, f"another shape in {component} than in the reference"
    return its.parameters, mine.parameters, f"{component} holds another number of values than in the reference"


def requantizations_of(differences: Differences) -> tuple[Requantization, ...]:
    """Draw units together that changed alike: of one component, from one encoding to another."""
    groups: dict[tuple[Component, str, str], list[Pair]] = {}
    for pair in differences.pairs:
        if pair.is_stored_alike or (pair.recomputed and pair.reference.encodings == pair.candidate.encodings):
            continue
        key = pair.reference.component, pair.reference.encoding, pair.candidate.encoding
        groups.setdefault(key, []).append(pair)
    found = (_requantization(*key, pairs) for key, pairs in groups.items())
    return tuple(sorted(found, key=lambda item: (-item.bytes_before, item.component, item.before, item.after)))


def _requantization(component: Component, before: str, after: str, pairs: Sequence[Pair]) -> Requantization:
    def added(size: Callable[[Pair], int | None]) -> int | None:
        return total(size(pair) for pair in pairs)

    layers = {pair.candidate.layer for pair in pairs if pair.candidate.layer is not None}
    return Requantization(
        component=component,
        before=before,
        after=after,
        bytes_before=sum(pair.reference.stored_bytes for pair in pairs),
        bytes_after=sum(pair.candidate.stored_bytes for pair in pairs),
        parameters=added(lambda pair: pair.candidate.parameters),
        parameters_before=added(lambda pair: pair.reference.parameters),
        layers=tuple(sorted(layers)),
        lossless=after in LOSSLESS.get(before, ()) and not any(pair.recomputed for pair in pairs),
    )


def kept_of(differences: Differences) -> tuple[Kept, ...]:
    """Draw units together that did not change, of one component and encoding."""
    groups: dict[tuple[Component, str], list[Unit]] = {}
    for pair in differences.pairs:
        if pair.is_stored_alike:
            groups.setdefault((pair.candidate.component, pair.candidate.encoding), []).append(pair.candidate)
    found = [
        Kept(
            component=component,
            encoding=encoding,
            stored_bytes=sum(unit.stored_bytes for unit in units),
            parameters=total(unit.parameters for unit in units),
            layers=tuple(sorted({unit.layer for unit in units if unit.layer is not None})),
        )
        for (component, encoding), units in groups.items()
    ]
    return tuple(sorted(found, key=lambda item: (-item.stored_bytes, item.component, item.encoding)))


def requantization_findings(requantizations: Iterable[Requantization]) -> Iterator[Finding]:
    """Yield one finding for each."""
    for item in requantizations:
        place = f"layers: {number_ranges(item.layers)}" if item.layers else "outside of the layers"
        kept = ", every value kept" if item.lossless else ""
        before, after = _stored(item.before, item.bits_before), _stored(item.after, item.bits_after)
        message = f"{before} became {after}{kept}; {place}"
        yield finding(
            "component-requantized",
            item.component,
            message,
            expected=item.before,
            actual=item.after,
            count=max(len(item.layers), 1),
        )


def _stored(encoding: str, bits: float | None) -> str:
    return encoding if bits is None else f"{encoding} ({bits:.2f} bits a weight)"
