"""The verbs of the command line: each takes parsed arguments, prints, and returns the exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_inspect.errors import InvalidSourceError, TransportError
from kimi_inspect.text import printable
from kimi_inspect.values import ProgressCallback, Severity

if TYPE_CHECKING:
    from kimi_inspect.manifest import Manifest
    from kimi_inspect.verification import FileVerification

__all__ = ["FAILED", "FOUND", "OK", "audit", "cache", "compare", "lock", "ls", "print_json", "show", "verify"]

OK, FOUND, FAILED = 0, 1, 2

SETS_SCHEMA = "kimi-inspect/sets/1"


def ls(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    """Show the sets of a source."""
    from kimi_inspect.opening import list_sets

    listing = list_sets(parsed.source, **options)
    if parsed.json:
        keys = ("name", "format", "file_count", "file_bytes", "default")
        sets = [{key: getattr(item, key) for key in keys} for item in listing.sets]
        print_json({"schema": SETS_SCHEMA, "source": listing.source, "commit": listing.commit, "sets": sets})
    else:
        from kimi_inspect.drawing import output
        from kimi_inspect.tables import show_sets

        show_sets(output(), listing)
    return OK


def show(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    """Show the report of a checkpoint."""
    from kimi_inspect.summarizing import inspect

    with _progress() as progress:
        report = inspect(
            parsed.source, check_index=parsed.check_index, progress=progress, **_opening(parsed), **options
        )
    if parsed.json:
        print_json(report.to_dict(by=[parsed.by]))
    else:
        from kimi_inspect.drawing import output
        from kimi_inspect.tables import show_report

        show_report(output(), report, parsed.by)
    return _status((item.severity for item in report.findings), parsed.fail_on)


def audit(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    """Show an audit."""
    from kimi_inspect import auditing
    from kimi_inspect.verdict import Verdict

    asked: dict[str, Any] = {**options, **_opening(parsed)}
    if parsed.check_index:  # else the size of the index decides
        asked["check_index"] = True
    with _progress() as progress:
        found = auditing.audit(parsed.source, parsed.against, progress=progress, **asked)
    if parsed.json:
        print_json(found.to_dict())
    else:
        from kimi_inspect.audit_tables import show_audit
        from kimi_inspect.drawing import output

        show_audit(output(), found)
    if found.verdict in (Verdict.DAMAGED, Verdict.DIFFERENT_MODEL):
        return FOUND
    return _status((item.severity for item in found.findings), parsed.fail_on)


def compare(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    """Show checkpoints side by side."""
    from kimi_inspect import comparing

    with _progress() as progress:
        table = comparing.compare(*parsed.sources, progress=progress, **_opening(parsed), **options)
    if parsed.json:
        print_json(_with_times(table.to_dict(), parsed.link) if parsed.link else table.to_dict())
    else:
        from kimi_inspect.comparison_table import show_compared
        from kimi_inspect.drawing import output

        show_compared(output(), table, link=parsed.link)
    unread = sum(row.error is not None for row in table.rows)
    if unread == len(table.rows):
        say("kimi-inspect: no checkpoint could be read")
        return FAILED
    counts = (severity for row in table.rows for severity, count in row.finding_counts.items() if count)
    return FOUND if unread else _status(counts, parsed.fail_on)


def lock(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    """Write a manifest."""
    from kimi_inspect import locking
    from kimi_inspect.checksums import format_checksums
    from kimi_inspect.tree import at_home
    from kimi_inspect.written import refuse_unwritable

    if not (parsed.output or parsed.json):
        raise InvalidSourceError("where to? give -o FILE, or --json for standard output")
    output = at_home(parsed.output) if parsed.output and parsed.output != "-" else None
    if output:
        refuse_unwritable(output)
        _refuse_other(output)
    with _progress() as progress:
        manifest = locking.lock(
            parsed.source,
            max_workers=parsed.jobs,
            journal=not parsed.no_journal,
            leave_out=output,
            companions=_companions(parsed),
            progress=progress,
            **options,
        )
    if parsed.output:
        as_list = parsed.sha256sums
        _put(output, format_checksums(manifest.checksums()) if as_list else manifest.to_json().encode())
    for told in _unknown(manifest):
        say(f"kimi-inspect: note: {told}")
    if parsed.json and parsed.output != "-":
        print_json(manifest.to_dict())
    elif output:
        _tell_locked(manifest, output)
    return OK


def _refuse_other(output: Path) -> None:
    """Refuse to write over what neither `lock` nor sha256sum has written: it may be a file of the folder itself."""
    from kimi_inspect.expectations import is_list
    from kimi_inspect.written import is_stream

    if output.exists() and not is_stream(output) and not is_list(output):
        problem = "there is another file, no manifest and no list; remove it, or choose another name"
        raise TransportError(problem, file=str(output), retryable=False)


def _put(output: Path | None, data: bytes) -> None:
    """Write to a path, or to standard output without one."""
    from kimi_inspect.written import write_out

    if output:
        write_out(output, data)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _tell_locked(manifest: Manifest, output: Path) -> None:
    """Say what was written; beside it, where that may be standard output."""
    from kimi_inspect.text import plural
    from kimi_inspect.written import is_stream

    total = sum(file.bytes for file in manifest.files)
    told = f"{plural(len(manifest.files), 'file')}, {plural(total, 'byte')}: {output}"
    if is_stream(output):
        say(told)
    else:
        print(printable(told))


def _unknown(manifest: Manifest) -> Iterator[str]:
    """Say of how many files a manifest tells less than it could."""
    from kimi_inspect.fronts import has_header
    from kimi_inspect.text import plural

    headers = [file.path for file in manifest.files if has_header(file.path) and file.header_sha256 is None]
    digests = sum(file.sha256 is None and file.git_sha1 is None for file in manifest.files)
    if headers:
        told = f"{plural(len(headers), 'header')} could not be read"
        yield f"{told}, so the manifest has no digest of {_them(headers)}: {', '.join(headers[:3])}"
    if digests:
        gated = "; a gated repository shows them to who has access" if manifest.commit else ""
        yield f"of {plural(digests, 'file')} no digest is known{gated}"


def _them(files: Sequence[str]) -> str:
    return "it" if len(files) == 1 else "them"


def verify(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    """Hold a folder against digests."""
    from kimi_inspect import verifying, watching
    from kimi_inspect.drawing import output
    from kimi_inspect.verification_table import file_lines, show_verification

    asked = {
        **options,
        "companions": _companions(parsed),
        "journal": not parsed.no_journal,
        "max_workers": parsed.jobs,
    }
    with _progress() as progress:
        if parsed.watch:
            console = output(stderr=True)

            def seen(file: FileVerification) -> None:
                for line in file_lines(file):
                    try:
                        console.print(line, soft_wrap=True)
                    except OSError as error:
                        say(f"kimi-inspect: {error}")

            found = watching.watch(
                parsed.folder, parsed.against, seen=seen, progress=progress, wait=time.sleep, **asked
            )
        else:
            found = verifying.verify(parsed.folder, parsed.against, quick=parsed.quick, progress=progress, **asked)
    if parsed.json:
        print_json(found.to_dict())
    else:
        show_verification(output(), found)
    return OK if found.ok else FOUND


def cache(parsed: argparse.Namespace, _options: dict[str, Any]) -> int:
    """Tell where headers are kept, or remove them."""
    from kimi_inspect.caching import cache_folder, cache_size, clear_cache

    if parsed.clear:
        print(f"{clear_cache():,} bytes removed")
    else:
        print(f"{cache_size():,} bytes in {cache_folder() or 'no folder: it cannot be made'}")
    return OK


def say(told: str) -> None:
    """Tell something on standard error; where that cannot be written, nobody listens, and the result stands."""
    try:
        print(printable(told), file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - it lives as long as the process


def print_json(document: dict[str, Any]) -> None:
    """Print a document on standard output."""
    json.dump(document, sys.stdout, indent=2)
    print()


def _with_times(document: dict[str, Any], link: int) -> dict[str, Any]:
    """Add to the JSON form of a comparison how long each checkpoint takes over a link."""
    from kimi_inspect.rates import seconds_for

    rows = [{**row, "download_seconds": seconds_for(row["file_bytes"], link)} for row in document["rows"]]
    return {**document, "link": {"bits_per_second": link}, "rows": rows}


def _opening(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the options that all verbs share that open a checkpoint."""
    return {
        "companions": _companions(parsed),
        "max_workers": parsed.jobs,
        "cache": not parsed.no_cache,
    }


def _companions(parsed: argparse.Namespace) -> bool | list[str]:
    """Return what `--companions` asks for: all side files, none, or globs."""
    return True if True in parsed.companions else parsed.companions or False


def _status(severities: Iterable[str], fail_on: str) -> int:
    failing = {Severity.ERROR} if fail_on == "error" else {Severity.ERROR, Severity.WARNING}
    return FOUND if any(severity in failing for severity in severities) else OK


@contextmanager
def _progress() -> Iterator[ProgressCallback | None]:
    """Give a callback that draws a bar on standard error, or None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    from kimi_inspect.bars import drawn_progress

    with drawn_progress(Console(stderr=True)) as tell:
        yield tell
