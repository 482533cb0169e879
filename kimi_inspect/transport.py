"""The one place that speaks HTTP: every request, its checks, retries and limits.

What holds for each answer: it came in time; a part of a file is a 206 whose Content-Range and length are the ones
asked for, or the front of a 200; the token was sent to its own origin and to no other. The session, its proxies and
certificates are huggingface_hub's.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from attrs import field, frozen

from kimi_inspect.addresses import next_address, origin
from kimi_inspect.errors import (
    OfflineError,
    RateLimitedError,
    SourceError,
    TransportError,
)
from kimi_inspect.http_status import UnsatisfiableRangeError, range_of, refuse
from kimi_inspect.sources import Meter
from kimi_inspect.text import printable
from kimi_inspect.values import Traffic
from kimi_inspect.watchdog import Watchdog

if TYPE_CHECKING:
    from huggingface_hub.utils import httpx

__all__ = ["DEFAULT_TIMEOUT", "FileFacts", "OpenRange", "RangeAnswer", "Transport"]

T = TypeVar("T")

DEFAULT_TIMEOUT = 30.0
"""Seconds without a byte before a connection counts as dead."""

MIN_RATE = 16 * 1024
"""Bytes a second below which a transfer counts as stalled, after the first `timeout` seconds."""

HEAD_TIMEOUTS = 2
"""Times `timeout` that may pass from the first word of a request to the last of its answer's head."""

MAX_TRIES = 5
MAX_WAIT = 60.0
"""Seconds: a server that asks for a longer pause is given up, with the pause in the error."""

MAX_HOPS = 8
MAX_ASIDE = 64 * 1024
"""Bytes of a redirect's or an error's body that are read, so that the connection can serve again."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@frozen(kw_only=True)
class FileFacts:
    """What the answers on the way to a file's bytes said of it; the Hub says it in the redirect."""

    commit: str | None = None
    etag: str | None = None


@frozen(kw_only=True)
class RangeAnswer:
    """Bytes of a file, with its size and the address that finally served them."""

    data: bytes = field(repr=False)
    file_bytes: int
    url: str = field(repr=False)
    facts: FileFacts


@frozen(kw_only=True)
class OpenRange:
    """The same while the bytes still come: `pieces` yields them in order and raises if they end too soon."""

    pieces: Iterator[bytes] = field(repr=False)
    file_bytes: int
    url: str = field(repr=False)
    facts: FileFacts


@frozen(kw_only=True)
class WholeAnswer:
    """All bytes of a small answer, decompressed, and the reference to the page after it, if it has one."""

    data: bytes = field(repr=False)
    facts: FileFacts
    next: str | None = None
    status: int = 200


class Transport:
    """Sends GET requests and counts them. Safe to share between threads.

    Args:
        timeout: seconds without a byte before a connection counts as dead.
        token: sent as a bearer token to `token_origin`, to nobody else.
        token_cookie: name of a cookie that holds the token too, for a server that looks for it there.
        user_agent: how we introduce ourselves.
        pause: waits some seconds before a retry; returns True if the call was cancelled meanwhile.
    """

    def __init__(
        self,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        token: str | None = None,
        token_origin: str | None = None,
        token_cookie: str | None = None,
        user_agent: str = "kimi_inspect",
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._timeout = timeout
        self._token = token
        self._token_origin = origin(token_origin) if token_origin else None
        self._token_cookie = token_cookie
        self._user_agent = user_agent
        self._cancelled = threading.Event()
        self._pause = pause or self._cancelled.wait
        self._meter = Meter()
        self._watchdog = Watchdog()

    @property
    def traffic(self) -> Traffic:
        """Requests sent, redirect hops included, and body bytes received so far."""
        return self._meter.traffic

    def cancel(self) -> None:
        """End every transfer under way, and start no other."""
        self._cancelled.set()
        self._watchdog.shut_down()

    def read_range(self, url: str, begin: int, end: int, *, file: str, patient: bool = True) -> RangeAnswer:
        """Read bytes `begin` up to `end` of the file at `url`, fewer only if it ends before.

        Args:
            url: its address; redirects are followed.
            begin: first byte.
            end: one past the last byte, greater than `begin`.
            file: what to call it in messages.
            patient: try again after passing failures; else only where the server asks to wait.

        Raises:
            SourceError: of the kind that fits.
        """

        def attempt(end: int = end) -> RangeAnswer:
            with self._open_once(url, begin, end, file) as part:
                return RangeAnswer(
                    data=b"".join(part.pieces), file_bytes=part.file_bytes, url=part.url, facts=part.facts
                )

        def clipped() -> RangeAnswer:
            try:
                return attempt()
            except UnsatisfiableRangeError as error:
                # By the rules a range that only ends beyond the file is served; some servers refuse it all the same.
                if error.file_bytes is None or not begin < error.file_bytes < end:
                    raise
                return attempt(error.file_bytes)

        return self._persist(clipped, patient=patient)

    @contextmanager
    def open_range(self, url: str, begin: int, end: int, *, file: str, patient: bool = True) -> Iterator[OpenRange]:
        """Ask for bytes `begin` up to `end`, and give them as they come; leaving the block early costs no more.

        The request is tried again as in `read_range`, until its answer begins.

        Raises:
            SourceError: of the kind that fits, also while the bytes come.
        """
        with ExitStack() as stack:

            def attempt() -> OpenRange:
                with ExitStack() as one:
                    part = one.enter_context(self._open_once(url, begin, end, file))
                    stack.push(one.pop_all())
                    return part

            yield self._persist(attempt, patient=patient)

    @contextmanager
    def _open_once(self, url: str, begin: int, end: int, file: str) -> Iterator[OpenRange]:
        headers = {"range": f"bytes={begin}-{end - 1}", "accept-encoding": "identity"}
        with self._watchdog.work(), self._get(url, headers, file) as (response, facts):
            passed, wanted, total = range_of(response, begin, end, file)
            with closing(self._range_body(response, passed, wanted, file)) as pieces:
                yield OpenRange(pieces=pieces, file_bytes=total, url=str(response.url), facts=facts)

    def read_file(self, url: str, *, limit: int, file: str, telling: Collection[int] = ()) -> WholeAnswer:
        """Read a whole small file or API answer.

        Args:
            url: its address; redirects are followed.
            limit: longest answer that is read, in bytes.
            file: what to call it in messages.
            telling: statuses of refusals that say more in their body, which is then the answer.

        Raises:
            TransportError: it is longer than `limit` bytes.
            SourceError: of another kind that fits.
        """

        def attempt() -> WholeAnswer:
            with self._get(url, {"accept-encoding": "gzip"}, file, telling) as (response, facts):
                data = b"".join(self._pieces(response, response.iter_bytes(), limit + 1, file))
                if len(data) > limit:
                    raise TransportError(
                        "longer than anything of its kind",
                        file=file,
                        expected=f"at most {limit:,} bytes",
                        retryable=False,
                    )
                following = response.links.get("next", {}).get("url")
                return WholeAnswer(data=data, facts=facts, next=following, status=response.status_code)

        return self._persist(attempt)

    def read_json(self, url: str, *, limit: int, file: str) -> tuple[Any, str | None]:
        """Read a JSON answer of at most `limit` bytes; return it decoded, and the reference to the next page."""
        answer = self.read_file(url, limit=limit, file=file)
        try:
            return msgspec.json.decode(answer.data), answer.next
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise TransportError("the answer is no JSON", file=file, actual=repr(answer.data[:60])) from None

    def _persist(self, attempt: Callable[[], T], *, patient: bool = True) -> T:
        """Try again after failures that pass, waiting as long as the server asks."""
        for tries in range(MAX_TRIES):
            try:
                with self._watchdog.work():
                    return attempt()
            except SourceError as error:
                limited = isinstance(error, RateLimitedError)
                told = error.retry_after if isinstance(error, RateLimitedError) else None
                wait = min(2.0**tries / 2, 8.0) if told is None else told
                if not error.retryable or not (patient or limited) or tries == MAX_TRIES - 1 or wait > MAX_WAIT:
                    raise
            if self._pause(wait):
                break
        raise TransportError("cancelled", retryable=True)

    @contextmanager
    def _get(
        self, url: str, headers: dict[str, str], file: str, telling: Collection[int] = ()
    ) -> Iterator[tuple[httpx.Response, FileFacts]]:
        """Send a request, follow its redirects, and hand over the first answer that is none, body unread."""
        facts, asked = FileFacts(), origin(url)
        for _ in range(MAX_HOPS):
            response = self._send(url, headers, file)
            self._watchdog.own(response.extensions.get("network_stream"))
            try:
                told = _facts(response.headers)
                # Some say the digest and no commit: what is not told yet may come with a later hop.
                facts = FileFacts(commit=facts.commit or told.commit, etag=facts.etag or told.etag)
                if response.status_code not in _REDIRECTS:
                    if response.status_code not in (200, 206, *telling):
                        self._drain(response, file)
                        if response.status_code == 403 and origin(url) != asked:
                            # It has seen no token, only a signed address: the next one may be better.
                            problem = "the server of the files refuses the address it was sent to; try later"
                            raise TransportError(problem, file=file, actual="status 403")
                        refuse(response, url, file)
                    yield response, facts
                    return
                self._drain(response, file)
                url = self._next_hop(response, url, file)
            finally:
                response.close()
        raise TransportError("redirected in a circle", file=file, expected=f"at most {MAX_HOPS} hops", retryable=False)

    def _next_hop(self, response: httpx.Response, url: str, file: str) -> str:
        target = next_address(url, response.headers.get("location", ""))
        if target is None or target == url:
            raise TransportError("redirected to no usable address", file=file, retryable=False)
        return target

    def _send(self, url: str, headers: dict[str, str], file: str) -> httpx.Response:
        """Send one request and wait for the head of its answer."""
        from huggingface_hub.errors import OfflineModeIsEnabled
        from huggingface_hub.utils import httpx

        headers = {"user-agent": self._user_agent, **headers}
        if self._cancelled.is_set():
            raise TransportError("cancelled", file=file)
        self._meter.add(requests=1)
        session = _session()
        try:
            timeout = httpx.Timeout(self._timeout)
            request = session.build_request("GET", url, headers=headers, timeout=timeout)
            # All share the session: a cookie that an answer has set may be a token, and cookies know no ports.
            request.headers.pop("cookie", None)
            request.headers.update(self._credentials(url))
            request.extensions["trace"] = self._watchdog.trace
            with self._watchdog.limit(HEAD_TIMEOUTS * self._timeout):
                return session.send(request, stream=True, follow_redirects=False)
        except OfflineModeIsEnabled:
            failure: SourceError = OfflineError(
                "offline mode is on; unset HF_HUB_OFFLINE to reach the network", file=file
            )
        except httpx.HTTPError as error:
            words = f"{urlsplit(url).hostname} is out of reach or silent: {_reason(error)}; check address and network"
            failure = TransportError(words, file=file)
        except (httpx.InvalidURL, ValueError):
            failure = TransportError("no request can be sent to such an address", file=file, retryable=False)
        raise failure  # outside of the handlers: the library's errors hold the request, and that the token

    def _credentials(self, url: str) -> dict[str, str]:
        """Return the headers that hold the token, where it may be sent."""
        from huggingface_hub import constants

        if not self._token or origin(url) != self._token_origin:
            return {}
        headers = {"authorization": f"Bearer {self._token}"}
        # With HF_DEBUG the client library logs all headers, and hides only that one.
        if self._token_cookie and not constants.HF_DEBUG:
            headers["cookie"] = f"{self._token_cookie}={self._token}"
        return headers

    def _drain(self, response: httpx.Response, file: str) -> None:
        """Read a short body away: closed unread, it would cost the connection."""
        for _ in self._pieces(response, response.iter_raw(), MAX_ASIDE, file):
            pass

    def _pieces(self, response: httpx.Response, body: Iterator[bytes], limit: int, file: str) -> Iterator[bytes]:
        """Yield pieces of a body, `limit` bytes at most, as long as they come fast enough."""
        from huggingface_hub.utils import httpx

        begun = time.monotonic()
        left = limit
        counted = response.num_bytes_downloaded
        failure = None
        try:
            for piece in body:
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    break
                if self._cancelled.is_set():
                    raise TransportError("cancelled", file=file)
                if time.monotonic() - begun > self._timeout + (limit - left) / MIN_RATE:
                    raise TransportError(
                        "the answer comes too slowly", file=file, expected=f"{MIN_RATE:,} bytes a second"
                    )
        except (httpx.HTTPError, httpx.StreamError) as error:
            failure = TransportError(_reason(error), file=file)
        finally:
            self._meter.add(bytes_read=response.num_bytes_downloaded - counted)
        if failure:
            raise failure  # outside of the handler, as above

    def _range_body(self, response: httpx.Response, passed: int, wanted: int, file: str) -> Generator[bytes]:
        """Yield `wanted` bytes of a body after the first `passed` ones, and raise unless they all come.

        A part ends where it said; of a whole file no more than is wanted is read.
        """
        beyond = 1 if response.status_code == 206 else 0
        seen = 0
        for piece in self._pieces(response, response.iter_raw(), passed + wanted + beyond, file):
            yield piece[max(passed - seen, 0) :]
            seen += len(piece)
        if seen != passed + wanted:
            raise TransportError(
                "the answer has another length than it said", file=file, expected=passed + wanted, actual=seen
            )


def _session() -> httpx.Client:
    """Return huggingface_hub's session, or our error where proxy or certificate settings let none be made."""
    from huggingface_hub.utils import get_session

    try:
        return get_session()
    except (ImportError, ValueError, OSError) as error:
        words = f"no HTTP client can be made: {error}; check the proxy and certificate settings in the environment"
    raise TransportError(words, retryable=False)


def _facts(headers: Mapping[str, str]) -> FileFacts:
    return FileFacts(commit=headers.get("x-repo-commit"), etag=headers.get("x-linked-etag"))


def _reason(error: Exception) -> str:
    """Describe a failure of the HTTP library; its own words may hold a signed address."""
    words = str(error)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return printable(name if not words or "://" in words else f"{name}: {words}")
