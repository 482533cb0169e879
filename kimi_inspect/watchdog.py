"""Ends requests that take too long or are no longer wanted, by shutting their connections down.

A thread that waits for a server cannot look at a clock; and a server that sends a byte now and then never lets a read
time out. So another thread watches, and a read on a connection that has been shut down fails at once.

The connections are huggingface_hub's, shared by all calls of a process, and which of them a request gets is not known
before its answer begins. So each is noted when it is opened and when an answer comes over it, and shutting down takes
those that are ours or that nobody at work had last.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Watchdog"]

_OPENED = ("connect_tcp.complete", "start_tls.complete")

_owners: WeakKeyDictionary[Any, Watchdog] = WeakKeyDictionary()
_lock = threading.Lock()


class Watchdog:
    """Watches the requests of one transport. Its thread lives only while an answer is awaited.

    Attributes:
        at_work: how many requests are under way.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._deadlines: dict[object, float] = {}
        self._watching = False
        self.at_work = 0

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note each connection that is opened; given to the HTTP library as its `trace` extension."""
        if event.endswith(_OPENED):
            self.own(info["return_value"])

    def own(self, connection: Any) -> None:
        """Note that a connection serves us now."""
        if connection is not None:
            with _lock:
                _owners[connection] = self

    @contextmanager
    def work(self) -> Iterator[None]:
        """Keep others from shutting our connections down during the block."""
        with self._changed:
            self.at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self.at_work -= 1

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Shut the connections down if the block takes longer."""
        key = object()
        with self._changed:
            self._deadlines[key] = time.monotonic() + seconds
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="kimi-inspect-watchdog", daemon=True).start()
        try:
            yield
        finally:
            with self._changed:
                del self._deadlines[key]
                if not self._deadlines:  # woken at each answer, the watcher would take the readers' turns
                    self._changed.notify()

    def shut_down(self) -> None:
        """Shut our connections down; reads that wait on them fail."""
        with _lock:
            if not self.at_work:
                return
            ours = [connection for connection, owner in _owners.items() if owner is self or not owner.at_work]
            for connection in ours:
                del _owners[connection]
        for connection in ours:
            with suppress(OSError, AttributeError):
                # The plain socket's method: that of a TLS socket would pull the ground from under a waiting read.
                socket.socket.shutdown(connection.get_extra_info("socket"), socket.SHUT_RDWR)

    def _watch(self) -> None:
        while True:
            with self._changed:
                if not self._deadlines:
                    self._watching = False
                    return
                left = min(self._deadlines.values()) - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
            self.shut_down()
            time.sleep(0.05)  # until the reader has noticed and its deadline is gone
