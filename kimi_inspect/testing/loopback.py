"""What the servers on the loopback have in common: two origins, a log of all requests, and faults to play.

Two listeners on two ports are two origins, so a client shows here whether it keeps its token to the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import ClassVar, Literal, Self
from urllib.parse import unquote

from kimi_inspect.testing.catalog import Shelf
from kimi_inspect.testing.faults import Exchange, Fault
from kimi_inspect.testing.wire import Answer, Listener, Request

__all__ = ["LoopbackServer", "Origin", "Served"]

Origin = Literal["hub", "cdn", "site", "store"]


@dataclass(frozen=True, slots=True)
class Served:
    """A request and what became of it.

    `range`, `authorization`, `accept_encoding` and `cookie` are the headers as sent, None when absent. `status` is 0
    when the connection was closed with no answer; `fault` names the fault that was played, if any.
    """

    origin: Origin
    method: str
    target: str
    range: str | None
    authorization: str | None
    accept_encoding: str | None
    cookie: str | None
    status: int
    fault: str | None = None


@dataclass(slots=True)
class _Play:
    fault: Fault
    path: str
    origin: Origin | None
    left: int | None


class LoopbackServer(ABC):
    """A server that listens from its making until `close`, or the end of its `with` block.

    `origins` names the one that clients are told of, and the one that it redirects them to.
    """

    origins: ClassVar[tuple[Origin, Origin]]

    def __init__(self, *, port: int = 0, sleep: Callable[[float], None]) -> None:
        self._log: list[Served] = []
        self._plays: list[_Play] = []
        self._lock = Lock()
        front, back = self.origins
        # The front first: its port may be taken, and then nothing is left open.
        self._front = Listener(lambda request: self._respond(front, request), port=port, sleep=sleep)
        self._back = Listener(lambda request: self._respond(back, request), sleep=sleep)

    def __enter__(self) -> Self:
        """Return the server: it listens already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the server."""
        self.close()

    @property
    def endpoint(self) -> str:
        """What to give a client as the endpoint: scheme, address and port."""
        return self._front.origin

    @property
    def cdn_origin(self) -> str:
        """Scheme, address and port of where the files lie."""
        return self._back.origin

    @property
    def log(self) -> tuple[Served, ...]:
        """All requests so far, in the order in which they were answered."""
        with self._lock:
            return tuple(self._log)

    def clear_log(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self._log.clear()

    def play(self, fault: Fault, *, path: str = "", times: int | None = 1, origin: Origin | None = None) -> None:
        """Play `fault` on the next `times` answers that it applies to (None: on all of them).

        Only targets that contain `path` once decoded count, at the second origin too, where the file's name is in the
        query; and only those at `origin`, if given. One answer has one fault: the first played that is not used up.
        """
        with self._lock:
            self._plays.append(_Play(fault, path, origin, times))

    def clear_faults(self) -> None:
        """Play no more faults."""
        with self._lock:
            self._plays.clear()

    def close(self) -> None:
        """End all connections and stop listening."""
        self._front.close()
        self._back.close()

    @abstractmethod
    def _answer(self, origin: Origin, request: Request) -> Answer:
        """Answer without any fault."""

    def _shelf_of(self, request: Request) -> Shelf | None:  # noqa: ARG002 - for those that have shelves
        """Return the repository that a request is for, with its history."""
        return None

    def _respond(self, origin: Origin, request: Request) -> Answer:
        answer = self._answer(origin, request)
        fault = self._next_fault(origin, request, answer)
        if fault:
            answer = fault.change(Exchange(request, answer, self._shelf_of(request), self.cdn_origin))
        told = request.headers.get
        served = Served(
            origin=origin,
            method=request.method,
            target=request.target,
            range=told("range"),
            authorization=told("authorization"),
            accept_encoding=told("accept-encoding"),
            cookie=told("cookie"),
            status=0 if answer.silent else answer.status,
            fault=fault.name if fault else None,
        )
        with self._lock:
            self._log.append(served)
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
