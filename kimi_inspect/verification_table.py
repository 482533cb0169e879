"""A verification for people: the verdict first, then everything that is not as expected, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kimi_inspect.drawing import gigabytes, text_of
from kimi_inspect.text import plural, printable
from kimi_inspect.verification import FileVerification, Status, Verification

__all__ = ["file_lines", "show_verification"]

NAMED = 20
"""Harmless files that are named one by one."""

_WHAT_NOW = {
    Status.MISMATCH: "fetch it again",
    Status.SIZE_DIFFERS: "fetch it again",
    Status.MISSING: "fetch it",
    Status.UNFINISHED: "let the download finish, or start it again",
    Status.DIGEST_UNKNOWN: "verify against a manifest or a list that tells it",
    Status.UNREADABLE: "see who may read it, or what stands in its place",
}


def show_verification(console: Console, found: Verification) -> None:
    """Print a verification."""
    console.print(_verdict(found))
    commit = f" at {found.commit[:12]}" if found.commit else ""
    console.print(text_of(f"{found.folder} against {found.against}{commit}"))
    for file in found.files:
        if not file.ok:
            for line in file_lines(file):
                console.print(line, soft_wrap=True)
    for note in found.notes:
        console.print(text_of(f"note: {note}"), soft_wrap=True)
    for status, what in ((Status.DIGEST_UNKNOWN, "no digest is known"), (Status.EXTRA, "nobody expects it")):
        _show_harmless(console, what, [file for file in found.having(status) if file.ok])


def _verdict(found: Verification) -> Text:
    expected = [file for file in found.files if file.status != Status.EXTRA]
    wrong = Counter(str(file.status) for file in expected if not file.ok)
    if wrong:
        counts = ", ".join(f"{count:,} {status}" for status, count in wrong.items())
        said = f": {sum(wrong.values()):,} of {plural(len(expected), 'file')}: {counts}"
        return Text("failed", style="bold red").append(said + _hashed(found, "; "))
    if found.quick:
        doubtful = sum(file.note is not None for file in expected)
        told = f"; of {doubtful:,} the header cannot be read" if doubtful else ""
        looks = "looks" if len(expected) == 1 else "look"
        said = f": {plural(len(expected), 'file')} {looks} as expected{told}"
        return Text("not hashed", style="bold yellow").append(said)
    return Text("ok", style="bold green").append(f": {plural(len(expected), 'file')}{_hashed(found, ', ')}")


def _hashed(found: Verification, before: str) -> str:
    remembered = f", {_amount(found.bytes_remembered)} hashed before" if found.bytes_remembered else ""
    return "" if found.quick else f"{before}{_amount(found.bytes_hashed)} hashed{remembered}"


def _amount(nbytes: int) -> str:
    return f"{gigabytes(nbytes)} GB" if nbytes >= 10**7 else plural(nbytes, "byte")


def file_lines(file: FileVerification) -> Iterator[Text]:
    """Write what is said of one file: what was expected, what was found, and what to do."""
    style = "bold green" if file.ok else "bold red"
    note = f" ({file.note})" if file.note else ""
    yield Text().append(f"{file.status}: ", style=style).append(printable(f"{file.path}{note}"))
    if file.ok:
        return
    if file.actual is not None:
        kind = file.algorithm or "bytes"
        yield text_of(f"    {kind} expected {_value(file.expected)}, got {_value(file.actual)}")
    yield text_of(f"    {file.command or _WHAT_NOW[Status(file.status)]}")


def _value(value: str | int | None) -> str:
    return f"{value:,}" if isinstance(value, int) else value or "none"


def _show_harmless(console: Console, what: str, files: Sequence[FileVerification]) -> None:
    if not files:
        return
    names = ", ".join(printable(file.path) for file in files[:NAMED])
    more = f" and {len(files) - NAMED:,} more" if len(files) > NAMED else ""
    console.print(text_of(f"{files[0].status} ({what}): {names}{more}", "dim"), soft_wrap=True)
