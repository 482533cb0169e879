"""The Hub's own origin: metadata, listings, references and the resolver, as its HTTP answers show them."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote

from kimi_inspect.testing.catalog import Catalog, Entry, Repository, Shelf, Snapshot
from kimi_inspect.testing.ranges import file_answer
from kimi_inspect.testing.refusals import refuse
from kimi_inspect.testing.wire import Answer, Headers, Kind, Request, bytes_body

__all__ = ["HubOrigin"]

_API = "/api/models/"
_CACHE = "/api/resolve-cache/models/"
_TEXT_SUFFIXES = (".json", ".md", ".txt", ".py", ".jinja", ".yaml", ".gitattributes")
_JSON: Headers = (("Content-Type", "application/json; charset=utf-8"),)
_EXPOSED = "X-Repo-Commit,X-Request-Id,X-Error-Code,X-Error-Message,X-Total-Count,ETag,Link,Accept-Ranges,Content-Range"
# Requests a window of 300 s, as for a free account. Told, never enforced: a 429 is a fault to be played.
_QUOTAS: Mapping[str, int] = {"api": 1_000, "resolvers": 5_000, "pages": 100}


class HubOrigin:
    """Answers for the Hub.

    `sign` turns a repository id and a file into an address at the CDN. Of the `tokens` all may see everything; the
    `unapproved` ones are valid, but open neither gated nor private repositories.
    """

    def __init__(
        self,
        catalog: Catalog,
        sign: Callable[[str, Entry], str],
        *,
        page_size: int,
        tokens: Collection[str],
        unapproved: Collection[str],
    ) -> None:
        self._catalog = catalog
        self._sign = sign
        self._page_size = page_size
        self._tokens = frozenset(tokens)
        self._unapproved = frozenset(unapproved)
        self._numbers = itertools.count(1)

    def respond(self, request: Request) -> Answer:
        """Answer any request to this origin, with the headers that all answers of the Hub bear."""
        answer = self._route(request)
        bucket = "resolvers" if "/resolve" in request.path else "api" if request.path.startswith("/api/") else "pages"
        quota = _QUOTAS[bucket]
        headers: Headers = (
            ("X-Powered-By", "huggingface-moon"),
            ("X-Request-Id", f"Root=1-{next(self._numbers):08x};{request.headers.get('x-request-id', '')}"),
            ("RateLimit", f'"{bucket}";r={quota - 1};t=300'),
            ("RateLimit-Policy", f'"fixed window";"{bucket}";q={quota};w=300'),
            ("Vary", "Origin"),
            ("Access-Control-Expose-Headers", _EXPOSED),
        )
        return Answer(answer.status, (*answer.headers, *headers), answer.body, answer.kind, answer.chunked)

    def shelf_of(self, request: Request) -> Shelf | None:
        """Return the repository that a request is about."""
        for route in (_API, _CACHE, "/"):
            if request.path.startswith(route):
                return self._catalog.shelf(self._catalog.locate(request.path.removeprefix(route))[0])
        return None

    def _route(self, request: Request) -> Answer:
        if request.method not in {"GET", "HEAD"}:
            return _json(405, {"error": "Method not allowed"}, (("Allow", "GET, HEAD"),))
        for route, respond in ((_API, self._api), (_CACHE, self._cached)):
            if request.path.startswith(route):
                return self._on_shelf(request, route, respond)
        if "/resolve/" in request.path:
            return self._on_shelf(request, "/", self._resolve)
        return _json(404, {"error": "Sorry, we can't find the page you are looking for."})

    def _on_shelf(self, request: Request, route: str, respond: Callable[[Request, Shelf, list[str]], Answer]) -> Answer:
        """Find the repository and look at the credentials, then let `respond` see to the parts after the id."""
        repo_id, parts = self._catalog.locate(request.path.removeprefix(route))
        token = _token(request)
        if token is not None and token not in self._tokens | self._unapproved:
            return refuse("bad-token", request)
        today = self._catalog.today(repo_id)
        shelf = self._catalog.shelf(today) if today else None
        if today is None or shelf is None or (shelf.repository.private and token not in self._tokens):
            return refuse("repo-missing" if token else "repo-missing-anonymous", request)
        if today != repo_id:
            query = request.target.removeprefix(request.path)
            location = "/".join([route + quote(today), *parts]) + query
            return Answer(307, (("Location", location),), bytes_body(b"Temporary Redirect"), "redirect")
        if shelf.repository.disabled:
            return refuse("disabled", request)
        return respond(request, shelf, parts)

    def _api(self, request: Request, shelf: Shelf, parts: list[str]) -> Answer:
        verb, *rest = parts or ["revision", shelf.repository.branch]
        if verb == "refs":
            return _json(200, _refs(shelf), kind="refs")
        if verb not in {"revision", "tree"} or not rest:
            return _json(404, {"error": "Not found"})
        revision = unquote(rest[0])
        snapshot = shelf.find(revision)
        if snapshot is None:
            return refuse("revision-missing", request, rev=revision)
        masked = self._masks(request, shelf.repository)
        if verb == "tree":
            return self._tree(request, snapshot, unquote("/".join(rest[1:])), masked=masked)
        return _json(200, _info(request, shelf.repository, snapshot, masked=masked), kind="info")

    def _tree(self, request: Request, snapshot: Snapshot, folder: str, *, masked: bool) -> Answer:
        if folder and folder not in snapshot.folders:
            return refuse("entry-missing", request, headers=(("X-Repo-Commit", snapshot.commit),))
        recursive = request.query.get("recursive", ["false"])[0] == "true"
        entries = snapshot.listing(folder, recursive=recursive, masked=masked)
        after = _after(request.query.get("cursor", [""])[0])
        if after is None:
            return _json(400, {"error": "Invalid cursor"})
        wanted = request.query.get("limit", [""])[0]
        limit = min(int(wanted), self._page_size) if wanted.isdecimal() and int(wanted) else self._page_size
        rest = [entry for entry in entries if entry["path"] > after]
        headers = _next_link(request, rest[limit - 1], limit) if len(rest) > limit else ()
        return _json(200, rest[:limit], (*headers, ("X-Repo-Commit", snapshot.commit)), kind="tree")

    def _masks(self, request: Request, repository: Repository) -> bool:
        """Whether the digests are hidden: the list of a gated repository is public, they are not."""
        return bool(repository.gated) and _token(request) not in self._tokens

    def _resolve(self, request: Request, shelf: Shelf, parts: list[str]) -> Answer:
        found = self._find(request, shelf, parts[1:])
        if isinstance(found, Answer):
            return found
        snapshot, entry = found
        if not entry.is_lfs:
            return _to_cache(request, shelf.repository.repo_id, snapshot, entry)
        location = self._sign(shelf.repository.repo_id, entry)
        token_route = f"{_own_origin(request)}{_API}{shelf.repository.repo_id}/xet-read-token/{snapshot.commit}"
        headers: Headers = (
            ("Location", location),
            ("X-Repo-Commit", snapshot.commit),
            ("X-Linked-Size", str(entry.file.size)),
            ("X-Linked-ETag", f'"{entry.file.sha256}"'),
            ("X-Xet-Hash", entry.xet_hash),
            ("Link", f'<{token_route}>; rel="xet-auth"'),
            ("Accept-Ranges", "bytes"),
            ("Cache-Control", "no-store"),
            ("Content-Type", "text/plain; charset=utf-8"),
        )
        return Answer(302, headers, bytes_body(f"Found. Redirecting to {location}".encode()), "redirect")

    def _cached(self, request: Request, shelf: Shelf, parts: list[str]) -> Answer:
        found = self._find(request, shelf, parts)
        if isinstance(found, Answer):
            return found
        snapshot, entry = found
        headers: Headers = (("X-Repo-Commit", snapshot.commit), ("Content-Type", "text/plain; charset=utf-8"))
        # The edge compresses text for whoever offers gzip, and then has no use for a range.
        if entry.path.endswith(_TEXT_SUFFIXES) and "gzip" in request.headers.get("accept-encoding", ""):
            packed = bytes_body(gzip.compress(entry.file.read(), mtime=0))
            headers = (*headers, ("ETag", f'W/"{entry.oid}"'), ("Content-Encoding", "gzip"))
            return Answer(200, headers, packed, "file", chunked=True)
        return file_answer(request, entry.file, etag=f'"{entry.oid}"', headers=headers, kind="file")

    def _find(self, request: Request, shelf: Shelf, parts: list[str]) -> tuple[Snapshot, Entry] | Answer:
        """Find the file named by a revision and a path, if this caller may read it."""
        repository, token = shelf.repository, _token(request)
        if repository.gated and token not in self._tokens:
            return refuse("gated-unapproved" if token else "gated-anonymous", request, repo=repository.repo_id)
        revision = unquote(parts[0]) if parts else ""
        snapshot = shelf.find(revision)
        if snapshot is None:
            return refuse("revision-missing", request, rev=revision)
        entry = snapshot.entries.get(unquote("/".join(parts[1:])))
        if entry is None:
            return refuse("entry-missing", request, headers=(("X-Repo-Commit", snapshot.commit),))
        return snapshot, entry


def _token(request: Request) -> str | None:
    value = request.headers.get("authorization")
    return value.removeprefix("Bearer ") if value else None


def _own_origin(request: Request) -> str:
    return "http://" + request.headers["host"]


def _json(status: int, value: object, headers: Headers = (), kind: Kind = "refusal") -> Answer:
    body = json.dumps(value).encode()
    etag = hashlib.sha1(body, usedforsecurity=False).hexdigest()[:27]
    return Answer(status, (*_JSON, ("ETag", f'W/"{len(body):x}-{etag}"'), *headers), bytes_body(body), kind)


def _info(request: Request, repository: Repository, snapshot: Snapshot, *, masked: bool) -> dict[str, Any]:
    repo_id = repository.repo_id
    blobs = request.query.get("blobs", [""])[0] == "true"
    siblings = [
        entry.sibling(masked=masked) if blobs else {"rfilename": entry.path} for entry in snapshot.entries.values()
    ]
    info: dict[str, Any] = {
        "_id": hashlib.sha256(repo_id.encode()).hexdigest()[:24],
        "id": repo_id,
        "modelId": repo_id,
        "author": repo_id.rpartition("/")[0],
        "sha": snapshot.commit,
        "lastModified": "2026-11-01T00:00:00.000Z",
        "private": repository.private,
        "gated": "auto" if repository.gated is True else repository.gated,
        "disabled": repository.disabled,
        "tags": ["transformers", "safetensors"],
        "library_name": "transformers",
        "siblings": siblings,
        "usedStorage": sum(entry.file.size for entry in snapshot.entries.values()),
        **repository.info,
    }
    # Asked for by name, nothing else comes but the two ids.
    asked = request.query.get("expand")
    return {key: value for key, value in info.items() if key in {"_id", "id", *asked}} if asked else info


def _refs(shelf: Shelf) -> dict[str, Any]:
    branch = shelf.repository.branch

    def reference(name: str, folder: str) -> dict[str, str]:
        return {"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": shelf.refs[name].commit}

    tags = [reference(name, "tags") for name in shelf.refs if name != branch]
    return {"tags": tags, "converts": [], "branches": [reference(branch, "heads")]}


def _to_cache(request: Request, repo_id: str, snapshot: Snapshot, entry: Entry) -> Answer:
    place = f"{_CACHE}{quote(repo_id)}/{snapshot.commit}/{quote(entry.path)}"
    location = f"{place}?{quote(request.path, safe='')}=&etag=%22{entry.oid}%22"
    headers: Headers = (
        ("Location", location),
        ("X-Repo-Commit", snapshot.commit),
        ("X-Linked-ETag", f'"{entry.oid}"'),
        ("Accept-Ranges", "bytes"),
        ("Content-Type", "text/plain; charset=utf-8"),
    )
    return Answer(307, headers, bytes_body(f"Temporary Redirect. Redirecting to {location}".encode()), "redirect")


def _next_link(request: Request, last: Mapping[str, Any], limit: int) -> Headers:
    place = json.dumps({"file_name": last["path"], "tree_oid": last["oid"]}).encode()
    cursor = base64.b64encode(base64.b64encode(place) + b":%d" % limit).decode()
    kept = "&".join(
        f"{key}={quote(values[0])}" for key, values in request.query.items() if key not in {"limit", "cursor"}
    )
    query = f"{kept}&limit={limit}&cursor={quote(cursor)}".lstrip("&")
    return (("Link", f'<{_own_origin(request)}{request.path}?{query}>; rel="next"'),)


def _after(cursor: str) -> str | None:
    """Return the path that a page begins after, "" for the first page; None when the cursor is none of ours."""
    if not cursor:
        return ""
    try:
        place = json.loads(base64.b64decode(base64.b64decode(cursor).partition(b":")[0]))
    except (binascii.Error, ValueError):
        return None
    return str(place["file_name"])
