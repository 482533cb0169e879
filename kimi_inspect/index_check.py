"""The index of a safetensors checkpoint held against the headers of its shards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from attrs import define, field, frozen

from kimi_inspect.causes import Told
from kimi_inspect.errors import UnsafePathError
from kimi_inspect.findings import MAX_EXAMPLES, finding
from kimi_inspect.index_file import IndexFormatError, IndexReader
from kimi_inspect.sidecars import ShardName
from kimi_inspect.sources import leads_outside
from kimi_inspect.sums import distinct, exact_sum
from kimi_inspect.table import TensorTable
from kimi_inspect.text import printable
from kimi_inspect.values import Finding, Role

__all__ = ["check_index"]

BATCH = 1 << 16


@define
class _Tally:
    """Names under one cause: how many, and the first of them with the file that the index gives."""

    count: int = 0
    examples: list[tuple[str, str]] = field(factory=list)

    def add(self, name: bytes, file: str) -> None:
        self.count += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((printable(name.decode(errors="backslashreplace")), file))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.examples]


def check_index(
    pieces: Iterable[bytes],
    path: str,
    table: TensorTable,
    *,
    listed: Collection[str],
    shards: Sequence[str],
    whole: bool,
    promised: Collection[str] = (),
    found: Sequence[Finding] = (),
) -> list[Finding]:
    """Compare an index with the tensors that are there.

    Args:
        pieces: its bytes, in order.
        path: its path.
        table: the tensors of the shards that were read.
        listed: paths of all files in the listing.
        shards: paths of the shards that were read.
        whole: these are all the shards of the set.
        promised: paths of files whose absence is told already.
        found: what is found without the index, and is not told again.

    Raises:
        UnsafePathError: it names a file outside of its repository.
    """
    told = Told(found, table)
    checker = _Checker(path, table, listed, shards, told)
    checker.promised.update(promised)
    reader = IndexReader()
    try:
        batch: list[tuple[bytes, bytes]] = []
        for piece in pieces:
            batch += reader.feed(piece)
            if len(batch) >= BATCH:
                checker.take(batch)
                batch = []
        checker.take(batch)
        reader.finish()
    except IndexFormatError as error:
        message = f"the index cannot be read: {error}; what it promises is not known"
        return [finding("index-unreadable", path, message, file=path)]
    if told.other_model:
        return []  # what it says of the model that is not there says nothing about the one that is
    totals = _Totals(reader.metadata or {}, path, table)
    comparable = whole and not checker.lacks_files and not checker.lacks_tensors and not told.changes_size
    return [*checker.findings(), *(totals.findings(checker.unindexed) if comparable else ())]


class _Checker:
    def __init__(
        self, path: str, table: TensorTable, listed: Collection[str], shards: Sequence[str], told: Told
    ) -> None:
        self._path = path
        self._folder = path.rpartition("/")[0]
        self._table = table
        self._listed = set(listed)
        self._shards = {shard: number for number, shard in enumerate(table.columns.paths)}
        self._read = set(shards)
        self._places: dict[bytes, str] = {}
        self.promised: set[str] = set()
        self._indexed = np.zeros(len(table.columns.kind), bool)
        self._absent, self._elsewhere, self._fileless = _Tally(), _Tally(), _Tally()
        self._told = told
        self.lacks_tensors = False

    @property
    def lacks_files(self) -> bool:
        """Whether it names files that are not there."""
        return self._fileless.count > 0

    @property
    def unindexed(self) -> list[int]:
        """The rows of tensors that it does not name."""
        rows = self._table.rows
        unnamed: list[int] = rows[~(self._indexed | self._table.columns.repeated)[rows]].tolist()
        return unnamed

    def take(self, batch: Sequence[tuple[bytes, bytes]]) -> None:
        """Hold some entries against the headers."""
        rows = self._table.rows_of([name for name, _ in batch])
        for (name, file), row in zip(batch, rows.tolist(), strict=True):
            place = self._places.get(file) or self._place(file)
            if row >= 0:
                self._indexed[row] = True
                if self._table.columns.shard[row] != self._shards.get(place, -1):
                    self._elsewhere.add(name, place)
            elif place in self._read:
                self.lacks_tensors = True
                if not self._told.is_missing(name.decode(errors="backslashreplace")):
                    self._absent.add(name, place)
            elif place not in self._listed:
                self._fileless.add(name, place)

    def _place(self, file: bytes) -> str:
        """Return the path of a file that the index names; refuse one that leads out of the repository."""
        text = file.decode(errors="backslashreplace")
        if leads_outside(text):
            raise UnsafePathError(
                "the index names a file outside of its repository", file=self._path, actual=repr(text)
            )
        self._places[file] = f"{self._folder}/{text}" if self._folder else text
        return self._places[file]

    def findings(self) -> Iterator[Finding]:
        """Yield what the index says and the headers do not, and the other way round."""
        if self._absent.count:
            message = "the index promises a tensor that no shard has; loaders leave it as it is in memory"
            yield self._finding("index-tensor-absent", self._absent, message)
        if self._elsewhere.count:
            message = "the index promises a tensor in one shard, and it lies in another; loaders that trust it fail"
            yield self._finding("index-stale", self._elsewhere, message)
        # The files of the set that are missing by their names, or by an earlier look at the index, are told already.
        unnamed = _Tally()
        for name, file in self._fileless.examples:
            if file not in self.promised and not self._is_sibling(file):
                unnamed.add(name.encode(), file)
        if unnamed.count:
            yield self._finding(
                "index-stale", unnamed, "the index names a file that is not there; it is of another state"
            )
        names = [name for name in map(self._table.name_of, self.unindexed) if not self._told.is_unexpected(name)]
        if names:
            message = "stored, but not in the index; loaders pass over it"
            yield finding("unindexed-tensors", self._path, message, tensor=names[0], count=len(names), examples=names)

    def _is_sibling(self, file: str) -> bool:
        name = ShardName.of(file)
        return any((name.set_name, name.count) == (one.set_name, one.count) for one in map(ShardName.of, self._read))

    def _finding(self, code: str, tally: _Tally, message: str) -> Finding:
        name, file = tally.examples[0]
        return finding(
            code, file, message, file=file, tensor=name, expected=file, count=tally.count, examples=tally.names
        )


TOLERANCE = 0.01
"""Share by which a number of parameters may be off: tools count buffers and parameters outside of modules or not."""


@frozen
class _Totals:
    """What an index declares of all tensors together."""

    declared: Mapping[str, Any]
    path: str
    table: TensorTable

    def findings(self, unindexed: Sequence[int]) -> Iterator[Finding]:
        """Compare it with the tensors; the bytes of those that the index does not name may be left out."""
        size = self.declared.get("total_size")
        stored = exact_sum(self.table.stored_bytes)
        left = TensorTable(self.table.columns, np.array(unindexed, np.int64))
        if type(size) in (int, float) and size not in (stored, stored - exact_sum(left.stored_bytes)):
            message = "the index declares another total size than the tensors have"
            yield finding("declared-total-wrong", self.path, message, file=self.path, expected=size, actual=stored)
        parameters: Any = self.declared.get("total_parameters")
        counts = self._counts() if type(parameters) is int else []
        if counts and not any(abs(parameters - count) <= TOLERANCE * count for count in counts):
            message = "the index declares another number of parameters than the tensors have, however one counts"
            yield finding(
                "declared-total-wrong", self.path, message, file=self.path, expected=parameters, actual=counts[0]
            )

    def _counts(self) -> list[int]:
        """Return what tools count as parameters: values, elements as stored, or those of matrices that are not packed.

        transformers leaves out what a form keeps as buffers, which may be the packed weights. None where a packing is
        not known.
        """
        columns = self.table.columns
        rows = self.table.rows[~columns.repeated[self.table.rows]]
        sorts, index = distinct(columns.look[rows].astype(np.int64) * len(columns.kinds) + columns.kind[rows])
        logical = weights = plain = everything = 0
        for code, count in zip(sorts.tolist(), np.bincount(index, minlength=len(sorts)).tolist(), strict=True):
            look, kind = columns.looks[code // len(columns.kinds)], columns.kinds[code % len(columns.kinds)]
            if look.parameters is None:
                return []
            elements = count * prod(kind.shape)
            everything += elements
            if look.role is Role.WEIGHT:
                logical += count * look.parameters
                weights += elements
                plain += elements if look.encoding == kind.dtype.lower() else 0
        return [logical, weights, everything, plain]
