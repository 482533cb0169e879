"""What stands beside the weights, or in their place: configs, other formats, the names of shards."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from attrs import frozen

from kimi_inspect.errors import NotWeightsError

__all__ = [
    "MAX_CONFIG_BYTES",
    "MAX_SHARDS",
    "ShardName",
    "parse_config",
    "parse_json",
    "refuse_other_formats",
    "split_siblings",
]

MAX_CONFIG_BYTES = 16 * 1024 * 1024
"""A longer config.json is not read: real ones have some kilobytes."""

MAX_SHARDS = 10_000
"""A name that promises more files than this is not believed."""

_SHARD = re.compile(
    r"(?P<stem>.+?)(?P<mark>[-_])(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?P<suffix>(?:\.[^.]+)?\.[^.]+)"
)

_LFS = re.compile(rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\r?\nsize ([0-9]{1,19})\s*")

_TEXT = re.compile(rb"[\t\n\r -~]{8,}")
"""Eight characters and more where eight bytes should tell a length."""

_OTHER_FORMATS = (
    (b"GGUF", "a GGUF file under another name"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"\x7fELF", "a program"),
    (b"<", "a web page or XML"),
    (b"{", "JSON, perhaps the error message of a server"),
)


def refuse_other_formats(head: bytes, file: str) -> None:
    """Raise if `head`, the first bytes of a supposed weight file, shows it to be something else.

    Raises:
        NotWeightsError: it is a Git LFS pointer (its digest and true size are then in the message), a web page, …
    """
    if pointer := _LFS.match(head):
        digest, size = pointer[1].decode(), int(pointer[2])
        raise NotWeightsError(
            f"a Git LFS pointer, not weights: the true file, sha256 {digest}, has {size:,} bytes; run `git lfs pull` "
            "or download it again",
            file=file,
            offset=0,
            expected=f"{size:,} bytes of weights",
            actual=f"a pointer to sha256 {digest}",
        )
    text = head.lstrip()
    what = next((what for magic, what in _OTHER_FORMATS if text.startswith(magic)), None)
    if what is None and _TEXT.fullmatch(head[:16]):
        what = "text, perhaps the message of a server"
    if what is not None:
        raise NotWeightsError(
            f"not weights but {what}; download it again", file=file, offset=0, actual=repr(bytes(head[:16]))
        )


def parse_json(data: bytes) -> Any:
    """Decode a side file; None if it is no JSON.

    As Python's own reader does, and with it all loaders, it takes `Infinity` and `NaN`, which JSON does not have.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return json.loads(data.decode())
        except (ValueError, RecursionError):
            return None


def parse_config(data: bytes) -> dict[str, Any] | None:
    """Decode a config.json; None if it is no JSON object."""
    config = parse_json(data)
    return config if isinstance(config, dict) else None


@frozen
class ShardName:
    """The name of one file of a checkpoint, taken apart.

    Attributes:
        folder: from the root, empty or with a `/` at its end.
        stem: what all files of the set share: ``model``.
        number: 1-based place in the set; None for a set of one file.
        count: how many files the name says there are, or None.
        suffix: ``.safetensors``, with a variant before it, if one stands behind the numbers: ``.fp16.safetensors``.
        digits: how many digits number and count are written with.
        mark: what stands before the number, ``-`` or ``_``.
    """

    folder: str
    stem: str
    number: int | None
    count: int | None
    suffix: str
    digits: tuple[int, int] = (5, 5)
    mark: str = "-"

    @classmethod
    def of(cls, path: str) -> ShardName:
        """Take `path` apart."""
        folder, slash, name = path.rpartition("/")
        match = _SHARD.fullmatch(name)
        if not match:
            stem, dot, suffix = name.rpartition(".")
            return cls(folder + slash, stem, None, None, dot + suffix)
        number, count = match["number"], match["count"]
        digits = len(number), len(count)
        return cls(folder + slash, match["stem"], int(number), int(count), match["suffix"], digits, match["mark"])

    @property
    def path(self) -> str:
        """The name put together again."""
        return self.sibling(self.number or 0)

    @property
    def set_name(self) -> str:
        """What the files of one set have in common: folder, stem and variant."""
        return self.folder + self.stem + self.suffix.rpartition(".")[0]

    def sibling(self, number: int) -> str:
        """Return the path of another file of the same set."""
        if self.count is None:
            return f"{self.folder}{self.stem}{self.suffix}"
        width, count_width = self.digits
        return f"{self.folder}{self.stem}{self.mark}{number:0{width}d}-of-{self.count:0{count_width}d}{self.suffix}"


def split_siblings(path: str) -> list[str]:
    """Return the paths of all files of the set that the name `path` says it is part of; empty for a single file."""
    name = ShardName.of(path)
    if name.count is None or not 0 < name.count <= MAX_SHARDS:
        return []
    return [name.sibling(number) for number in range(1, name.count + 1)]
