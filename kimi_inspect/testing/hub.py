"""A Hugging Face Hub on the loopback, with a CDN behind it and faults to play.

Two listeners on two ports are two origins, so a client shows here whether it keeps its token to the Hub. The Hub is not
reached, and no file is on disk: bodies are hollow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote, unquote

from kimi_inspect.testing.catalog import Catalog, Repository
from kimi_inspect.testing.cdn_origin import CdnOrigin
from kimi_inspect.testing.faults import Exchange, Fault
from kimi_inspect.testing.hollow import Files, HollowFile
from kimi_inspect.testing.hub_origin import HubOrigin
from kimi_inspect.testing.wire import Answer, Listener, Request

__all__ = ["LoopbackHub", "Origin", "Served"]

Origin = Literal["hub", "cdn"]


@dataclass(frozen=True, slots=True)
class Served:
    """A request and what became of it.

    `range`, `authorization` and `accept_encoding` are the headers as sent, None when absent. `status` is 0 when the
    connection was closed with no answer; `fault` names the fault that was played, if any.
    """

    origin: Origin
    method: str
    target: str
    range: str | None
    authorization: str | None
    accept_encoding: str | None
    status: int
    fault: str | None = None


@dataclass(slots=True)
class _Play:
    fault: Fault
    path: str
    origin: Origin | None
    left: int | None


class LoopbackHub:
    """A hub that listens from its making until `close`, or the end of its `with` block.

    `plain_files` are served under `plain_url` with no Hub about them. `latency` is in seconds, added to every answer.
    `signed_for` is how many seconds a signed CDN address lives. `tokens` open everything, `unapproved_tokens` are valid
    but open neither gated nor private repositories. `port` is the Hub's, 0 for any. `sleep` makes all pauses.
    """

    def __init__(
        self,
        repositories: Iterable[Repository] = (),
        *,
        plain_files: Files | None = None,
        tokens: Collection[str] = (),
        unapproved_tokens: Collection[str] = (),
        page_size: int = 1000,
        signed_for: float = 3600.0,
        latency: float = 0.0,
        port: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        plain = {
            path: HollowFile(file) if isinstance(file, bytes) else file for path, file in (plain_files or {}).items()
        }
        self._catalog = Catalog(repositories)
        self._cdn_side = CdnOrigin(plain, signed_for)
        self._latency = latency
        self._sleep = sleep
        self._log: list[Served] = []
        self._plays: list[_Play] = []
        self._lock = Lock()
        self._hub_side = HubOrigin(
            self._catalog,
            lambda repo_id, entry: self.cdn_origin + self._cdn_side.sign(repo_id, entry),
            page_size=page_size,
            tokens=tokens,
            unapproved=unapproved_tokens,
        )
        # The Hub first: its port may be taken, and then nothing is left open.
        self._hub = Listener(lambda request: self._respond("hub", request), port=port, sleep=sleep)
        self._cdn = Listener(lambda request: self._respond("cdn", request), sleep=sleep)

    def __enter__(self) -> Self:
        """Return the hub: it listens already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the hub."""
        self.close()

    @property
    def endpoint(self) -> str:
        """What to give a client as the Hub's endpoint: scheme, address and port."""
        return self._hub.origin

    @property
    def cdn_origin(self) -> str:
        """Scheme, address and port of the CDN."""
        return self._cdn.origin

    @property
    def log(self) -> tuple[Served, ...]:
        """All requests so far, in the order in which they were answered."""
        with self._lock:
            return tuple(self._log)

    def clear_log(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self._log.clear()

    def plain_url(self, path: str) -> str:
        """Return the address of one of the plain files."""
        return f"{self.cdn_origin}/files/{quote(path)}"

    def push(self, repo_id: str, files: Files | None = None, commit: str = "") -> str:
        """Put a new commit on the branch of a repository and return it; without `files` its content is the same."""
        shelf = self._catalog.shelf(repo_id)
        if shelf is None:
            raise KeyError(repo_id)
        return shelf.push(files, commit)

    def play(self, fault: Fault, *, path: str = "", times: int | None = 1, origin: Origin | None = None) -> None:
        """Play `fault` on the next `times` answers that it applies to (None: on all of them).

        Only targets that contain `path` once decoded count, at the CDN too, where the file's name is in the query; and
        only those at `origin`, if given. One answer has one fault: the first played that is not used up.
        """
        with self._lock:
            self._plays.append(_Play(fault, path, origin, times))

    def clear_faults(self) -> None:
        """Play no more faults."""
        with self._lock:
            self._plays.clear()

    def close(self) -> None:
        """End all connections and stop listening."""
        self._hub.close()
        self._cdn.close()

    def _respond(self, origin: Origin, request: Request) -> Answer:
        if self._latency:
            self._sleep(self._latency)
        side = self._hub_side if origin == "hub" else self._cdn_side
        answer = side.respond(request)
        fault = self._next_fault(origin, request, answer)
        if fault:
            shelf = self._hub_side.shelf_of(request)
            answer = fault.change(Exchange(request, answer, shelf, self.cdn_origin))
        headers = request.headers
        seen = (headers.get("range"), headers.get("authorization"), headers.get("accept-encoding"))
        status = 0 if answer.silent else answer.status
        with self._lock:
            self._log.append(
                Served(origin, request.method, request.target, *seen, status, fault.name if fault else None)
            )
        return answer

    def _next_fault(self, origin: Origin, request: Request, answer: Answer) -> Fault | None:
        with self._lock:
            for play in self._plays:
                if play.left == 0 or play.origin not in {None, origin} or not play.fault.applies(answer):
                    continue
                if play.path not in unquote(request.target):
                    continue
                play.left = None if play.left is None else play.left - 1
                return play.fault
        return None
