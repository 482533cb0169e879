"""The frozen values that results are made of."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from attrs import field, frozen

from kimi_inspect.components import Component, Group

__all__ = [
    "ByteRange",
    "Companion",
    "Finding",
    "LongArray",
    "Progress",
    "ProgressCallback",
    "Role",
    "Severity",
    "Shard",
    "TensorInfo",
    "Traffic",
]


class ByteRange(NamedTuple):
    """Bytes `begin` up to but not including `end`, from the start of a file."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """Bytes in the range."""
        return self.end - self.begin


class Role(StrEnum):
    """What a tensor is for. Only weights hold parameters."""

    WEIGHT = "weight"
    SCALE = "scale"
    ZERO_POINT = "zero_point"
    BOOKKEEPING = "bookkeeping"


class Severity(StrEnum):
    """How bad a finding is, from bad to harmless."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@frozen(kw_only=True)
class Finding:
    """Something worth knowing about a checkpoint: one cause, under the narrowest code.

    Attributes:
        code: what kind of fact; the list is in docs/findings.md.
        where: the place, for people.
        count: how many tensors, files or keys share this cause.
        examples: names of at most ten of them.
    """

    code: str
    severity: Severity
    where: str
    message: str
    expected: object = None
    actual: object = None
    file: str | None = None
    tensor: str | None = None
    layer: int | None = None
    count: int = 1
    examples: tuple[str, ...] = ()


@frozen(kw_only=True)
class Progress:
    """How far a long call is. `total` is None while it is not known."""

    phase: str
    done: int
    total: int | None
    unit: str
    path: str | None = None


ProgressCallback = Callable[[Progress], object]
"""Called from the caller's thread; an exception raised in it cancels the call."""


@frozen
class LongArray:
    """A GGUF metadata array that was stepped over: the type of its elements, and how many there are."""

    type: str
    length: int


@frozen(kw_only=True)
class Traffic:
    """What a call cost: requests sent, redirect hops included, and body bytes received."""

    requests: int = 0
    bytes_read: int = 0


@frozen(kw_only=True)
class Companion:
    """A side file: weights beside the checkpoint that are counted only on request."""

    path: str
    bytes: int
    role: str
    counted: bool


@frozen(kw_only=True)
class Shard:
    """One weight file, in bytes.

    `file_bytes + missing_bytes == header_bytes + tensor_bytes + padding_bytes + unread_bytes` always holds.

    Attributes:
        header_bytes: all before the data section, the 8-byte length word of safetensors included.
        tensor_bytes: what the header declares, beyond the end of the file too.
        padding_bytes: bytes of the data section that no tensor owns.
        missing_bytes: declared tensor bytes beyond the end of the file.
        unread_bytes: the whole size of a file whose header could not be read.
        sha256: digest of the whole file by the listing, 64 hex digits, or None.
        url: address pinned to the commit, unsigned; None for a local file.
        metadata: the `__metadata__` of safetensors, or the key-values of GGUF.
    """

    path: str
    file_bytes: int
    header_bytes: int = 0
    tensor_bytes: int = 0
    padding_bytes: int = 0
    missing_bytes: int = 0
    unread_bytes: int = 0
    sha256: str | None = None
    url: str | None = None
    metadata: dict[str, Any] | None = field(default=None, hash=False)


@frozen(kw_only=True)
class TensorInfo:
    """One tensor.

    Attributes:
        shape: logical, outermost first, packing undone; None if it cannot be known.
        stored_shape: as written in the file.
        dtype: as written in the file.
        encoding: what the values are stored in: `bf16`, `mxfp4`, …
        group_size: values that share one scale, or None.
        layer: 0-based, of the language stack, or None.
        block: 0-based, of a vision or audio stack, or None.
        expert: its number, or None.
        experts: how many experts it holds; None outside routed experts.
        parameters: logical values; 0 unless `role` is weight; None if it cannot be known.
        shard: path of its file.
        offset: of its first byte, from the start of the file.
    """

    name: str
    shape: tuple[int, ...] | None
    stored_shape: tuple[int, ...]
    dtype: str
    encoding: str
    group_size: int | None
    component: Component
    layer: int | None
    block: int | None
    expert: int | None
    experts: int | None
    role: Role
    stored_bytes: int
    parameters: int | None
    shard: str
    offset: int

    @property
    def byte_range(self) -> ByteRange:
        """Its bytes in the file, half-open."""
        return ByteRange(self.offset, self.offset + self.stored_bytes)

    @property
    def group(self) -> Group:
        """The group of its component."""
        return self.component.group
