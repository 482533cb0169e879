"""Tensors of one module put together: a packed weight and what stands beside it.

Modules are matched by pattern and by the number that the digits of their names make, and sorted by the shapes of their
tensors, so that each combination of shapes is judged once, however many modules have it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kimi_inspect.declared import Declaration, Spec
from kimi_inspect.forms import Verdict, decide
from kimi_inspect.header import Kind
from kimi_inspect.leaves import CONTAINERS, FOREIGN, HANGING, MAINS, MATRICES, OWN, ROLES, SCALES, TABLES
from kimi_inspect.patterns import Patterns
from kimi_inspect.sums import distinct

__all__ = ["Case", "Rows", "Stored", "cases_of"]

Rows = NDArray[np.int64]

PARTNERS = frozenset(ROLES).difference(MAINS)
"""Last parts of what stands beside a weight and is known."""

MAX_TENSORS = 64
"""Patterns of tensors in one module that are looked at."""


@frozen(eq=False, kw_only=True)
class Case:
    """Weights of one shape with the same tensors beside them, and what they turn out to be.

    Attributes:
        main: last part of their names.
        rows: the weights.
        partners: by last part, the tensors beside them, in the same order.
        extras: tensors in their modules that no form knows.
        kind: the weights' look in the file.
        spec: what the config declares of them.
        verdict: what they are; None where nothing determines it.
        text: pattern of the modules' names, with each number as 0.
        suspect: something shows that they may be packed.
    """

    main: str
    rows: Rows
    partners: Mapping[str, Rows]
    extras: Rows
    kind: Kind
    spec: Spec | None
    verdict: Verdict | None
    text: str
    suspect: bool

    @property
    def scale(self) -> str | None:
        """What their scale is called, if they have one."""
        return next((leaf for leaf in SCALES.get(self.main, ()) if leaf in self.partners), None)


@frozen(eq=False, kw_only=True)
class Stored:
    """The n tensors of a checkpoint as they are stored.

    Attributes:
        patterns: the patterns of their names.
        kinds, kind: the distinct looks in the file, and int32 [n] into them.
        name_of: gives the name of a row.
    """

    patterns: Patterns
    kinds: Sequence[Kind]
    kind: NDArray[np.int32]
    name_of: Callable[[int], str]


@frozen
class _Leaf:
    """One pattern of names taken apart: the module, the last part, and how many digits that has."""

    module: bytes
    leaf: str
    digits: int


_MASKED_LEAVES = sorted(((re.sub("[0-9]", "0", leaf).encode(), leaf) for leaf in ROLES), key=lambda item: -len(item[0]))


def _leaf_of(mask: bytes) -> _Leaf | None:
    for masked, leaf in _MASKED_LEAVES:
        ending = masked if leaf.startswith("_") else b"." + masked
        if mask.endswith(ending):
            return _Leaf(mask[: -len(ending)], leaf, masked.count(b"0"))
    return None


def cases_of(stored: Stored, declaration: Declaration) -> list[Case]:
    """Find all weights that may be packed, sorted by what they and the tensors beside them look like."""
    pairing = _Pairing(stored, declaration)
    return [
        case
        for module, leaves in pairing.modules().items()
        for main in (*MAINS, *(leaf for leaf in leaves if leaf not in ROLES and leaf != OWN))
        if main in leaves
        for case in pairing.cases(module, main, leaves)
    ]


class _Pairing:
    def __init__(self, stored: Stored, declaration: Declaration) -> None:
        self._patterns = stored.patterns
        self._kinds = stored.kinds
        self._kind = stored.kind
        self._name_of = stored.name_of
        self._declaration = declaration
        self._rows_of = stored.patterns.sorted_rows()
        self._packed = np.array(
            [one.dtype in CONTAINERS or one.dtype.startswith("F8_E") for one in stored.kinds] or [False]
        )
        self._matrices = np.array([one.dtype in CONTAINERS and len(one.shape) > 1 for one in stored.kinds] or [False])
        self._masks = sorted((mask, code) for code, mask in enumerate(stored.patterns.masks))

    def modules(self) -> dict[bytes, dict[str, tuple[int, int]]]:
        """Return for each pattern of modules the patterns of its tensors: by last part, code and digits to cut."""
        modules: dict[bytes, dict[str, tuple[int, int]]] = {}
        rest: dict[bytes, int] = {}
        for code, mask in enumerate(self._patterns.masks):
            leaf = _leaf_of(mask)
            if leaf is None:
                rest[mask] = code
            else:
                modules.setdefault(leaf.module, {})[leaf.leaf] = (code, leaf.digits)
        for module, leaves in modules.items():
            if module in rest and not leaves.keys().isdisjoint(HANGING):
                leaves[OWN] = (rest.pop(module), 0)
        for mask, code in rest.items():
            module, _, name = mask.rpartition(b".")
            if len(modules.get(module, ())) < MAX_TENSORS and self._is_foreign(module, name, code):
                modules.setdefault(module, {})[name.decode()] = (code, name.count(b"0"))
        return modules

    def _is_foreign(self, module: bytes, name: bytes, code: int) -> bool:
        """Whether tensors of a pattern that no form knows may hold what is packed in a form of their own.

        They are whole numbers in a matrix; and the config names a method that no rule knows, or their module has to
        have a matrix, and has something else beside them.
        """
        if not module or TABLES.search(name) or not self._matrices[self._kind[self._rows_of(code)]].any():
            return False
        return self._declaration.foreign or (module.endswith(MATRICES) and len(self._beside_of(module, code)) > 0)

    def cases(self, module: bytes, main: str, leaves: Mapping[str, tuple[int, int]]) -> Iterator[Case]:
        """Sort the weights of one pattern by what stands beside them, and judge each sort."""
        code, digits = leaves[main]
        rows = self._rows_of(code)
        if main == "_blocks":
            rows = rows[np.array([kind.dtype == "U8" for kind in self._kinds])[self._kind[rows]]]
        if main not in MAINS:
            rows = self._foreign(rows, digits, leaves)
        if not self._packed[self._kind[rows]].any():
            return
        keys = self._patterns.key[rows] // 10**digits
        columns = {leaf: self._beside(keys, *place) for leaf, place in leaves.items() if leaf in PARTNERS}
        specs, spec = self._specs(rows, main)
        others = self._beside_of(module, code)
        known = {place[0] for leaf, place in leaves.items() if leaf in ROLES or main not in ROLES}
        extras = [self._rows_of(code) for code in others if code not in known]
        for part in self._sorted(spec, rows, columns.values()):
            here = {leaf: column[part] for leaf, column in columns.items() if column[part[0]] >= 0}
            tensors = {leaf: self._kinds[self._kind[column[0]]] for leaf, column in here.items()}
            kind = tensors[main] = self._kinds[self._kind[rows[part[0]]]]
            declared = specs[spec[part[0]]]
            yield Case(
                main=main,
                rows=rows[part],
                partners=here,
                extras=np.concatenate(extras) if extras else np.zeros(0, np.int64),
                kind=kind,
                spec=declared,
                verdict=decide(main, tensors, declared),
                text=re.sub("[0-9]+", "0", module.decode()),
                suspect=main not in ("weight", *FOREIGN) or self._declaration.packed or bool(others),
            )

    def _foreign(self, rows: Rows, digits: int, leaves: Mapping[str, tuple[int, int]]) -> Rows:
        """Return of tensors that no form knows those in a weight's place: matrices, and no known weight beside."""
        keys = self._patterns.key[rows] // 10**digits
        alone = self._matrices[self._kind[rows]]
        for main in leaves.keys() & MAINS:
            alone = alone & (self._beside(keys, *leaves[main]) < 0)
        found: Rows = rows[alone]
        return found

    def _beside_of(self, module: bytes, code: int) -> list[int]:
        """Return the patterns of what stands in modules beside their weight, and is no matrix or bias by its name."""
        return [
            other
            for mask, other in self._of_module(module)
            if other != code and not mask.endswith((b"weight", b"bias", b"_proj"))
        ]

    def _beside(self, keys: NDArray[np.int64], code: int, digits: int) -> Rows:
        """Return for each module the row of its tensor of another pattern; -1 where it has none."""
        there = self._rows_of(code)
        place = _match(keys, self._patterns.key[there] // 10**digits)
        return np.where(place < 0, -1, there[place] if len(there) else -1)

    def _sorted(self, spec: NDArray[np.int32], rows: Rows, columns: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the places of weights that look alike, they and all beside them."""
        sort = spec.astype(np.int64) * len(self._kinds) + self._kind[rows]
        for column in columns:
            _, sort = distinct(sort)
            sort = sort * (len(self._kinds) + 1) + np.where(column < 0, 0, self._kind[column] + 1)
        _, sort = distinct(sort)
        order = np.argsort(sort, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(sort[order])) + 1)

    def _of_module(self, module: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the patterns of all tensors of a module, those of modules inside it left out."""
        begin = module + b"."
        at = bisect_left(self._masks, (begin, 0))
        inside = takewhile(lambda item: item[0].startswith(begin), self._masks[at : at + MAX_TENSORS])
        return (item for item in inside if b"." not in item[0][len(begin) :] or item[0].startswith(begin + b"weight."))

    def _specs(self, rows: Rows, main: str) -> tuple[list[Spec | None], NDArray[np.int32]]:
        """Return the forms that the config declares for these weights, and int32 [n] into them."""
        declaration = self._declaration
        if declaration.uniform:
            return [declaration.default], np.zeros(len(rows), np.int32)
        found: dict[Spec | None, int] = {}
        ending = main if main == OWN or main.startswith("_") else f".{main}"
        specs = [
            found.setdefault(declaration.of(self._name_of(row).removesuffix(ending)), len(found))
            for row in rows.tolist()
        ]
        return list(found), np.array(specs, np.int32)


def _match(wanted: NDArray[np.int64], keys: NDArray[np.int64]) -> Rows:
    """Return for each value wanted where it stands in `keys`, -1 if nowhere."""
    if np.array_equal(wanted, keys):
        return np.arange(len(keys))
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys, wanted, sorter=order)
    found = place < len(keys)
    found[found] = keys[order[place[found]]] == wanted[found]
    return np.where(found, order[np.where(found, place, 0)] if len(keys) else -1, -1)
