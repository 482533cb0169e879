"""What is wrong with a GGUF header whose numbers are right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kimi_inspect.findings import finding
from kimi_inspect.gguf_types import FORKED_TYPES
from kimi_inspect.header import Header, place_findings, type_findings
from kimi_inspect.text import quoted
from kimi_inspect.values import Finding, Severity

__all__ = ["gguf_findings"]

MAX_NAME_BYTES = 63
"""llama.cpp refuses a longer name (GGML_MAX_NAME, less the closing NUL)."""

_FOREIGN = frozenset(str(number) for number in FORKED_TYPES)


def gguf_findings(header: Header, file: str, alignment: int) -> list[Finding]:
    """Find what is wrong with a header whose numbers are right."""
    return [
        *type_findings(header, file, foreign=_FOREIGN),
        *_alignment_findings(header, file, alignment),
        *_name_findings(header, file),
        *place_findings(header, file, alignment=alignment),
        *_beyond_findings(header, file),
    ]


def _alignment_findings(header: Header, file: str, alignment: int) -> Iterator[Finding]:
    if alignment & (alignment - 1):
        message = f"an alignment of {alignment} is no power of two; llama.cpp refuses the file"
        yield finding("misaligned", file, message, file=file, actual=alignment, severity=Severity.WARNING)
    rows = np.flatnonzero(header.begin % alignment)
    if rows.size:
        names = header.examples(rows)
        message = f"tensors start where the alignment of {alignment} does not allow it; llama.cpp refuses the file"
        yield finding(
            "misaligned",
            file,
            message,
            file=file,
            tensor=names[0],
            expected=f"a multiple of {alignment}",
            actual=int(header.begin[rows[0]]),
            count=len(rows),
            examples=names,
        )


def _name_findings(header: Header, file: str) -> Iterator[Finding]:
    lengths = header.names.ends - header.names.starts
    rows = np.flatnonzero(lengths > MAX_NAME_BYTES)
    if rows.size:
        names = header.examples(rows)
        yield finding(
            "name-too-long",
            file,
            f"a name has more than {MAX_NAME_BYTES} bytes; llama.cpp refuses the file",
            file=file,
            tensor=names[0],
            expected=f"at most {MAX_NAME_BYTES} bytes",
            actual=int(lengths[rows[0]]),
            count=len(rows),
            examples=names,
        )


def _beyond_findings(header: Header, file: str) -> Iterator[Finding]:
    """Find a tensor of unknown size that starts beyond the end of the file."""
    unknown = np.array([kind.nbytes is None for kind in header.kinds] or [False])[header.kind]
    rows = np.flatnonzero(unknown & (header.begin > header.data_bytes))
    if rows.size and not header.missing_bytes:
        name = header.names[int(rows[0])]
        message = f"the file ends before {quoted(name)}, whose size is not known; download it again"
        expected = header.data_start + int(header.begin[rows[0]])
        yield finding("truncated", file, message, file=file, tensor=name, expected=expected, actual=header.file_bytes)
