"""A Hugging Face Hub on the loopback, with a CDN behind it and faults to play.

The Hub is not reached, and no file is on disk: bodies are hollow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from urllib.parse import quote

from kimi_inspect.testing.catalog import Catalog, Repository, Shelf
from kimi_inspect.testing.cdn_origin import CdnOrigin
from kimi_inspect.testing.hollow import Files, HollowFile
from kimi_inspect.testing.hub_origin import HubOrigin
from kimi_inspect.testing.loopback import LoopbackServer, Origin
from kimi_inspect.testing.wire import Answer, Request

__all__ = ["LoopbackHub"]


class LoopbackHub(LoopbackServer):
    """A hub that listens from its making until `close`, or the end of its `with` block.

    `plain_files` are served under `plain_url` with no Hub about them. `latency` is in seconds, added to every answer.
    `signed_for` is how many seconds a signed CDN address lives. `tokens` open everything, `unapproved_tokens` are valid
    but open neither gated nor private repositories. `port` is the Hub's, 0 for any. `sleep` makes all pauses.
    """

    origins = ("hub", "cdn")

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
        self._hub_side = HubOrigin(
            self._catalog,
            lambda repo_id, entry: self.cdn_origin + self._cdn_side.sign(repo_id, entry),
            page_size=page_size,
            tokens=tokens,
            unapproved=unapproved_tokens,
        )
        super().__init__(port=port, sleep=sleep)  # last: from here on it is asked

    def plain_url(self, path: str) -> str:
        """Return the address of one of the plain files."""
        return f"{self.cdn_origin}/files/{quote(path)}"

    def push(self, repo_id: str, files: Files | None = None, commit: str = "") -> str:
        """Put a new commit on the branch of a repository and return it; without `files` its content is the same."""
        shelf = self._catalog.shelf(repo_id)
        if shelf is None:
            raise KeyError(repo_id)
        return shelf.push(files, commit)

    def _answer(self, origin: Origin, request: Request) -> Answer:
        if self._latency:
            self._sleep(self._latency)
        return (self._hub_side if origin == "hub" else self._cdn_side).respond(request)

    def _shelf_of(self, request: Request) -> Shelf | None:
        return self._hub_side.shelf_of(request)
