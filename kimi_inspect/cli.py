"""The command line: parses arguments, prints, sets the exit status; what it prints is made elsewhere."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from kimi_inspect import __version__
from kimi_inspect.errors import InvalidSourceError, KimiInspectError, SourceError, TransportError
from kimi_inspect.text import printable
from kimi_inspect.values import Finding, Progress, ProgressCallback, Severity

__all__ = ["main"]

OK, FOUND, FAILED, INTERRUPTED = 0, 1, 2, 130

ERROR_SCHEMA = "kimi-inspect/error/1"
SETS_SCHEMA = "kimi-inspect/sets/1"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSourceError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status: 0 fine, 1 findings, 2 cannot read or bad usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if sys.stdout is None:
        _tell(SourceError("standard output is closed; nothing can be shown"), as_json=False)
        return FAILED
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may hold what the terminal's encoding does not
    try:
        return _demo(arguments[1:]) if arguments[:1] == ["demo"] else _run(arguments)
    except KimiInspectError as error:
        _tell(error, as_json="--json" in arguments)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        _tell(TransportError(f"cannot write the result: {error.strerror}", retryable=False), as_json=False)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _demo(arguments: Sequence[str]) -> int:
    """Run a verb on the embedded checkpoint; without one, show its report beside the published figures."""
    from kimi_inspect.demo import EMBEDDED, SOURCE, loopback_kimi, show_beside_published, stay_on_loopback

    if arguments and arguments[0] in ("-h", "--help"):
        return _run(["demo", *arguments])
    stay_on_loopback()
    with loopback_kimi() as endpoint:
        if list(arguments) == ["ls"]:
            return max(_run(["ls", source], endpoint=endpoint, token=False) for source in EMBEDDED)
        if arguments:
            verb = ["show", *arguments] if arguments[0].startswith("-") else arguments
            # Nothing of a hub that is gone a moment later is worth keeping.
            return _run([*verb, "--no-cache"], source=SOURCE, endpoint=endpoint, token=False)
        return OK if show_beside_published(endpoint) else FOUND


def _run(arguments: Sequence[str], *, source: str | None = None, **fixed: Any) -> int:
    """Run one verb.

    Args:
        arguments: the verb and what follows it.
        source: what the verb reads if it is given no source.
        fixed: options that stand whatever the arguments say.
    """
    parsed = _parser(source).parse_args(arguments)
    if "source" in parsed and parsed.source is None:
        parsed.source = _swallowed_source(parsed)
    names = ("revision", "files", "endpoint", "token")
    options = {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}
    status: int = parsed.verb(parsed, {**options, **fixed})
    return status


def _swallowed_source(parsed: argparse.Namespace) -> str:
    """Give back a SOURCE that stood behind `--companions` and was taken for its GLOB."""
    globs = parsed.companions
    if not globs or globs[-1] is True:
        raise InvalidSourceError("the following arguments are required: SOURCE; see kimi-inspect show --help")
    source: str = globs[-1]
    globs[-1] = True
    return source


def _parser(source: str | None) -> _Parser:
    parser = _Parser(
        prog="kimi-inspect",
        description="Say exactly what a model checkpoint holds, from its headers alone.",
        epilog="`kimi-inspect demo` shows it all on a full-size Kimi K3.1 Pro, without any network.",
    )
    parser.add_argument("--version", action="version", version=f"kimi-inspect {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=_Parser)
    common = _common(source)
    ls = verbs.add_parser("ls", parents=[common], help="the checkpoints of a folder or repository; reads no header")
    ls.set_defaults(verb=_ls)
    show = verbs.add_parser("show", parents=[common], help="what a checkpoint holds, by component")
    show.add_argument("--by", choices=("component", "layer", "file", "encoding"), default="component", help="rows")
    show.add_argument("--check-index", action="store_true", help="hold the index against the headers too")
    show.add_argument(
        "--fail-on", choices=("error", "warning"), default="error", help="findings that make the exit status 1"
    )
    show.set_defaults(verb=_show)
    cache = verbs.add_parser("cache", help="where parsed headers are kept, and how large that is")
    cache.add_argument("--clear", action="store_true", help="remove them")
    cache.set_defaults(verb=_cache)
    verbs.add_parser("demo", help="the same verbs on an embedded Kimi K3.1 Pro; needs no network")
    return parser


def _common(source: str | None) -> _Parser:
    common = _Parser(add_help=False)
    common.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        default=source,
        help="owner/name[@revision][:SET], a Hub address, ./folder, a path or address ending in .safetensors or .gguf",
    )
    common.add_argument("--json", action="store_true", help="JSON on standard output, and nothing else there")
    common.add_argument("--files", action="append", metavar="GLOB", help="only files whose path fits; may be repeated")
    common.add_argument("--revision", metavar="REV", help="branch, tag or commit")
    common.add_argument("--endpoint", metavar="URL", help="address of the Hub")
    common.add_argument("--token", metavar="TOKEN", help="a token; the saved one by default")
    common.add_argument(
        "--companions",
        nargs="?",
        const=True,
        default=[],
        action="append",
        metavar="GLOB",
        help="count side files (mmproj, …) too: all, or those whose path fits; may be repeated",
    )
    common.add_argument("--no-cache", action="store_true", help="keep no parsed headers, and use none that are kept")
    common.add_argument("--jobs", type=_positive, default=16, metavar="N", help="requests at a time (default 16)")
    return common


def _positive(text: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return int(text)


def _ls(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    from kimi_inspect.opening import list_sets

    listing = list_sets(parsed.source, **options)
    if parsed.json:
        keys = ("name", "format", "file_count", "file_bytes", "default")
        sets = [{key: getattr(item, key) for key in keys} for item in listing.sets]
        _print_json({"schema": SETS_SCHEMA, "source": listing.source, "commit": listing.commit, "sets": sets})
    else:
        from kimi_inspect.tables import output, show_sets

        show_sets(output(), listing)
    return OK


def _show(parsed: argparse.Namespace, options: dict[str, Any]) -> int:
    from kimi_inspect.summarizing import inspect

    with _progress() as progress:
        report = inspect(
            parsed.source,
            companions=True if True in parsed.companions else parsed.companions or False,
            max_workers=parsed.jobs,
            cache=not parsed.no_cache,
            check_index=parsed.check_index,
            progress=progress,
            **options,
        )
    if parsed.json:
        _print_json(report.to_dict(by=[parsed.by]))
    else:
        from kimi_inspect.tables import output, show_report

        show_report(output(), report, parsed.by)
    return _status(report.findings, parsed.fail_on)


def _cache(parsed: argparse.Namespace, _options: dict[str, Any]) -> int:
    from kimi_inspect.caching import cache_folder, cache_size, clear_cache

    if parsed.clear:
        print(f"{clear_cache():,} bytes removed")
    else:
        print(f"{cache_size():,} bytes in {cache_folder() or 'no folder: it cannot be made'}")
    return OK


def _status(findings: Sequence[Finding], fail_on: str) -> int:
    failing = {Severity.ERROR} if fail_on == "error" else {Severity.ERROR, Severity.WARNING}
    return FOUND if any(item.severity in failing for item in findings) else OK


@contextmanager
def _progress() -> Iterator[ProgressCallback | None]:
    """Give a callback that draws a bar on standard error, or None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(progress: Progress) -> None:
            bar.update(task, description=progress.phase, completed=progress.done, total=progress.total)

        yield tell


def _print_json(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2)
    print()


def _tell(error: KimiInspectError, *, as_json: bool) -> None:
    print(f"kimi-inspect: {printable(str(error))}", file=sys.stderr)
    if as_json:
        fields = ("file", "offset", "expected", "actual")
        values = {name: _plain(getattr(error, name)) for name in fields}
        document = {"schema": ERROR_SCHEMA, "type": type(error).__name__, "message": error.problem, **values}
        _print_json({**document, "retryable": error.retryable})


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
