"""What the head of an HTTP answer means: which part of a file it is, or which of our errors."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn

from kimi_inspect.addresses import public_url
from kimi_inspect.errors import (
    AuthenticationError,
    GatedRepositoryError,
    RangeNotSupportedError,
    RateLimitedError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SourceError,
    SourceFileNotFoundError,
    TransportError,
)
from kimi_inspect.header import MAX_OFFSET

if TYPE_CHECKING:
    from huggingface_hub.utils import httpx

__all__ = ["UnsatisfiableRangeError", "range_of", "refuse"]

_RETRY_STATUS = frozenset({408, 500, 502, 503, 504})
MAX_SKIP = 16 * 1024 * 1024
"""Bytes of a whole-file answer that are passed over to reach the part that was asked for."""

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_UNSATISFIED = re.compile(r"bytes \*/([0-9]{1,19})")
_HIDDEN = "no such repository, or a private one; check the name, or use a token that sees it"


class UnsatisfiableRangeError(TransportError):
    """416: the range lies beyond the end. `file_bytes` is the size that the server told, or None."""

    retryable = False
    _extra = ("file_bytes",)

    def __init__(self, problem: str, file_bytes: int | None = None, **details: Any) -> None:
        super().__init__(problem, **details)
        self.file_bytes = file_bytes


def refuse(response: httpx.Response, url: str, file: str) -> NoReturn:
    """Raise our error for an answer that is neither 200 nor 206."""
    status, headers = response.status_code, response.headers
    if status == 416:
        told = _UNSATISFIED.fullmatch(headers.get("content-range", ""))
        raise UnsatisfiableRangeError(
            "the range lies beyond the end of the file",
            int(told[1]) if told else None,
            file=file,
            actual=f"status {status}",
        )
    if status == 429 or (status == 503 and "retry-after" in headers):
        wait = _wait_told(headers)
        told_text = "" if wait is None else f", for {wait:.0f} s"
        raise RateLimitedError(
            f"the server asks to wait{told_text}; try later, or with a token",
            retry_after=wait,
            file=file,
            actual=f"status {status}",
        )
    kind, advice = _kind(response, url)
    raise kind(advice, file=file, actual=f"status {status}", retryable=status in _RETRY_STATUS)


def _kind(response: httpx.Response, url: str) -> tuple[type[SourceError], str]:
    """Choose our error by huggingface_hub's vocabulary: error code first, message second, status last."""
    from huggingface_hub import errors as hub_errors
    from huggingface_hub.utils import hf_raise_for_status, httpx

    # A copy without body and query: what is raised then carries no secret and reads nothing more.
    bare = httpx.Response(
        response.status_code, headers=_error_headers(response), request=httpx.Request("GET", public_url(url))
    )
    try:
        hf_raise_for_status(bare)
    except hub_errors.GatedRepoError:
        return GatedRepositoryError, "the repository is gated; ask for access on its page and use a token that has it"
    except hub_errors.DisabledRepoError:
        return RepositoryNotFoundError, "the repository is disabled"
    except hub_errors.RepositoryNotFoundError:
        return RepositoryNotFoundError, _HIDDEN
    except hub_errors.RevisionNotFoundError:
        return RevisionNotFoundError, "the repository has no such branch, tag or commit"
    except hub_errors.RemoteEntryNotFoundError:
        return SourceFileNotFoundError, "no such file at this revision"
    except hub_errors.HfHubHTTPError:
        pass
    return _kind_by_status(response)


def _kind_by_status(response: httpx.Response) -> tuple[type[SourceError], str]:
    message = response.headers.get("x-error-message", "")
    if response.status_code == 401 and not message.startswith("Invalid credentials") and _is_hub(response):
        # The client library sees this only behind an https address of the Hub's own form.
        return RepositoryNotFoundError, _HIDDEN
    if response.status_code in (401, 403):
        return AuthenticationError, "the server refuses the token, or wants one; make a new one and log in again"
    if response.status_code in (404, 410):
        return SourceFileNotFoundError, "there is no such file"
    return TransportError, "the server failed to answer; try later"


def _is_hub(response: httpx.Response) -> bool:
    return "x-error-message" in response.headers or "x-request-id" in response.headers


def _error_headers(response: httpx.Response) -> dict[str, str]:
    return {name: response.headers[name] for name in ("x-error-code", "x-error-message") if name in response.headers}


def _wait_told(headers: Mapping[str, str]) -> float | None:
    """Return the seconds a server asks to wait: Retry-After (seconds or a date), else the Hub's RateLimit."""
    from huggingface_hub.utils import parse_ratelimit_headers

    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        return float(value[:300])  # more digits say no more than that it is too long
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (ValueError, OverflowError):
            pass
    try:
        limits = parse_ratelimit_headers(headers)
        return limits.reset_in_seconds + 1.0 if limits and limits.remaining == 0 else None
    except (ValueError, OverflowError):  # numbers of hundreds of digits
        return None


def range_of(response: httpx.Response, begin: int, end: int, file: str) -> tuple[int, int, int]:
    """Check that the answer holds the range asked for.

    Returns:
        The bytes of the body to pass over, the bytes wanted after them, and the size of the whole file.
    """
    if response.headers.get("content-encoding", "identity") != "identity":
        raise RangeNotSupportedError("the server compresses parts of a file", file=file)
    if response.status_code == 200:
        return _front_of_whole(response, begin, end, file)
    header = response.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(header)
    if not match:
        raise RangeNotSupportedError(
            "a part of the file came without saying which",
            file=file,
            expected="a Content-Range",
            actual=header or None,
        )
    first, last, total = (int(number) for number in match.groups())
    _refuse_size(total, file)
    if (first, last + 1) != (begin, min(end, total)):
        raise RangeNotSupportedError(
            "another part of the file came than was asked for",
            file=file,
            offset=begin,
            expected=f"bytes {begin}-{min(end, total) - 1}",
            actual=header,
        )
    return 0, last + 1 - first, total


def _front_of_whole(response: httpx.Response, begin: int, end: int, file: str) -> tuple[int, int, int]:
    """Say what to take from an answer that is the whole file."""
    length = response.headers.get("content-length", "")
    if begin > MAX_SKIP or not re.fullmatch(r"[0-9]{1,19}", length):
        raise RangeNotSupportedError(
            "the server sends whole files instead of parts; read it from another server, or download it",
            file=file,
            expected="status 206",
            actual="status 200",
        )
    total = int(length)
    _refuse_size(total, file)
    return min(begin, total), max(min(end, total) - begin, 0), total


def _refuse_size(file_bytes: int, file: str) -> None:
    if file_bytes > MAX_OFFSET:
        raise TransportError("no file is so large", file=file, actual=file_bytes, retryable=False)
