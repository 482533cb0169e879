"""Two checkpoints compared unit by unit, across formats: what is missing, what is other, what is stored otherwise.

What converters do is no difference: they part and join matrices, stack experts, reshape convolutions, multiply two
vectors into one, cut zero padding off. Which places that concerns is in `families.converted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import evolve, field, frozen

from kimi_inspect.components import Component
from kimi_inspect.families.converted import CUT_TO, FUSED, PRODUCTS, ROUTERS, SPARE_ROWS, is_buffer
from kimi_inspect.holdings import Unit

__all__ = ["Differences", "Pair", "differences_of"]

Key = tuple[str, int]
Units = dict[Key, Unit]


@frozen
class Pair:
    """A unit of the reference and what the candidate has in its place.

    Attributes:
        recomputed: a converter has made other values of these, such as a product.
    """

    reference: Unit
    candidate: Unit
    recomputed: bool = False

    @property
    def is_stored_alike(self) -> bool:
        """Whether both have the same values in the same encoding and as many bytes for each."""
        mine, its = self.candidate, self.reference
        if self.recomputed or mine.encodings != its.encodings or (mine.parameters is None) != (its.parameters is None):
            return False
        return mine.stored_bytes * (its.parameters or 1) == its.stored_bytes * (mine.parameters or 1)


@frozen(kw_only=True)
class Differences:
    """What two checkpoints have in common, and what not.

    Attributes:
        pairs: units of both that hold as many values.
        misfits: units of both that do not, or in another shape.
        missing: units that the candidate lacks.
        added: units that the reference lacks.
        pruned: by layer, experts of the reference and of the candidate, where the candidate has fewer.
    """

    pairs: tuple[Pair, ...]
    misfits: tuple[Pair, ...] = ()
    missing: tuple[Unit, ...] = ()
    added: tuple[Unit, ...] = ()
    pruned: Mapping[int, tuple[int, int]] = field(factory=dict, hash=False)


def differences_of(
    reference: Mapping[Key, Unit], candidate: Mapping[Key, Unit], *, tied: bool = False, converted: bool = False
) -> Differences:
    """Compare the units of two checkpoints.

    Args:
        reference: its units by place and number.
        candidate: likewise.
        tied: the reference's head uses its embeddings' weights, so that a build may leave it out.
        converted: names went through a converter, which may have some that are not known: what is left over on both
            sides of a block counts as the same, if it holds as many values.
    """
    its, mine = _without_buffers(reference), _without_buffers(candidate)
    for fused, parts in FUSED.items():
        for draft in ("", "mtp."):
            places = [f"{draft}{part}" for part in parts]
            _join(its, mine, f"{draft}{fused}", places)
            _join(mine, its, f"{draft}{fused}", places)
    recomputed = {*_multiply(its, mine), *_multiply(mine, its)}
    pruned = _pruned(its.values(), mine.values())
    pairs: list[Pair] = []
    misfits: list[Pair] = []
    for key in its.keys() & mine.keys():
        pair = Pair(its[key], mine[key], recomputed=key in recomputed)
        if _is_cut(pair, its):
            pairs.append(evolve(pair, recomputed=True))
        elif _fits(pair, pruned) or (converted and _has_spare_rows(pair)):
            pairs.append(pair)
        else:
            misfits.append(pair)
    shared = {("output", -1)} if tied else set()
    missing = {key: unit for key, unit in its.items() if key not in mine and key not in shared}
    added = {key: unit for key, unit in mine.items() if key not in its}
    pairs += _packed_apart(missing, added)
    if converted:
        pairs += _left_over(missing, added)
    return Differences(
        pairs=tuple(sorted(pairs, key=_order)),
        misfits=tuple(sorted(misfits, key=_order)),
        missing=tuple(missing.values()),
        added=tuple(added.values()),
        pruned=pruned,
    )


def _order(pair: Pair) -> tuple[int, str]:
    return pair.reference.number, pair.reference.place


def _without_buffers(units: Mapping[Key, Unit]) -> Units:
    return {key: unit for key, unit in units.items() if unit.parameters != 0 and not is_buffer(key[0])}


def _join(one: Units, other: Units, fused: str, parts: Sequence[str]) -> None:
    """Join parts of `other` where `one` has them in one; where a part is missing, so is the whole."""
    for place, number in [key for key in one if key[0] == fused and key not in other]:
        found = [other.pop((part, number)) for part in parts if (part, number) in other]
        if len(found) == len(parts):
            other[place, number] = _joined(place, found)


def _joined(place: str, parts: Sequence[Unit]) -> Unit:
    known = [part.parameters for part in parts if part.parameters is not None]
    return evolve(
        parts[0],
        place=place,
        tensors=sum(part.tensors for part in parts),
        parameters=sum(known) if len(known) == len(parts) else None,
        stored_bytes=sum(part.stored_bytes for part in parts),
        encodings=tuple(sorted({encoding for part in parts for encoding in part.encodings})),
        shape=None,
    )


def _multiply(one: Units, other: Units) -> Iterable[Key]:
    """Put one vector of `other` in the place of two where `one` has their product; return where."""
    for key in [key for key in one if key[0] in PRODUCTS and key not in other]:
        place, number = key
        factors = [(factor, number) for factor in PRODUCTS[place]]
        if all(factor in other for factor in factors):
            first, _ = (other.pop(factor) for factor in factors)
            other[key] = evolve(first, place=place)
            yield key


def _pruned(reference: Iterable[Unit], candidate: Iterable[Unit]) -> dict[int, tuple[int, int]]:
    its, mine = _experts(reference), _experts(candidate)
    return {layer: (count, mine[layer]) for layer, count in its.items() if mine.get(layer, count) < count}


def _experts(units: Iterable[Unit]) -> dict[int, int]:
    """Return the routed experts of each layer."""
    experts: dict[int, int] = {}
    for unit in units:
        if unit.layer is not None and unit.experts is not None:
            experts[unit.layer] = max(unit.experts, experts.get(unit.layer, 0))
    return experts


def _is_cut(pair: Pair, reference: Units) -> bool:
    """Whether one has left out the other's padding: it has just one value for each row of the matrix that tells."""
    cut, whole = sorted((pair.reference, pair.candidate), key=lambda unit: unit.parameters or 0)
    tells = reference.get((CUT_TO.get(cut.place, ""), cut.number))
    rows = tells.shape[0] if tells and tells.shape else None
    return cut.parameters is not None and cut.parameters == rows and rows < (whole.parameters or 0)


def _has_spare_rows(pair: Pair) -> bool:
    """Whether the candidate has left out a few last rows."""
    its, mine = pair.reference.shape, pair.candidate.shape
    if mine is None or its is None or len(its) != 2 or its[1:] != mine[1:]:
        return False
    return 0 < its[0] - mine[0] < SPARE_ROWS.get(pair.reference.place, 0)


def _fits(pair: Pair, pruned: Mapping[int, tuple[int, int]]) -> bool:
    """Whether both hold as many values in the same shape, experts that are left out aside; unknown numbers do."""
    its, mine = pair.reference, pair.candidate
    if its.layer is not None and its.layer in pruned:
        its = _pruned_to(its, *pruned[its.layer])
    is_counted = its.experts is not None and mine.experts is not None
    if is_counted and its.experts != mine.experts:
        return False
    if its.parameters is None or mine.parameters is None:
        return True
    if its.parameters != mine.parameters or its.uneven != mine.uneven:
        return False
    # What counts experts on one side alone has another shape there.
    if its.shape is None or mine.shape is None or (its.experts is None) != (mine.experts is None):
        return True
    # Convolutions have their channels first or last; converters also turn matrices, under another name.
    turned = sorted(its.shape) == sorted(mine.shape) and (len(its.shape) > 2 or its.example != mine.example)
    return turned or its.shape == mine.shape


def _pruned_to(unit: Unit, full: int, kept: int) -> Unit:
    """Return what is left of experts, or of the router over them, if of `full` only so many are kept."""
    parameters = None if unit.parameters is None else unit.parameters * kept // full
    if unit.experts == full:
        return evolve(unit, experts=kept, parameters=parameters)
    is_router = unit.component is Component.ROUTER or unit.place in ROUTERS
    if is_router and unit.shape and unit.shape[0] == full:
        sides = (kept, *unit.shape[1:]) if kept > 1 else unit.shape[1:]
        return evolve(unit, parameters=parameters, shape=sides)
    return unit


def _packed_apart(missing: Units, added: Units) -> list[Pair]:
    """Pair what is packed in a block in a way that no rule knows with the matrices that the other side has there.

    Which of the tensors of such a packing holds what, nothing tells.
    """
    pairs = []
    for packed, other in ((added, missing), (missing, added)):
        matrices = _by_block(other, lambda unit: unit.shape is None or len(unit.shape) > 1)
        for block, strange in _by_block(packed, lambda unit: unit.parameters is None).items():
            plain = matrices.get(block)
            if plain:
                its, mine = (plain, strange) if packed is added else (strange, plain)
                pairs.append(_paired(missing, its, added, mine))
    return pairs


def _by_block(units: Units, counts: Callable[[Unit], bool]) -> dict[tuple[Component, int], list[Key]]:
    blocks: dict[tuple[Component, int], list[Key]] = {}
    for key, unit in units.items():
        if counts(unit):
            blocks.setdefault((unit.component, unit.number), []).append(key)
    return blocks


def _left_over(missing: Units, added: Units) -> list[Pair]:
    """Pair what is left over on both sides: in one block, then in one component, if it holds as many values."""
    pairs = []
    for whole_component in (False, True):
        # What has the same place in another block has only been numbered otherwise: that is no other name.
        known = {place for place, _ in missing} & {place for place, _ in added} if whole_component else set()
        groups: dict[tuple[Component, int], tuple[list[Key], list[Key]]] = {}
        for side, units in enumerate((missing, added)):
            for key, unit in units.items():
                if unit.place not in known:
                    number = -1 if whole_component else unit.number
                    groups.setdefault((unit.component, number), ([], []))[side].append(key)
        for its, mine in groups.values():
            if its and mine:
                left, right = _lump(missing, its), _lump(added, mine)
                if left.parameters is not None and left.parameters == right.parameters:
                    pairs.append(_paired(missing, its, added, mine))
    return pairs


def _paired(missing: Units, its: Sequence[Key], added: Units, mine: Sequence[Key]) -> Pair:
    """Take units out of both sides, and pair each side's as one."""
    pair = Pair(_lump(missing, its), _lump(added, mine))
    for units, keys in ((missing, its), (added, mine)):
        for key in keys:
            del units[key]
    return pair


def _lump(units: Units, keys: Sequence[Key]) -> Unit:
    parts = [units[key] for key in keys]
    return _joined(parts[0].place, parts)
