"""The command line: parses arguments, tells errors, sets the exit status; what each verb does is in `verbs`."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from kimi_inspect import __version__, verbs
from kimi_inspect.errors import InvalidSourceError, KimiInspectError, SourceError, TransportError
from kimi_inspect.rates import bits_per_second
from kimi_inspect.verbs import FAILED, FOUND, OK, print_json, say

__all__ = ["main"]

INTERRUPTED = 130

ERROR_SCHEMA = "kimi-inspect/error/1"

_SOURCE_HELP = (
    "owner/name[@revision][:SET], the same after ms:// for ModelScope, a Hub address, ./folder, "
    "a path or address ending in .safetensors or .gguf"
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSourceError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit status: 0 fine, 1 findings, 2 cannot read or bad usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if sys.stderr is None:
        # Some services start programs with it closed, and what opens next would take its number.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - it lives as long as the process
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
        say("interrupted")
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
            return _run([*verb, "--no-cache"], source=SOURCE, sources=list(EMBEDDED), endpoint=endpoint, token=False)
        return OK if show_beside_published(endpoint) else FOUND


def _run(arguments: Sequence[str], *, source: str | None = None, sources: Sequence[str] = (), **fixed: Any) -> int:
    """Run one verb.

    Args:
        arguments: the verb and what follows it.
        source: what a verb that reads one source reads if it is given none.
        sources: the same of a verb that reads several.
        fixed: options that stand whatever the arguments say.
    """
    parser = _parser(source, sources)
    parsed, more = parser.parse_known_args(arguments)
    if "sources" in parsed and not any(word.startswith("-") for word in more):
        parsed.sources, more = [*parsed.sources, *more], []  # what stood behind an option
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if "source" in parsed and parsed.source is None:
        parsed.source = _swallowed_source(parsed)
    if "sources" in parsed and not parsed.sources:
        parsed.sources = [_swallowed_source(parsed)]
    names = ("revision", "files", "endpoint", "token")
    options = {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}
    try:
        status: int = parsed.verb(parsed, {**options, **fixed})
    except SourceError as error:
        from kimi_inspect.locating import is_local

        named = getattr(parsed, "source", None)
        if isinstance(named, str) and not is_local(named) and Path(named).is_dir():
            error.add_note(f"a folder of that name is here: write ./{named} for it")
        raise
    return status


def _swallowed_source(parsed: argparse.Namespace) -> str:
    """Give back a SOURCE that stood behind `--companions` and was taken for its GLOB."""
    globs = parsed.companions
    if not globs or globs[-1] is True:
        name = parsed.verb.__name__
        raise InvalidSourceError(f"the following arguments are required: SOURCE; see kimi-inspect {name} --help")
    source: str = globs[-1]
    globs[-1] = True
    return source


def _parser(source: str | None, sources: Sequence[str]) -> _Parser:
    parser = _Parser(
        prog="kimi-inspect",
        description="Say exactly what a model checkpoint holds, from its headers alone.",
        epilog="`kimi-inspect demo` shows it all on a full-size Kimi K3.1 Pro, without any network.",
    )
    parser.add_argument("--version", action="version", version=f"kimi-inspect {__version__}")
    adding = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=_Parser)
    common = _common()
    one = _Parser(add_help=False, parents=[common])
    one.add_argument("source", metavar="SOURCE", nargs="?", default=source, help=_SOURCE_HELP)
    ls = adding.add_parser("ls", parents=[one], help="the checkpoints of a folder or repository; reads no header")
    ls.set_defaults(verb=verbs.ls)
    _show_parser(adding.add_parser("show", parents=[one], help="what a checkpoint holds, by component"))
    _audit_parser(
        adding.add_parser("audit", parents=[one], help="what is not as it says, or not as a reference has it")
    )
    _compare_parser(
        adding.add_parser("compare", parents=[common], help="what several checkpoints weigh, side by side"), sources
    )
    hashing = _common(jobs=None, what="files hashed at a time (default: as many as there are processors)")
    hashing.add_argument(
        "--no-journal", action="store_true", help="hash all files anew, whatever is remembered of them"
    )
    _lock_parser(
        adding.add_parser("lock", parents=[hashing], help="write a manifest: every file with its digests"), source
    )
    _verify_parser(adding.add_parser("verify", parents=[hashing], help="hold a folder against digests, file by file"))
    cache = adding.add_parser("cache", help="where parsed headers are kept, and how large that is")
    cache.add_argument("--clear", action="store_true", help="remove them")
    cache.set_defaults(verb=verbs.cache)
    adding.add_parser("demo", help="the same verbs on an embedded Kimi K3.1 Pro; needs no network")
    return parser


def _common(*, jobs: int | None = 16, what: str = "requests at a time (default 16)") -> _Parser:
    """Make the options of every verb that reads a source."""
    common = _Parser(add_help=False)
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
    common.add_argument("--jobs", type=_positive, default=jobs, metavar="N", help=what)
    return common


def _show_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", choices=("component", "layer", "file", "encoding"), default="component", help="rows")
    _check_index(parser)
    _fail_on(parser)
    parser.set_defaults(verb=verbs.show)


def _audit_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against",
        metavar="REFERENCE",
        help="what it should be: a SOURCE in any format, a manifest, or a config.json",
    )
    _check_index(parser)
    _fail_on(parser)
    parser.set_defaults(verb=verbs.audit)


def _lock_parser(parser: argparse.ArgumentParser, source: str | None) -> None:
    parser.add_argument("source", metavar="SOURCE", nargs="?", default=source, help=_SOURCE_HELP)
    parser.add_argument("-o", "--output", metavar="FILE", help="where to; written whole or not at all")
    parser.add_argument("--sha256sums", action="store_true", help="a list as sha256sum writes it, in place of JSON")
    parser.set_defaults(verb=verbs.lock)


def _verify_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="what was downloaded; a snapshot of the Hub's cache is a folder"
    )
    parser.add_argument(
        "--against",
        required=True,
        metavar="SOURCE_OR_MANIFEST",
        help="what it should be: a SOURCE, a manifest that `lock` wrote, or a list as sha256sum writes it",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="compare sizes and headers, and hash nothing")
    how.add_argument("--watch", action="store_true", help="check each file as it arrives, until all are there")
    parser.set_defaults(verb=verbs.verify)


def _check_index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check-index", action="store_true", help="hold the index against the headers too")


def _compare_parser(parser: argparse.ArgumentParser, sources: Sequence[str]) -> None:
    parser.add_argument("sources", metavar="SOURCE", nargs="*", default=list(sources), help=_SOURCE_HELP)
    parser.add_argument("--link", type=_rate, metavar="RATE", help="add download times: 1Gbps, 125MB/s, …")
    _fail_on(parser)
    parser.set_defaults(verb=verbs.compare)


def _fail_on(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on", choices=("error", "warning"), default="error", help="findings that make the exit status 1"
    )


def _rate(text: str) -> int:
    try:
        return bits_per_second(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return int(text)


def _tell(error: KimiInspectError, *, as_json: bool) -> None:
    told = ": ".join([*getattr(error, "__notes__", ()), str(error)])
    say(f"kimi-inspect: {told}")
    if as_json:
        from kimi_inspect.comparison import error_values

        print_json({"schema": ERROR_SCHEMA, **error_values(error)})
