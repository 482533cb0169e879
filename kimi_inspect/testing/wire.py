"""HTTP/1.1 over loopback sockets, written from RFC 9110 (semantics) and RFC 9112 (messages).

It shares no code with any client, so that a slip of the client's cannot be repeated here. An `Answer` says what goes
over the wire, faults included; a `Listener` is one origin, with a thread for each connection.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import cached_property
from http import HTTPStatus
from threading import Lock, Thread, current_thread
from typing import Literal
from urllib.parse import parse_qs

from kimi_inspect.testing.hollow import PIECE_BYTES, HollowFile

__all__ = ["Answer", "Body", "Headers", "Kind", "Listener", "Request", "bytes_body", "parse_request"]

Headers = tuple[tuple[str, str], ...]
Kind = Literal["info", "tree", "refs", "redirect", "file", "cdn", "refusal"]

_HEAD_LIMIT = 64 * 1024
_LINGER_SECONDS = 1.0
_BODYLESS = frozenset({204, 304})


@dataclass(frozen=True)
class Request:
    """A request as it came: `target` undecoded, header names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]

    @cached_property
    def path(self) -> str:
        """The target before the query, percent signs and all."""
        return self.target.partition("?")[0]

    @cached_property
    def query(self) -> dict[str, list[str]]:
        """The decoded query, each key with its values in order."""
        return parse_qs(self.target.partition("?")[2], keep_blank_values=True)

    @property
    def ends_connection(self) -> bool:
        """Whether the connection must end after this: by the client's wish, or as a body follows that is never read."""
        has_content = "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"
        return has_content or self.headers.get("connection", "").lower() == "close"


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes [`begin`, `end`) of a file."""

    file: HollowFile
    begin: int
    end: int

    @property
    def length(self) -> int:
        """Length in bytes."""
        return self.end - self.begin

    def read(self) -> bytes:
        """Return the bytes; for small bodies."""
        return self.file.read(self.begin, self.end)


def bytes_body(data: bytes) -> Body:
    """Return a body of just these bytes."""
    return Body(HollowFile(data), 0, len(data))


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send, and how.

    Content-Length, or Transfer-Encoding when `chunked`, and Date are added on sending. `cut_after` is the number of
    body bytes after which the connection is closed, whatever length was announced; `silent` closes it with no answer.
    A body goes out `piece_bytes` at a time with `pause` seconds between.
    """

    status: int
    headers: Headers = ()
    body: Body = field(default_factory=lambda: bytes_body(b""))
    kind: Kind = "refusal"
    chunked: bool = False
    cut_after: int | None = None
    silent: bool = False
    piece_bytes: int = PIECE_BYTES
    pause: float = 0.0

    def header(self, name: str) -> str | None:
        """Return the value of the first header of that name, whatever its case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def with_header(self, name: str, value: str | None) -> Answer:
        """Return the answer with that header set, or left out when `value` is None."""
        kept = tuple(pair for pair in self.headers if pair[0].lower() != name.lower())
        return replace(self, headers=kept if value is None else (*kept, (name, value)))


def parse_request(head: bytes) -> Request | None:
    """Parse an HTTP/1.1 request head without its final empty line; None when it breaks the grammar."""
    first, *lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1":
        return None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return None
        headers[name.lower()] = value.strip()
    if "host" not in headers:
        return None
    return Request(words[0], _origin_form(words[1]), headers)


def _origin_form(target: str) -> str:
    """Cut scheme and authority off a target in absolute form, which a server has to accept too."""
    if target.lower().startswith("http://"):
        return "/" + target[len("http://") :].partition("/")[2]
    return target


def head_of(answer: Answer, *, close: bool) -> bytes:
    """Return the status line and the headers as sent, up to the empty line."""
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}", f"Date: {formatdate(usegmt=True)}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if answer.chunked:
        lines.append("Transfer-Encoding: chunked")
    elif answer.status not in _BODYLESS:
        lines.append(f"Content-Length: {answer.body.length}")
    if close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Listener:
    """An origin on the loopback: answers every request by `respond` until `close` is called.

    `sleep` makes the pauses of an answer and may be replaced in tests.
    """

    def __init__(self, respond: Callable[[Request], Answer], *, port: int = 0, sleep: Callable[[float], None]) -> None:
        self._respond = respond
        self._sleep = sleep
        self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self._open: dict[Thread, socket.socket] = {}
        self._lock = Lock()
        self._closing = False
        self._accepting = Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Stop listening, end every connection and wait for its thread."""
        self._closing = True
        # Closing a socket that a thread waits on does not wake that thread everywhere; a connection does.
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._accepting.join()
        self._socket.close()
        with self._lock:
            connections = dict(self._open)
        for connection in connections.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in connections:
            thread.join()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if self._closing:
                connection.close()
                return
            thread = Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._open[thread] = connection
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            # A client that leaves early, as one that is sent a whole shard should, is no error here.
            with closing(connection), suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for head in _heads(connection):
                    if not self._exchange(connection, head):
                        break
                _hang_up(connection)
        finally:
            with self._lock:
                del self._open[current_thread()]

    def _exchange(self, connection: socket.socket, head: bytes) -> bool:
        """Answer one request; return whether the connection may go on."""
        request = parse_request(head)
        if request is None:
            connection.sendall(head_of(Answer(400), close=True))
            return False
        answer = self._respond(request)
        if answer.silent:
            return False
        self._send(connection, request, answer)
        return not (request.ends_connection or answer.cut_after is not None)

    def _send(self, connection: socket.socket, request: Request, answer: Answer) -> None:
        head = head_of(answer, close=request.ends_connection)
        pieces = _wire_pieces(answer) if request.method != "HEAD" and answer.status not in _BODYLESS else iter(())
        # Head and first piece in one segment: half the system calls of a small answer.
        connection.sendall(b"".join([head, *itertools.islice(pieces, 1)]))
        for piece in pieces:
            if answer.pause:
                self._sleep(answer.pause)
            connection.sendall(piece)


def _hang_up(connection: socket.socket) -> None:
    """End our half, then let the peer end its own: closed at once, a socket with unread bytes resets what was sent."""
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(_LINGER_SECONDS)
    while connection.recv(_HEAD_LIMIT):
        pass


def _heads(connection: socket.socket) -> Iterator[bytes]:
    """Yield the head of each request of a connection until the peer is done; an empty one for one that is too long."""
    buffer = bytearray()
    while True:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > _HEAD_LIMIT:
                yield b""
                return
            data = connection.recv(_HEAD_LIMIT)
            if not data:
                return
            buffer += data
        head = bytes(buffer[:end])
        del buffer[: end + 4]
        yield head


def _wire_pieces(answer: Answer) -> Iterator[bytes | memoryview]:
    body = answer.body
    end = body.end if answer.cut_after is None else min(body.end, body.begin + answer.cut_after)
    for piece in body.file.pieces(body.begin, end, answer.piece_bytes):
        yield b"%x\r\n%s\r\n" % (len(piece), piece) if answer.chunked else piece
    if answer.chunked and answer.cut_after is None:
        yield b"0\r\n\r\n"
