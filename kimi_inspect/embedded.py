"""A second file inside the first: what begins where no tensor owns the bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kimi_inspect.errors import SourceError
from kimi_inspect.findings import finding
from kimi_inspect.gguf import GgufHeader
from kimi_inspect.header import Header
from kimi_inspect.values import Finding

__all__ = ["find_embedded"]

MAX_PLACES = 8
"""Places that are looked at."""

FIRST_BYTES = 16
"""Bytes that are read at each."""

_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a ZIP archive, as PyTorch writes"),
    (b"\x7fELF", "a program (ELF)"),
    (b"MZ", "a program (MZ)"),
    *((bytes((0x80, protocol)), "a pickle") for protocol in range(2, 6)),
    (b"%PDF", "a PDF file"),
    (b"\x1f\x8b\x08", "a gzip archive"),
)
"""What files begin with, and what they are."""

_LENGTH = 8
"""Bytes of the length that a safetensors file begins with; a JSON object follows."""


def find_embedded(
    read: Callable[[int, int], bytes], header: Header, file: str, findings: Sequence[Finding]
) -> list[Finding]:
    """Look at what begins in the bytes that no tensor owns; nothing is read where there are none.

    Args:
        read: gives the bytes from one position up to another.
        header: the header of the file.
        file: its path.
        findings: what is known of it.

    Returns:
        The findings, those of unowned bytes replaced by `embedded-file` where a file begins in them.
    """
    kept = []
    left = MAX_PLACES
    for item in findings:
        places = _unowned(header, item.code)[:left]
        left -= len(places)
        try:
            begun = {place: kind for place in places if (kind := _kind(read, place, header.file_bytes))}
        except SourceError:
            begun = {}  # what was found is true as it stands
        kept.append(_told(file, begun) if begun else item)
    return kept


def _unowned(header: Header, code: str) -> list[int]:
    """Return where the bytes of a finding begin that no tensor owns, from the start of the file.

    Behind a GGUF tensor a file may begin at once, or where the padding ends.
    """
    if code not in ("gap", "trailing-bytes"):
        return []
    alignment = header.alignment if isinstance(header, GgufHeader) else 1
    ends = np.maximum.accumulate(np.append(0, header.end))
    aligned = -(-ends // alignment) * alignment
    before = np.flatnonzero(header.begin > aligned[:-1])[:MAX_PLACES] if code == "gap" else np.array([-1])
    places = np.unique([ends[before], aligned[before]]) + header.data_start
    return [place for place in places.tolist() if place < header.file_bytes]


def _kind(read: Callable[[int, int], bytes], place: int, file_bytes: int) -> str | None:
    """Say what begins at a place, by its first bytes."""
    first = read(place, min(place + FIRST_BYTES, file_bytes))
    length = int.from_bytes(first[:_LENGTH], "little")
    if first[_LENGTH:].startswith(b'{"') and 2 <= length <= file_bytes - place - _LENGTH:
        return "a safetensors file"
    return next((kind for magic, kind in _MAGICS if first.startswith(magic)), None)


def _told(file: str, begun: Mapping[int, str]) -> Finding:
    place, kind = next(iter(begun.items()))
    return finding(
        "embedded-file",
        file,
        f"{kind} begins at byte {place:,}, in bytes that belong to no tensor; do not load it, and tell the publisher",
        file=file,
        expected="no bytes between or after the tensors",
        actual=place,
        count=len(begun),
        examples=[f"{kind} at byte {place:,}" for place, kind in begun.items()],
    )
