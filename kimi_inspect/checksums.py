r"""Lists of SHA-256 as the `sha256sum` program writes and reads them.

A line is the digest, a blank, a blank or `*` (text or binary, which is the same), and the name; or, with `--tag`,
`SHA256 (name) = digest`. A backslash before it says that `\\`, `\n` and `\r` in the name stand for a backslash, a line
feed and a carriage return. Lines of another form are passed over, as that program does, and counted; one that is cut or
damaged is refused, since a list without it would say less than it seems to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from attrs import frozen

from kimi_inspect.errors import InvalidSourceError, UnsafePathError
from kimi_inspect.sources import leads_outside

__all__ = ["BOM", "Checksums", "format_checksums", "parse_checksums"]

_PLAIN = re.compile(rb"(?P<digest>[0-9A-Fa-f]{64})(?:[ \t][ *]|[ \t](?![ *]))(?P<name>.+)", re.DOTALL)
_TAGGED = re.compile(rb"SHA256 ?\((?P<name>.+)\)[ \t]*=[ \t]*(?P<digest>[0-9A-Fa-f]{64})[ \t]*", re.DOTALL)
_MEANT = re.compile(
    rb"[ \t]*\\?(?:[^ \t/:]{33,}[ \t]+[^ \t]|SHA256 ?\()|.*(?:[0-9A-Fa-f]{33}|[\0-\x08\x0e-\x1f])", re.DOTALL
)
"""A line that was meant as a checksum of this kind, or is no text at all. Those of MD5 are shorter."""

BOM = b"\xef\xbb\xbf"
"""What some editors put before a text in UTF-8."""

_ESCAPE = re.compile(rb"\\(.?)", re.DOTALL)
_ESCAPED = {b"\\": b"\\", b"n": b"\n", b"r": b"\r"}


@frozen(kw_only=True)
class Checksums:
    """A list of SHA-256.

    Attributes:
        files: path and digest, in the order of the list.
        passed_over: how many lines were no checksum.
    """

    files: tuple[tuple[str, str], ...]
    passed_over: int = 0


def parse_checksums(data: bytes, *, file: str | None = None) -> Checksums:
    """Read a list.

    Raises:
        InvalidSourceError: it holds no checksum, two for one path, or a line that was meant to be one.
        UnsafePathError: a path leads out of the folder.
    """
    found: dict[str, str] = {}
    passed_over = 0
    damaged: tuple[int, bytes] | None = None
    lines = data.removeprefix(BOM).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line or line.startswith(b"#"):
            continue
        entry = _entry(line)
        if entry is None:
            if _MEANT.match(line) or (number == len(lines) and not line.startswith(b"-----")):
                damaged = damaged or (number, line)
            passed_over += 1
            continue
        path, digest = _safe(entry[0], file), entry[1]
        if found.setdefault(path, digest) != digest:
            raise InvalidSourceError("the list has two digests for one path", file=file, actual=repr(path))
    if not found:
        raise InvalidSourceError("neither a manifest nor a list of SHA-256 as sha256sum writes it", file=file)
    if damaged:
        shown = repr(damaged[1][:100].decode(errors="replace"))
        raise InvalidSourceError(f"line {damaged[0]:,} of the list is cut or damaged", file=file, actual=shown)
    return Checksums(files=tuple(found.items()), passed_over=passed_over)


def _entry(line: bytes) -> tuple[str, str] | None:
    line = line.lstrip(b" \t").removesuffix(b"\r")
    escaped = line.startswith(b"\\")
    line = line[escaped:]
    match = _TAGGED.fullmatch(line) or _PLAIN.fullmatch(line)
    if match is None:
        return None
    name = _unescaped(match["name"]) if escaped else match["name"]
    return None if name is None else (os.fsdecode(name), match["digest"].decode().lower())


def _unescaped(name: bytes) -> bytes | None:
    """Undo the escapes; None where a backslash stands for nothing."""
    if any(found[1] not in _ESCAPED for found in _ESCAPE.finditer(name)):
        return None
    return _ESCAPE.sub(lambda found: _ESCAPED[found[1]], name)


def _safe(path: str, file: str | None) -> str:
    """Return a path without the `./` that `find` puts before it."""
    inner = re.sub(r"^(?:\./+)+", "", path)
    # On systems where a backslash is a letter like any other, a name may hold it.
    if leads_outside(inner if os.sep == "\\" else inner.replace("\\", "_")):
        raise UnsafePathError("a path in the list is no plain path below the folder", file=file, actual=repr(path))
    return inner


def format_checksums(files: Iterable[tuple[str, str]]) -> bytes:
    """Write a list of path and SHA-256, as `sha256sum` does."""
    return b"".join(_line(os.fsencode(path), digest.encode()) for path, digest in files)


def _line(name: bytes, digest: bytes) -> bytes:
    name = b"./-" if name == b"-" else name  # alone it is the program's standard input
    written = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"\\" if written != name else b"") + digest + b"  " + written + b"\n"
