"""Files and folders behind HTTP: plain addresses, and repositories on the Hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from kimi_inspect import __version__
from kimi_inspect.addresses import endpoint_of, next_address, origin, public_url, warn_if_open
from kimi_inspect.errors import (
    AuthenticationError,
    SourceError,
    TransportError,
    UnsafePathError,
)
from kimi_inspect.gguf import FIRST_READ
from kimi_inspect.header import MAX_OFFSET
from kimi_inspect.hub_card import HubCard, read_card
from kimi_inspect.remote_file import PROBE_BYTES, SHA256, RemoteFile, agree
from kimi_inspect.sidecars import split_siblings
from kimi_inspect.sources import ListedFile, leads_outside
from kimi_inspect.transport import DEFAULT_TIMEOUT, Transport
from kimi_inspect.values import Shard, Traffic

__all__ = ["HubRepository", "PlainFiles", "reopened"]

MAX_PAGE_BYTES = 32 * 1024 * 1024
MAX_PAGES = 10_000
"""Listing pages of a thousand entries each that are followed at most."""

_SHA1 = re.compile(r"[0-9a-f]{40}")

_ASKED = "&".join(f"expand={name}" for name in ("sha", "safetensors", "gguf", "cardData", "tags"))
"""What the Hub is to tell of a repository: asked for by name, nothing else comes."""


class PlainFiles:
    """A file behind a plain address, and the other parts of the set that its name says it belongs to."""

    commit: str | None = None
    origin: str | None = None

    def __init__(self, url: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._url = url
        self._transport = Transport(timeout=timeout)
        self._probe: RemoteFile | None = None
        self.source = public_url(url)

    @property
    def traffic(self) -> Traffic:
        """What the reads have cost so far."""
        return self._transport.traffic

    def list_files(self) -> tuple[ListedFile, ...]:
        """Return the file, or all parts of its set; their sizes are not known before they are read.

        Raises:
            SourceError: the file itself cannot be had; its siblings are not asked for then.
        """
        name = unquote(urlsplit(self._url).path.rpartition("/")[2])
        siblings = split_siblings(name) or [name]
        if len(siblings) > 1:
            probe = self.open(self._listed(name))
            _ = probe.size
            self._probe = probe
        return tuple(map(self._listed, siblings))

    def _listed(self, path: str) -> ListedFile:
        return ListedFile(path=path, size=None, url=public_url(self._address(path)))

    def _address(self, path: str) -> str:
        query = urlsplit(self._url).query
        return urljoin(self._url, quote(path)) + (f"?{query}" if query else "")

    def open(self, file: ListedFile) -> RemoteFile:
        """Return the bytes of a file."""
        address = self._address(file.path)
        if self._probe and address == self._url:
            probe, self._probe = self._probe, None
            return probe  # what it has read is not read again
        probe_bytes = FIRST_READ if file.path.endswith(".gguf") else PROBE_BYTES
        return RemoteFile(self._transport, address, path=file.path, size=None, probe_bytes=probe_bytes)

    def read_small(self, file: ListedFile, limit: int) -> bytes:
        """Return all bytes of a side file."""
        return self._transport.read_file(self._address(file.path), limit=limit, file=file.path).data

    def cancel(self) -> None:
        """Let reads under way stop soon."""
        self._transport.cancel()


class HubRepository:
    """A model repository on the Hub, pinned to one commit by the first look.

    Args:
        repo_id: `owner/name`.
        revision: branch, tag or commit; None for the default branch.
        token: a token, True for the saved one, False for none, None for the saved one if there is one.
        endpoint: address of the Hub; None for huggingface_hub's setting.
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
        from huggingface_hub import constants

        self._endpoint = endpoint_of("the Hub's", endpoint or constants.ENDPOINT, "HF_ENDPOINT")
        self._repo_id = repo_id
        self._revision = revision
        self._commit: str | None = revision if revision and _SHA1.fullmatch(revision) else None
        self._card: HubCard | None = None
        secret = _token(token)
        warn_if_open(secret, self._endpoint)
        self._transport = Transport(
            timeout=timeout, token=secret, token_origin=self._endpoint, user_agent=_user_agent()
        )
        self.source = repo_id if revision is None else f"{repo_id}@{revision}"

    @property
    def traffic(self) -> Traffic:
        """What the reads have cost so far."""
        return self._transport.traffic

    @property
    def origin(self) -> str:
        """The Hub's address."""
        return self._endpoint

    @property
    def commit(self) -> str:
        """The commit that all reads are pinned to; the first call may ask the Hub for it."""
        if self._commit is None:
            self._commit = self._resolve()
        return self._commit

    def _api(self) -> str:
        return f"{self._endpoint}/api/models/{self._repo_id}"

    @property
    def card(self) -> HubCard | None:
        """What the Hub says of the repository beside its files; None if it cannot be had.

        It comes with the commit, so it costs a request only where the caller named that, and that request is not
        repeated once it has been answered.

        Raises:
            SourceError: the commit is not known yet and cannot be had.
        """
        if self._card is None and self.commit == self._revision:
            try:
                self._resolve()
            except SourceError:
                return None
        return self._card

    def _resolve(self) -> str:
        """Ask the Hub for the commit, and keep what else it says in the same answer."""
        revision = "" if self._revision is None else f"/revision/{quote(self._revision, safe='')}"
        info, _ = self._transport.read_json(f"{self._api()}{revision}?{_ASKED}", limit=MAX_PAGE_BYTES, file=self.source)
        sha = info.get("sha") if isinstance(info, dict) else None
        if not isinstance(sha, str) or not _SHA1.fullmatch(sha):
            raise TransportError("the Hub names no commit", file=self.source, expected="40 hex digits", actual=sha)
        if self._commit in (None, sha):  # what is said of another commit than the one asked for is not kept
            self._card = read_card(info)
        return sha

    def list_files(self) -> tuple[ListedFile, ...]:
        """Return all files of the commit, by path."""
        by_path = {file.path: file for file in self._entries()}
        return tuple(by_path[path] for path in sorted(by_path))

    def _entries(self) -> Iterator[ListedFile]:
        url: str | None = f"{self._api()}/tree/{self.commit}?recursive=true&expand=false"
        seen: set[str] = set()
        while url is not None:
            seen.add(url)
            page, following = self._transport.read_json(url, limit=MAX_PAGE_BYTES, file=self.source)
            if not isinstance(page, list):
                raise TransportError("the listing is no list", file=self.source, actual=type(page).__name__)
            yield from filter(None, map(self._entry, page))
            url = self._next_page(url, following, seen) if page and following is not None else None

    def _next_page(self, url: str, reference: str, seen: set[str]) -> str:
        following = next_address(url, reference)
        if following is None or origin(following) != origin(self._endpoint):
            raise TransportError(
                "the listing goes on at another server; not followed",
                file=self.source,
                expected=self._endpoint,
                actual=public_url(following or reference),
                retryable=False,
            )
        if following in seen or len(seen) >= MAX_PAGES:
            raise TransportError(
                "the listing has no end", file=self.source, actual=f"{len(seen)} pages", retryable=False
            )
        return following

    def _entry(self, raw: Any) -> ListedFile | None:
        """Read one entry of the listing; a folder gives None."""
        from huggingface_hub.hf_api import RepoFile

        try:
            if raw["type"] != "file":
                return None
            file: RepoFile = RepoFile(**raw)  # type: ignore[no-untyped-call]
            size = file.size if file.lfs is None else file.lfs.size
            if type(file.path) is not str or type(size) is not int or not 0 <= size <= MAX_OFFSET:
                raise TypeError  # noqa: TRY301
        except (KeyError, TypeError, AttributeError):
            raise TransportError("the listing has an entry of no known form", file=self.source) from None
        _refuse_unsafe(file.path, self.source)
        # A gated repository answers asterisks for digests to those without access: not a digest.
        return ListedFile(
            path=file.path,
            size=size,
            sha256=_hex(SHA256, file.lfs.sha256) if file.lfs else None,
            blob_id=None if file.lfs else _hex(_SHA1, file.blob_id),
            url=self._address(file.path),
        )

    def _address(self, path: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self._repo_id, path, revision=self.commit, endpoint=self._endpoint)

    def open(self, file: ListedFile) -> RemoteFile:
        """Return the bytes of a file."""
        return RemoteFile(
            self._transport,
            self._address(file.path),
            path=file.path,
            size=file.size,
            commit=self.commit,
            sha256=file.sha256,
        )

    def read_small(self, file: ListedFile, limit: int) -> bytes:
        """Return all bytes of a side file."""
        answer = self._transport.read_file(self._address(file.path), limit=limit, file=file.path)
        agree(answer.facts, commit=self.commit, sha256=file.sha256, path=file.path)
        return answer.data

    def cancel(self) -> None:
        """Let reads under way stop soon."""
        self._transport.cancel()


def reopened(shard: Shard, *, commit: str | None, token: str | bool | None) -> RemoteFile:
    """Return the bytes of a shard that was read before; a token goes to the Hub it came from, and nowhere else.

    Raises:
        AuthenticationError: there is no such token.
        OfflineError: offline mode is on, told by the first read.
    """
    url = shard.url or ""
    secret = _token(token) if commit is not None else None
    warn_if_open(secret, url)
    transport = Transport(token=secret, token_origin=url, user_agent=_user_agent())
    return RemoteFile(transport, url, path=shard.path, size=shard.file_bytes, commit=commit, sha256=shard.sha256)


def _hex(form: re.Pattern[str], value: object) -> str | None:
    return value if isinstance(value, str) and form.fullmatch(value) else None


def _refuse_unsafe(path: str, source: str) -> None:
    """Refuse a path that the HTTP client would collapse to one outside the repository."""
    if leads_outside(path):
        raise UnsafePathError("a path in the listing leaves the repository", file=source, actual=repr(path))


def _token(token: str | bool | None) -> str | None:
    from huggingface_hub.errors import LocalTokenNotFoundError
    from huggingface_hub.utils import get_token_to_send

    try:
        secret = get_token_to_send(token)
    except LocalTokenNotFoundError:
        raise AuthenticationError("no token is saved; run `hf auth login` or set HF_TOKEN") from None
    except OSError as error:
        raise AuthenticationError(f"the saved token cannot be read: {error.strerror}") from None
    if secret and not re.fullmatch(r"[!-~]+", secret):
        raise AuthenticationError("the token holds characters that no token has; copy it anew")
    return secret


def _user_agent() -> str:
    """Say who asks. The client library's own builder would send a request of its own for this."""
    import platform

    import huggingface_hub

    return f"kimi_inspect/{__version__}; hf_hub/{huggingface_hub.__version__}; python/{platform.python_version()}"
