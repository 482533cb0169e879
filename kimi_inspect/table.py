"""All tensors of a checkpoint in columns; one Python object a tensor only for those that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np
from attrs import astuple, frozen
from numpy.typing import NDArray

from kimi_inspect.components import Component, Group
from kimi_inspect.header import Kind
from kimi_inspect.names import Names
from kimi_inspect.patterns import Patterns
from kimi_inspect.values import Role, TensorInfo

__all__ = ["COMPONENTS", "Columns", "Look", "TensorTable"]

COMPONENTS = tuple(Component)
"""Components by the code that columns hold."""


@frozen(kw_only=True)
class Look:
    """What a tensor means, apart from its place: few looks serve all tensors. See `TensorInfo` for the fields."""

    encoding: str
    role: Role
    shape: tuple[int, ...] | None
    parameters: int | None
    group_size: int | None = None


@frozen(eq=False, kw_only=True)
class Columns:
    """What is known of n tensors, in the order of shard and offset.

    Attributes:
        names: the names of each shard.
        patterns: the patterns of all names.
        paths: the path of each shard.
        kinds, kind: the distinct looks in the files, and int32 [n] into them.
        looks, look: the distinct meanings, and int32 [n] into them.
        shard: int32 [n], into `names` and `paths`.
        component: uint8 [n], into `COMPONENTS`.
        layer, block, expert, experts: int32 [n], -1 for None.
        begin, end: int64 [n], in bytes from the start of the file.
        repeated: bool [n], a tensor of the same name has come before.
    """

    names: tuple[Names, ...]
    patterns: Patterns
    paths: tuple[str, ...]
    kinds: tuple[Kind, ...]
    looks: tuple[Look, ...]
    kind: NDArray[np.int32]
    look: NDArray[np.int32]
    shard: NDArray[np.int32]
    component: NDArray[np.uint8]
    layer: NDArray[np.int32]
    block: NDArray[np.int32]
    expert: NDArray[np.int32]
    experts: NDArray[np.int32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    repeated: NDArray[np.bool_]

    def __attrs_post_init__(self) -> None:
        for value in astuple(self, recurse=False):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)


class TensorTable:
    """The tensors of a checkpoint, or some of them, ordered by shard and offset.

    Length, iteration, `table[3]` and `table["name"]` give `TensorInfo`; a slice and `select` give a table. Every field
    of `TensorInfo` is a read-only column of the same name, -1 standing for None where the column holds integers.
    """

    def __init__(self, columns: Columns, rows: NDArray[np.int64] | None = None) -> None:
        self._columns = columns
        self._rows = np.arange(len(columns.kind)) if rows is None else rows
        self._whole = rows is None
        self._first = list(accumulate(map(len, columns.names), initial=0))
        self._by_hash: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def columns(self) -> Columns:
        """The columns of the whole checkpoint that this table shows, or shows a part of."""
        return self._columns

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of `columns` that this table shows."""
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of bytes differ from process to process.
        return {**self.__dict__, "_by_hash": None}

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<TensorTable of {len(self):,} tensors in {len(self._columns.paths)} shards>"

    def __iter__(self) -> Iterator[TensorInfo]:
        return (self._info(row) for row in self._rows.tolist())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    @overload
    def __getitem__(self, key: int | str) -> TensorInfo: ...

    @overload
    def __getitem__(self, key: slice) -> TensorTable: ...

    def __getitem__(self, key: int | str | slice) -> TensorInfo | TensorTable:
        if isinstance(key, slice):
            return TensorTable(self._columns, self._rows[key])
        if isinstance(key, str):
            row = self._find(key)
            if row is None:
                raise KeyError(key)
            return self._info(row)
        return self._info(int(self._rows[key]))

    def select(
        self,
        *,
        component: Component | str | None = None,
        group: Group | str | None = None,
        layer: int | None = None,
        role: Role | str | None = None,
        encoding: str | None = None,
        shard: str | None = None,
    ) -> TensorTable:
        """Return the tensors for which every argument given holds, in the same order. Names are not copied."""
        keep = np.ones(len(self), bool)
        if component is not None:
            keep &= self._is(self._columns.component, COMPONENTS, lambda item: item == component)
        if group is not None:
            keep &= self._is(self._columns.component, COMPONENTS, lambda item: item.group == group)
        if layer is not None:
            keep &= (self.layer == layer) & (self.layer >= 0)
        if role is not None:
            keep &= self._is(self._columns.look, self._columns.looks, lambda look: look.role == role)
        if encoding is not None:
            keep &= self._is(self._columns.look, self._columns.looks, lambda look: look.encoding == encoding)
        if shard is not None:
            keep &= self._is(self._columns.shard, self._columns.paths, lambda path: path == shard)
        return TensorTable(self._columns, self._rows[keep])

    def of_shards(self, paths: Collection[str]) -> TensorTable:
        """Return the tensors of some shards, in the same order."""
        return TensorTable(
            self._columns, self._rows[self._is(self._columns.shard, self._columns.paths, paths.__contains__)]
        )

    @property
    def name(self) -> NDArray[np.object_]:
        """Names as str; made anew at each call."""
        return _objects(map(self.name_of, self._rows.tolist()))

    @property
    def dtype(self) -> NDArray[np.object_]:
        """Types as written in the file, as str."""
        return self._named(self._columns.kind, [kind.dtype for kind in self._columns.kinds])

    @property
    def stored_shape(self) -> NDArray[np.object_]:
        """Shapes as written in the file, as tuples."""
        return self._named(self._columns.kind, [kind.shape for kind in self._columns.kinds])

    @property
    def shape(self) -> NDArray[np.object_]:
        """Logical shapes, as tuples or None."""
        return self._named(self._columns.look, [look.shape for look in self._columns.looks])

    @property
    def encoding(self) -> NDArray[np.object_]:
        """Encodings, as str."""
        return self._named(self._columns.look, [look.encoding for look in self._columns.looks])

    @property
    def role(self) -> NDArray[np.object_]:
        """Roles, as `Role`."""
        return self._named(self._columns.look, [look.role for look in self._columns.looks])

    @property
    def group_size(self) -> NDArray[np.int64]:
        """Values that share one scale."""
        return self._numbered([look.group_size for look in self._columns.looks])

    @property
    def parameters(self) -> NDArray[np.int64]:
        """Logical values."""
        return self._numbered([look.parameters for look in self._columns.looks])

    @property
    def component(self) -> NDArray[np.object_]:
        """Components, as `Component`."""
        return self._named(self._columns.component, COMPONENTS)

    @property
    def group(self) -> NDArray[np.object_]:
        """Groups, as `Group`."""
        return self._named(self._columns.component, [component.group for component in COMPONENTS])

    @property
    def shard(self) -> NDArray[np.object_]:
        """Paths of the files, as str."""
        return self._named(self._columns.shard, self._columns.paths)

    @property
    def layer(self) -> NDArray[np.int32]:
        """Layers of the language stack, from 0."""
        return self._column(self._columns.layer)

    @property
    def block(self) -> NDArray[np.int32]:
        """Blocks of a vision or audio stack, from 0."""
        return self._column(self._columns.block)

    @property
    def expert(self) -> NDArray[np.int32]:
        """Numbers of experts."""
        return self._column(self._columns.expert)

    @property
    def experts(self) -> NDArray[np.int32]:
        """How many experts each tensor holds."""
        return self._column(self._columns.experts)

    @property
    def offset(self) -> NDArray[np.int64]:
        """First bytes, from the start of the file."""
        return self._column(self._columns.begin)

    @property
    def stored_bytes(self) -> NDArray[np.int64]:
        """Sizes in bytes."""
        return self._column(self._columns.end - self._columns.begin)

    @property
    def byte_range(self) -> NDArray[np.int64]:
        """First byte and one past the last, int64 [n, 2]."""
        ranges = np.stack([self._columns.begin[self._rows], self._columns.end[self._rows]], axis=1)
        return _frozen(ranges)

    def _column(self, values: NDArray[Any]) -> NDArray[Any]:
        return _frozen(values.view() if self._whole else values[self._rows])

    def _named(self, codes: NDArray[Any], items: Iterable[object]) -> NDArray[np.object_]:
        return _frozen(_objects(items)[self._column(codes)]) if len(self) else _objects([])

    def _numbered(self, items: Iterable[int | None]) -> NDArray[np.int64]:
        values = np.array([-1 if item is None else item for item in items] or [0], np.int64)
        return _frozen(values[self._column(self._columns.look)])

    def _is(self, codes: NDArray[Any], items: Iterable[Any], holds: Callable[[Any], bool]) -> NDArray[np.bool_]:
        answers = np.array([holds(item) for item in items] or [False], np.bool_)
        chosen: NDArray[np.bool_] = answers[self._column(codes)]
        return chosen

    def _raw(self, row: int) -> bytes:
        shard = int(self._columns.shard[row])
        return self._columns.names[shard].raw(row - self._first[shard])

    def name_of(self, row: int) -> str:
        """Return the name in a row of `columns`."""
        return self._raw(row).decode()

    def rows_of(self, names: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the first row of each name, -1 for one that is not there; names are UTF-8."""
        hashes, rows = self._hashes()
        wanted = np.fromiter(map(hash, names), np.int64, len(names))
        place = np.searchsorted(hashes, wanted)
        found = np.full(len(names), -1, np.int64)
        for index in np.flatnonzero(place < len(hashes)).tolist():
            at = int(place[index])
            while at < len(hashes) and hashes[at] == wanted[index]:
                if self._raw(int(rows[at])) == names[index]:
                    found[index] = rows[at]
                    break
                at += 1
        return found

    def _hashes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sorted hashes of all names, and their rows; made at the first call."""
        if self._by_hash is None:
            raw = chain.from_iterable(names.split(names.blob) for names in self._columns.names)
            hashes = np.fromiter(map(hash, raw), np.int64, len(self._columns.kind))[self._rows]
            order = np.argsort(hashes, kind="stable")
            self._by_hash = hashes[order], self._rows[order]
        return self._by_hash

    def _find(self, name: str) -> int | None:
        row = int(self.rows_of([name.encode(errors="surrogatepass")])[0])
        return None if row < 0 else row

    def _info(self, row: int) -> TensorInfo:
        columns = self._columns
        kind, look = columns.kinds[columns.kind[row]], columns.looks[columns.look[row]]
        return TensorInfo(
            name=self.name_of(row),
            shape=look.shape,
            stored_shape=kind.shape,
            dtype=kind.dtype,
            encoding=look.encoding,
            group_size=look.group_size,
            component=COMPONENTS[columns.component[row]],
            layer=_known(columns.layer[row]),
            block=_known(columns.block[row]),
            expert=_known(columns.expert[row]),
            experts=_known(columns.experts[row]),
            role=look.role,
            stored_bytes=int(columns.end[row] - columns.begin[row]),
            parameters=look.parameters,
            shard=columns.paths[columns.shard[row]],
            offset=int(columns.begin[row]),
        )


def _known(value: np.integer[Any]) -> int | None:
    return None if value < 0 else int(value)


def _objects(items: Iterable[object]) -> NDArray[np.object_]:
    """Make an array of objects; numpy would make tuples of equal length a table."""
    listed = list(items)
    array = np.empty(len(listed), object)
    for index, item in enumerate(listed):
        array[index] = item
    return _frozen(array)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array
