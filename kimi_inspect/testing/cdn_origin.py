"""The origin behind the Hub's redirects: large files by signed addresses, and plain files with no Hub about them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from urllib.parse import quote, unquote

from kimi_inspect.testing.catalog import Entry
from kimi_inspect.testing.hollow import HollowFile
from kimi_inspect.testing.ranges import file_answer
from kimi_inspect.testing.wire import Answer, Request, bytes_body

__all__ = ["CdnOrigin", "storage_error"]

_BRIDGE = "/xet-bridge-us/"
_PLAIN = "/files/"
# Above this many bytes the store refuses to send a file whole.
_WHOLE_LIMIT = 5_000_000_000


class CdnOrigin:
    """Gives out signed addresses, each good for `lifetime` seconds, and serves them."""

    def __init__(self, plain_files: Mapping[str, HollowFile], lifetime: float) -> None:
        self._plain_files = plain_files
        self._lifetime = lifetime
        self._key = secrets.token_bytes(16)
        self._entries: dict[str, Entry] = {}

    def sign(self, repo_id: str, entry: Entry) -> str:
        """Return a signed target for the file; its name is in the query, as on the Hub."""
        folder = hashlib.sha256(repo_id.encode()).hexdigest()[:24]
        path = f"{_BRIDGE}{folder}/{entry.xet_hash}"
        self._entries[path] = entry
        name = quote(entry.path.rpartition("/")[2])
        disposition = quote(f"inline; filename*=UTF-8''{name}; filename=\"{name}\";")
        query = f"response-content-disposition={disposition}&Expires={int(time.time() + self._lifetime)}"
        return f"{path}?{query}&Signature={self._signature(path, query)}&Key-Pair-Id=K2LOOPBACK"

    def respond(self, request: Request) -> Answer:
        """Answer any request to this origin."""
        if request.path.startswith(_PLAIN):
            return self._plain(request)
        entry = self._entries.get(request.path)
        # The store reads a second credential beside the signature as a mistake of the client's, and refuses both.
        if "authorization" in request.headers:
            return storage_error(400, "InvalidArgument", "Only one auth mechanism allowed")
        if entry is None or not self._is_signed(request):
            return storage_error(403, "AccessDenied", "Access denied")
        if request.method == "GET" and "range" not in request.headers and entry.file.size > _WHOLE_LIMIT:
            return storage_error(400, "InvalidRequest", "A file of this size is sent by ranges only")
        headers = (("Content-Type", "application/octet-stream"), ("Cache-Control", "public, max-age=31536000"))
        return file_answer(request, entry.file, etag=f'"{entry.xet_hash}"', headers=headers, kind="cdn")

    def _plain(self, request: Request) -> Answer:
        file = self._plain_files.get(unquote(request.path.removeprefix(_PLAIN)))
        if file is None:
            return Answer(404, (("Content-Type", "text/plain"),), bytes_body(b"Not Found\n"))
        headers = (("Content-Type", "application/octet-stream"),)
        return file_answer(request, file, etag=f'"{file.sha256[:32]}"', headers=headers, kind="file")

    def _is_signed(self, request: Request) -> bool:
        query, _, rest = request.target.partition("?")[2].partition("&Signature=")
        signature = rest.partition("&")[0]
        expires = query.rpartition("&Expires=")[2]
        if not hmac.compare_digest(signature, self._signature(request.path, query)):
            return False
        return time.time() < int(expires)

    def _signature(self, path: str, query: str) -> str:
        return hmac.new(self._key, f"{path}?{query}".encode(), hashlib.sha256).hexdigest()


def storage_error(status: int, code: str, message: str) -> Answer:
    """Return an error in the object store's form, XML."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>\n'
    return Answer(status, (("Content-Type", "application/xml"),), bytes_body(text.encode()))
