"""Repositories on ModelScope.

Its listing tells the SHA-256 of every file and no commit, ends without a word after 3,000 entries, and is then asked
for folder by folder. Small files come whole from the site itself, large ones from the store that it redirects to.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from attrs import frozen

from kimi_inspect import __version__
from kimi_inspect.addresses import endpoint_of, warn_if_open
from kimi_inspect.errors import (
    AuthenticationError,
    InvalidSourceError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SourceError,
    TransportError,
    UnsafePathError,
)
from kimi_inspect.header import MAX_OFFSET
from kimi_inspect.remote import MAX_PAGE_BYTES
from kimi_inspect.remote_file import SHA256, RemoteFile, agree
from kimi_inspect.sidecars import parse_config
from kimi_inspect.sources import ListedFile, leads_outside
from kimi_inspect.transport import DEFAULT_TIMEOUT, FileFacts, Transport
from kimi_inspect.values import Shard, Traffic

__all__ = ["SCHEME", "ModelScopeRepository", "reopened"]

SCHEME = "ms://"
DEFAULT_ENDPOINT = "https://modelscope.cn"
DEFAULT_BRANCH = "master"

MAX_LISTED = 3000
"""Entries after which a listing is cut, and does not say so."""

MAX_FOLDERS = 10_000
"""Folders that are listed one by one at most."""

TOKEN_COOKIE = "m_session_id"  # noqa: S105 - its name, not its value

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN = re.compile(r"[\w.~+/=-]+", re.ASCII)
_NO_REVISION = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]")
"""What git allows in no name of a branch or tag."""

_CODES_OF_NO_REPOSITORY = (10010205001, 10010200001)
"""There is none; there is one that this caller may not see."""

_CODE_OF_NO_REVISION = 10990101004


@frozen(kw_only=True)
class _Level:
    """One answer of the listing: the files below a folder, and the folders."""

    files: tuple[ListedFile, ...]
    folders: tuple[str, ...]

    @property
    def may_be_cut(self) -> bool:
        return len(self.files) + len(self.folders) >= MAX_LISTED


class ModelScopeRepository:
    """A model repository on ModelScope, read at a branch, a tag or a commit.

    Args:
        repo_id: `owner/name`.
        revision: branch, tag or commit; None for the default branch.
        token: a token of ModelScope's, True for the one in MODELSCOPE_API_TOKEN, False for none, None for that one if
            it is set.
        endpoint: address of the site; None for MODELSCOPE_ENDPOINT, else modelscope.cn.
    """

    def __init__(
        self,
        repo_id: str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        endpoint: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        address = endpoint or os.environ.get("MODELSCOPE_ENDPOINT") or DEFAULT_ENDPOINT
        self._endpoint = endpoint_of("ModelScope's", address, "MODELSCOPE_ENDPOINT")
        if revision is not None and (leads_outside(revision) or _NO_REVISION.search(revision)):
            raise InvalidSourceError("no branch, tag or commit has such a name")
        self._repo_id = repo_id
        self._revision = revision or DEFAULT_BRANCH
        # A listing names no commit: reads are pinned only where the caller pins them.
        self.commit = revision if revision and _COMMIT.fullmatch(revision) else None
        self._transport = _transport(_secret(token), self._endpoint, timeout)
        self.source = f"{SCHEME}{repo_id}" if revision is None else f"{SCHEME}{repo_id}@{revision}"

    @property
    def traffic(self) -> Traffic:
        """What the reads have cost so far."""
        return self._transport.traffic

    @property
    def origin(self) -> str:
        """The site's address."""
        return self._endpoint

    def list_files(self) -> tuple[ListedFile, ...]:
        """Return all files of the revision, by path.

        Raises:
            RepositoryNotFoundError: there is no such repository, or none that this token sees.
            RevisionNotFoundError: it has no such revision.
            UnsafePathError: a path leads out of the repository.
            TransportError: the answers make no listing, or a folder holds more than one of them can tell.
        """
        by_path = {file.path: file for level in self._levels() for file in level.files}
        return tuple(by_path[path] for path in sorted(by_path))

    def _levels(self) -> Iterator[_Level]:
        """Yield listings that together hold every file: one of all, or where that is cut, one of each folder."""
        folders = [""]
        asked = 0
        while folders:
            folder = folders.pop()
            asked += 1
            if asked > MAX_FOLDERS:
                raise TransportError("the listing has no end", file=self.source, actual=f"{asked} folders")
            level = self._level(folder, recursive=True)
            if level.may_be_cut:
                level = self._level(folder, recursive=False)
                folders += level.folders
            if level.may_be_cut:
                raise TransportError(
                    "ModelScope lists no more files of a folder than that, so some would be missed",
                    file=self.source,
                    expected=f"fewer than {MAX_LISTED:,} in '{folder or '.'}'",
                    actual=f"{MAX_LISTED:,} or more",
                    retryable=False,
                )
            yield level

    def _level(self, folder: str, *, recursive: bool) -> _Level:
        query = {"Revision": self._revision, "Recursive": str(recursive)} | ({"Root": folder} if folder else {})
        url = f"{self._endpoint}/api/v1/models/{quote(self._repo_id)}/repo/files?{urlencode(query)}"
        entries = self._ask(url)
        if not entries and not folder:
            # So it answers to a branch that there is not; and git knows no folder without a file.
            raise RevisionNotFoundError(
                f"no files there: no such branch, tag or commit, or an empty one; the default is {DEFAULT_BRANCH}",
                file=self.source,
            )
        if not entries:
            raise TransportError("a folder of the listing has no files; start again", file=self.source, actual=folder)
        read = [self._entry(raw, folder) for raw in entries]
        return _Level(
            files=tuple(one for one in read if isinstance(one, ListedFile)),
            folders=tuple(one for one in read if isinstance(one, str)),
        )

    def _ask(self, url: str) -> list[Any]:
        """Return the entries that an answer of the API holds."""
        answer = self._transport.read_file(url, limit=MAX_PAGE_BYTES, file=self.source, telling=(404,))
        told = parse_config(answer.data) or {}
        if answer.status == 404 or told.get("Success") is False or told.get("Code", 200) != 200:
            raise _refusal(told.get("Code"), answer.status, self.source)
        try:
            entries = told["Data"]["Files"]
        except (KeyError, TypeError):
            entries = told
        if entries is not None and not isinstance(entries, list):
            raise TransportError("the answer is no listing; check the endpoint", file=self.source)
        return entries or []

    def _entry(self, raw: Any, folder: str) -> ListedFile | str:
        """Read one entry of the listing of a folder; a folder in it gives its path."""
        try:
            kind, path, size = raw["Type"], raw["Path"], raw.get("Size")
            if kind not in ("blob", "tree") or type(path) is not str or not (kind == "tree" or _is_size(size)):
                raise TypeError  # noqa: TRY301
        except (KeyError, TypeError, AttributeError):
            raise TransportError("the listing has an entry of no known form", file=self.source) from None
        if leads_outside(path):
            raise UnsafePathError("a path in the listing leaves the repository", file=self.source, actual=repr(path))
        if folder and not path.startswith(folder + "/"):
            problem = "the listing of a folder tells of another"
            raise TransportError(problem, file=self.source, expected=folder, actual=path)
        if kind == "tree":
            return path
        return ListedFile(path=path, size=size, sha256=_digest(raw.get("Sha256")), url=self._address(path))

    def _address(self, path: str) -> str:
        return f"{self._endpoint}/models/{quote(self._repo_id)}/resolve/{quote(self._revision, safe='')}/{quote(path)}"

    def open(self, file: ListedFile) -> RemoteFile:
        """Return the bytes of a file."""
        return RemoteFile(self._transport, self._address(file.path), path=file.path, size=file.size, sha256=file.sha256)

    def read_small(self, file: ListedFile, limit: int) -> bytes:
        """Return all bytes of a side file, which are those of the listing: the branch may have moved since."""
        data = self._transport.read_file(self._address(file.path), limit=limit, file=file.path).data
        found = FileFacts(etag=hashlib.sha256(data).hexdigest())
        agree(found, commit=None, sha256=file.sha256, path=file.path)
        return data

    def cancel(self) -> None:
        """Let reads under way stop soon."""
        self._transport.cancel()


def reopened(shard: Shard, *, token: str | bool | None) -> RemoteFile:
    """Return the bytes of a shard that was read before; a token goes to the site it came from, and nowhere else.

    Raises:
        AuthenticationError: there is no such token.
    """
    url = shard.url or ""
    transport = _transport(_secret(token), url, DEFAULT_TIMEOUT)
    return RemoteFile(transport, url, path=shard.path, size=shard.file_bytes, sha256=shard.sha256)


def _transport(secret: str | None, address: str, timeout: float) -> Transport:
    warn_if_open(secret, address)
    return Transport(
        timeout=timeout,
        token=secret,
        token_origin=address,
        token_cookie=TOKEN_COOKIE,
        user_agent=f"kimi_inspect/{__version__}",
    )


def _secret(token: str | bool | None) -> str | None:
    """Return the token to send; one of the Hub's is never looked for."""
    if token is False:
        return None
    secret = token if isinstance(token, str) else os.environ.get("MODELSCOPE_API_TOKEN", "").strip()
    if secret.startswith("hf_"):
        raise AuthenticationError("that is a token of the Hub's; ModelScope's own is set as MODELSCOPE_API_TOKEN")
    if token is True and not secret:
        raise AuthenticationError("no token of ModelScope's is there; set MODELSCOPE_API_TOKEN")
    if secret and not _TOKEN.fullmatch(secret):
        raise AuthenticationError("the token holds characters that no token has; copy it anew")
    return secret or None


def _refusal(code: object, status: int, source: str) -> SourceError:
    """Choose our error for an answer that says no. Its message is not shown: it may repeat what was sent."""
    told = f"status {status}" + (f", code {code}" if type(code) is int else "")
    if code == _CODE_OF_NO_REVISION:
        return RevisionNotFoundError("the repository has no such branch, tag or commit", file=source, actual=told)
    if status == 404 or code in _CODES_OF_NO_REPOSITORY:
        advice = "no such repository, or a private one; check the name, or use a token of ModelScope's that sees it"
        return RepositoryNotFoundError(advice, file=source, actual=told)
    return TransportError("ModelScope gives no listing; try later", file=source, actual=told)


def _is_size(size: object) -> bool:
    return type(size) is int and 0 <= size <= MAX_OFFSET


def _digest(value: object) -> str | None:
    lower = value.lower() if isinstance(value, str) else ""
    return lower if SHA256.fullmatch(lower) else None
