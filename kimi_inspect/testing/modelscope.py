"""A ModelScope on the loopback, with an object store behind it: what its API and its resolver answer.

It has the site's habits that a client has to know: a listing ends at 3,000 entries and does not say so, a branch that
there is not has an empty one, every refusal is a 404 whose reason is a code in the body, and a file that lies in git
comes whole whatever range was asked for. The faults of `faults` play here as they do on the Hub.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from kimi_inspect.testing.hollow import Files, HollowFile
from kimi_inspect.testing.loopback import LoopbackServer, Origin
from kimi_inspect.testing.ranges import file_answer
from kimi_inspect.testing.wire import Answer, Body, Headers, Kind, Request, bytes_body

__all__ = ["LoopbackModelScope"]

LISTED_AT_MOST = 3000

_API = "/api/v1/models/"
_PAGES = "/models/"
_LFS_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx")
_LFS_FROM_BYTES = 10_000_000
_NO_REPOSITORY, _NO_ACCESS, _NO_TREE = 10010205001, 10010200001, 10990101004


class LoopbackModelScope(LoopbackServer):
    """A ModelScope that listens from its making until `close`, or the end of its `with` block.

    `repositories` maps ids to files, the very ones that a `Repository` of the Hub may hold. All have the branch
    `master`, and the branches, tags and commits in `revisions`, with the same files. Those in `private` are seen with
    one of the `tokens`, given in the header or in the cookie. Files at the paths `in_git` are kept in git whatever
    their names; others by their names and sizes.
    """

    origins = ("site", "store")

    def __init__(
        self,
        repositories: Mapping[str, Files],
        *,
        tokens: Collection[str] = (),
        private: Collection[str] = (),
        revisions: Collection[str] = (),
        in_git: Collection[str] = (),
        listed_at_most: int = LISTED_AT_MOST,
    ) -> None:
        self._repositories = {
            repo_id: {
                path: HollowFile(file) if isinstance(file, bytes) else file for path, file in sorted(files.items())
            }
            for repo_id, files in repositories.items()
        }
        self._tokens = frozenset(tokens)
        self._private = frozenset(private)
        self._revisions = frozenset({"master", *revisions})
        self._in_git = frozenset(in_git)
        self._listed_at_most = listed_at_most
        self._signed: dict[str, HollowFile] = {}
        super().__init__(sleep=_no_pause)  # last: from here on it is asked

    def _answer(self, origin: Origin, request: Request) -> Answer:
        return self._route(request) if origin == "site" else self._stored(request)

    def _route(self, request: Request) -> Answer:
        route = next((one for one in (_API, _PAGES) if request.path.startswith(one)), None)
        owner, name, rest = (*request.path.removeprefix(route or "").split("/", 2), "", "")[:3]
        repo_id = f"{unquote(owner)}/{unquote(name)}"
        if route is None or request.method != "GET" or repo_id not in self._repositories:
            return _refusal(_NO_REPOSITORY)
        if repo_id in self._private and not self._is_known(request):
            return _refusal(_NO_ACCESS)
        files = self._repositories[repo_id]
        return self._api(request, files, rest) if route == _API else self._resolve(files, rest)

    def _is_known(self, request: Request) -> bool:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        pairs = (pair.strip().partition("=") for pair in request.headers.get("cookie", "").split(";"))
        return bool(self._tokens & {bearer, *(value for name, _, value in pairs if name == "m_session_id")})

    def _api(self, request: Request, files: Mapping[str, HollowFile], rest: str) -> Answer:
        if rest != "repo/files":
            return _refusal(_NO_REPOSITORY)
        revision = request.query.get("Revision", ["master"])[0]
        if revision not in self._revisions:
            # A name that is none has an empty tree, a commit that is none has no tree.
            return _refusal(_NO_TREE) if len(revision) == 40 else _listing(None)
        root = request.query.get("Root", [""])[0].strip("/")
        recursive = request.query.get("Recursive", ["False"])[0].lower() == "true"
        found = itertools.islice(self._entries(files, root, recursive=recursive), self._listed_at_most)
        return _listing(list(found) or None)

    def _entries(self, files: Mapping[str, HollowFile], root: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
        """Yield the entries below a folder by path, folders too, each with its path from the top."""
        folders = {path[:at] for path in files for at, char in enumerate(path) if char == "/"}
        prefix = root + "/" if root else ""
        for path in sorted(folders | files.keys()):
            if path.startswith(prefix) and (recursive or "/" not in path.removeprefix(prefix)):
                yield self._file(path, files[path]) if path in files else _folder(path)

    def _file(self, path: str, file: HollowFile) -> dict[str, Any]:
        sizes = {"Size": file.size, "Sha256": file.sha256, "IsLFS": self._is_lfs(path, file)}
        return _entry(path, "blob", "33188") | sizes

    def _is_lfs(self, path: str, file: HollowFile) -> bool:
        return path not in self._in_git and (path.endswith(_LFS_SUFFIXES) or file.size > _LFS_FROM_BYTES)

    def _resolve(self, files: Mapping[str, HollowFile], rest: str) -> Answer:
        verb, _, place = rest.partition("/")
        revision, _, quoted = place.partition("/")
        path = unquote(quoted)
        if verb != "resolve" or unquote(revision) not in self._revisions or path not in files:
            return _refusal(_NO_REPOSITORY)
        file = files[path]
        if not self._is_lfs(path, file):
            headers: Headers = (("Content-Type", "application/octet-stream"),)
            return Answer(200, headers, Body(file, 0, file.size), "file")
        target = f"/lfs/{file.sha256}?filename={quoted}&auth_key={secrets.token_hex(16)}"
        with self._lock:
            self._signed[target] = file
        headers = (
            ("Location", self.cdn_origin + target),
            ("X-Linked-Size", str(file.size)),
            ("X-Linked-ETag", file.sha256),
        )
        return Answer(302, headers, bytes_body(b"Found\n"), "redirect")

    def _stored(self, request: Request) -> Answer:
        with self._lock:
            file = self._signed.get(request.target)
        # A second credential beside the signed address is refused, as object stores do.
        if file is None or "authorization" in request.headers:
            return Answer(403, (("Content-Type", "application/xml"),), bytes_body(b"<Error>AccessDenied</Error>"))
        headers = (("Content-Type", "application/octet-stream"),)
        return file_answer(request, file, etag=f'"{file.sha256[:32].upper()}"', headers=headers, kind="cdn")


def _no_pause(_: float) -> None:
    """Let a fault's pauses pass at once."""


def _entry(path: str, kind: str, mode: str) -> dict[str, Any]:
    return {
        "Name": path.rpartition("/")[2],
        "Path": path,
        "Type": kind,
        "Mode": mode,
        # The commit that last touched the file, a stand-in here: each has one of its own.
        "Revision": hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest(),
        "CommittedDate": 1780000000,
        "InCheck": False,
    }


def _folder(path: str) -> dict[str, Any]:
    return _entry(path, "tree", "16384") | {"Size": 0, "Sha256": "", "IsLFS": False}


def _listing(entries: list[dict[str, Any]] | None) -> Answer:
    return _json(200, {"Code": 200, "Data": {"Files": entries}, "Message": "success", "Success": True}, "tree")


def _refusal(code: int) -> Answer:
    return _json(404, {"Code": code, "Message": "record not found", "Success": False}, "refusal")


def _json(status: int, value: dict[str, Any], kind: Kind) -> Answer:
    body = json.dumps({**value, "RequestId": "loopback"}).encode()
    return Answer(status, (("Content-Type", "application/json; charset=utf-8"),), bytes_body(body), kind)
