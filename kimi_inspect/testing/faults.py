"""Faults that `LoopbackHub.play` can play: each is a change of the answer that was about to be sent.

A fault applies only to the kind of answer that it makes sense for (a shifted Content-Range needs a 206); other answers
pass unchanged and do not count against its number of times.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import formatdate
from time import time

from kimi_inspect.testing.catalog import Shelf
from kimi_inspect.testing.cdn_origin import storage_error
from kimi_inspect.testing.hollow import Files, HollowFile
from kimi_inspect.testing.ranges import content_range, requested_range
from kimi_inspect.testing.ranges import unsatisfiable as range_not_satisfiable
from kimi_inspect.testing.refusals import Case, refuse
from kimi_inspect.testing.wire import Answer, Body, Request, bytes_body

__all__ = [
    "Exchange",
    "Fault",
    "cut_connection",
    "endless_next_link",
    "expired_signature",
    "foreign_next_link",
    "gzip_range",
    "html_page",
    "ignore_range",
    "moved_branch",
    "no_content_range",
    "rate_limited",
    "rate_limited_until",
    "redirect_loop",
    "redirected",
    "refuse_overlong",
    "refused",
    "shifted_content_range",
    "short_body",
    "slow_drip",
    "unavailable",
    "unsatisfiable",
    "with_header",
    "wrong_commit",
    "wrong_listed_size",
    "wrong_total",
]

_HTML = (
    b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in to the network.</body></html>\n"
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a fault sees: the request, the answer without the fault, and where it happens."""

    request: Request
    answer: Answer
    shelf: Shelf | None
    cdn_origin: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A named change of an answer, and the answers that it applies to."""

    name: str
    change: Callable[[Exchange], Answer]
    applies: Callable[[Answer], bool]


def _any(_: Answer) -> bool:
    return True


def _data(answer: Answer) -> bool:
    return answer.kind in {"file", "cdn"}


def _partial(answer: Answer) -> bool:
    return answer.status == 206


def _signed(answer: Answer) -> bool:
    return answer.kind == "cdn"


def _tree(answer: Answer) -> bool:
    return answer.kind == "tree"


def _info(answer: Answer) -> bool:
    return answer.kind == "info"


def _redirect(answer: Answer) -> bool:
    return answer.kind == "redirect"


# Ranges and their labels.


def ignore_range() -> Fault:
    """Send 200 with the whole file, as if no range had been asked for."""

    def change(exchange: Exchange) -> Answer:
        return _whole(exchange.answer, exchange.answer.body.file)

    return Fault("ignore_range", change, _partial)


def shifted_content_range(by: int = 1) -> Fault:
    """Label a 206 with a range `by` bytes away from the one that is sent."""
    return _relabelled("shifted_content_range", shift=by, grow=0)


def wrong_total(by: int = 1) -> Fault:
    """Label a 206 with a total size that is wrong `by` so many bytes."""
    return _relabelled("wrong_total", shift=0, grow=by)


def no_content_range() -> Fault:
    """Send a 206 that does not say which bytes it holds."""
    return Fault("no_content_range", lambda exchange: exchange.answer.with_header("Content-Range", None), _partial)


def unsatisfiable() -> Fault:
    """Send 416 to any range."""
    return Fault("unsatisfiable", lambda exchange: range_not_satisfiable(exchange.answer.body.file.size), _partial)


def refuse_overlong() -> Fault:
    """Send 416 to a range that begins in the file and ends past it, against the rules."""

    def change(exchange: Exchange) -> Answer:
        size = exchange.answer.body.file.size
        # Measured against an endless file the range is not clipped, so that its end shows.
        wanted = requested_range(exchange.request.headers.get("range"), 1 << 62)
        return range_not_satisfiable(size) if wanted and size < wanted[1] < 1 << 62 else exchange.answer

    return Fault("refuse_overlong", change, _partial)


def gzip_range() -> Fault:
    """Send the bytes of a 206 compressed, under a Content-Range that counts them uncompressed."""

    def change(exchange: Exchange) -> Answer:
        packed = gzip.compress(exchange.answer.body.read(), mtime=0)
        return replace(exchange.answer.with_header("Content-Encoding", "gzip"), body=bytes_body(packed))

    return Fault("gzip_range", change, _partial)


# Bodies and connections.


def short_body(missing: int = 1) -> Fault:
    """Announce the true length, then close the connection `missing` bytes before it is reached."""

    def change(exchange: Exchange) -> Answer:
        return replace(exchange.answer, cut_after=max(0, exchange.answer.body.length - missing))

    return Fault("short_body", change, _data)


def cut_connection(after: int | None = None) -> Fault:
    """Close the connection with no answer at all, or `after` so many bytes of any body."""
    if after is None:
        return Fault("cut_connection", lambda exchange: replace(exchange.answer, silent=True), _any)
    return Fault("cut_connection", lambda exchange: replace(exchange.answer, cut_after=after), _any)


def slow_drip(piece_bytes: int = 64, pause: float = 0.01) -> Fault:
    """Send the body `piece_bytes` at a time, with `pause` seconds between the pieces."""

    def change(exchange: Exchange) -> Answer:
        return replace(exchange.answer, piece_bytes=piece_bytes, pause=pause)

    return Fault("slow_drip", change, _data)


def html_page(status: int | None = None) -> Fault:
    """Send a web page in place of a file's bytes, by default with status, range and length of the true answer.

    With `status` 200 it comes whole and without a range, as from a captive portal or a login page.
    """

    def change(exchange: Exchange) -> Answer:
        answer = exchange.answer.with_header("Content-Type", "text/html; charset=utf-8")
        if status == 200:
            return _whole(answer, HollowFile(_HTML))
        body = answer.body
        return replace(answer, body=Body(HollowFile(_HTML[: body.file.size], body.file.size), body.begin, body.end))

    return Fault("html_page", change, _data)


# Refusals.


def rate_limited(*, retry_after: int | str | None = None, reset: int | None = None) -> Fault:
    """Send 429; `retry_after` is the header's seconds or text, `reset` the seconds in a RateLimit with nothing left."""
    headers = [("Content-Type", "text/plain")]
    if retry_after is not None:
        headers.append(("Retry-After", str(retry_after)))
    if reset is not None:
        headers += [("RateLimit", f'"api";r=0;t={reset}'), ("RateLimit-Policy", '"fixed window";"api";q=500;w=300')]
    answer = Answer(429, tuple(headers), bytes_body(b"Too Many Requests\n"))
    return Fault("rate_limited", lambda _: answer, _any)


def rate_limited_until(seconds: float) -> Fault:
    """Send 429 with a Retry-After that is a date, `seconds` from the moment of answering."""

    def change(exchange: Exchange) -> Answer:
        date = formatdate(time() + seconds, usegmt=True)
        return rate_limited(retry_after=date).change(exchange)

    return Fault("rate_limited_until", change, _any)


def unavailable(status: int = 503) -> Fault:
    """Send a passing failure of the server's: 503, or another 5xx."""
    answer = Answer(status, (("Content-Type", "text/plain"),), bytes_body(b"Service Unavailable\n"))
    return Fault("unavailable", lambda _: answer, _any)


def refused(case: Case) -> Fault:
    """Refuse as the Hub does in `case`, whatever the repository and the token."""

    def change(exchange: Exchange) -> Answer:
        repo = exchange.shelf.repository.repo_id if exchange.shelf else ""
        return refuse(case, exchange.request, repo=repo, rev="main")

    return Fault("refused", change, _any)


def expired_signature() -> Fault:
    """Send the 403 of a signed address whose time is over."""
    return Fault("expired_signature", lambda _: storage_error(403, "AccessDenied", "Request has expired"), _signed)


# What the Hub says.


def moved_branch(files: Files | None = None) -> Fault:
    """Let someone push to the branch just after the metadata were told: with `files`, or the same content once more."""

    def change(exchange: Exchange) -> Answer:
        if exchange.shelf:
            exchange.shelf.push(files)
        return exchange.answer

    return Fault("moved_branch", change, _info)


def wrong_commit(commit: str = "f" * 40) -> Fault:
    """Let the resolver claim that the file is of another commit."""
    return Fault("wrong_commit", lambda exchange: exchange.answer.with_header("X-Repo-Commit", commit), _redirect)


def wrong_listed_size(path: str, by: int = 1) -> Fault:
    """List the file at exactly `path` with a size that is wrong `by` so many bytes."""

    def change(exchange: Exchange) -> Answer:
        entries = json.loads(exchange.answer.body.read())
        for entry in entries:
            if entry["path"] == path:
                entry["size"] += by
                entry.get("lfs", {})["size"] = entry["size"]
        return replace(exchange.answer, body=bytes_body(json.dumps(entries).encode()))

    return Fault("wrong_listed_size", change, _tree)


def foreign_next_link() -> Fault:
    """Let the next page of a listing lie on another origin, whoever follows with a token gives it away."""

    def change(exchange: Exchange) -> Answer:
        link = f'<{exchange.cdn_origin}{exchange.request.target}>; rel="next"'
        return exchange.answer.with_header("Link", link)

    return Fault("foreign_next_link", change, _tree)


def endless_next_link() -> Fault:
    """Let the next page of a listing be that same page."""

    def change(exchange: Exchange) -> Answer:
        request = exchange.request
        return exchange.answer.with_header("Link", f'<http://{request.headers["host"]}{request.target}>; rel="next"')

    return Fault("endless_next_link", change, _tree)


# Redirects, and anything else.


def redirect_loop() -> Fault:
    """Redirect to the very address that was asked for."""
    return Fault("redirect_loop", lambda exchange: _elsewhere(302, exchange.request.target), _any)


def redirected(origin: str, status: int = 308) -> Fault:
    """Redirect to the same target at another origin, with none of the Hub's headers, as a mirror does."""
    return Fault("redirected", lambda exchange: _elsewhere(status, origin + exchange.request.target), _any)


def with_header(name: str, value: str | None) -> Fault:
    """Set one header of any answer, or leave it out when `value` is None."""
    return Fault("with_header", lambda exchange: exchange.answer.with_header(name, value), _any)


def _whole(answer: Answer, file: HollowFile) -> Answer:
    return replace(answer.with_header("Content-Range", None), status=200, body=Body(file, 0, file.size))


def _elsewhere(status: int, location: str) -> Answer:
    return Answer(status, (("Location", location),), bytes_body(b"Redirecting\n"))


def _relabelled(name: str, *, shift: int, grow: int) -> Fault:
    def change(exchange: Exchange) -> Answer:
        body = exchange.answer.body
        label = content_range(body.begin + shift, body.end + shift, body.file.size + grow)
        return exchange.answer.with_header("Content-Range", label)

    return Fault(name, change, _partial)
