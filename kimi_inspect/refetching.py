"""The command that fetches one file of a repository again."""

from __future__ import annotations

import re
import shlex
from functools import cached_property
from pathlib import Path

from attrs import frozen

from kimi_inspect.modelscope import DEFAULT_ENDPOINT

__all__ = ["Refetch"]

_REPOSITORY = re.compile(r"(?P<site>ms://)?(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")


@frozen(kw_only=True)
class Refetch:
    """Where the files of a folder come from.

    Attributes:
        source: a repository as it is called in results, or anything else: then there is no command.
        commit: the commit, or None.
        folder: where the files are to be.
        origin: address of the site, or None where that is not known.
    """

    source: str
    commit: str | None
    folder: Path
    origin: str | None = None

    def command(self, path: str, *, again: bool) -> str | None:
        """Return what to type for one file, or None where that would not do; `again` where one stands in its place."""
        match = _REPOSITORY.fullmatch(self.source)
        # Letters that a terminal does not show as they are would be copied as others.
        if match is None or path.startswith("-") or not path.isprintable() or self._is_blocked(path):
            return None
        if match["site"]:
            if self.origin not in (None, DEFAULT_ENDPOINT):
                return None
            # ModelScope's client looks at what is there itself.
            revision = ["--revision", match["revision"]] if match["revision"] else []
            words = ["modelscope", "download", "--model", match["repo"], path, *revision]
            return shlex.join([*words, "--local_dir", str(self.folder)])
        # A folder on this machine may be called like a repository; only one of the Hub always has a commit.
        if self.commit is None or match["repo"].endswith(f"/{self.commit}"):
            return None
        force = ["--force-download"] if again else []
        if self._place is None:
            return None
        line = shlex.join(["hf", "download", match["repo"], path, "--revision", self.commit, *self._place, *force])
        return line if self._is_usual() else f"HF_ENDPOINT={shlex.quote(self.origin or '')} {line}"

    def _is_usual(self) -> bool:
        """Whether the Hub's client asks that site anyway."""
        from huggingface_hub import constants

        return self.origin in (None, constants.ENDPOINT.rstrip("/"))

    def _is_blocked(self, path: str) -> bool:
        """Whether a folder stands where the file should, or something else where a folder above it should."""
        above = [self.folder / path[:at] for at, char in enumerate(path) if char == "/"]
        return (self.folder / path).is_dir() or any(folder.is_file() for folder in above)

    @cached_property
    def _place(self) -> list[str] | None:
        """Say where to; a snapshot of the Hub's cache is written to by the cache alone, and with its own commit."""
        from huggingface_hub import constants

        real = self.folder.resolve()
        if real.parent.name != "snapshots":
            # Their own programs would take a `~` for somebody's home, and `-` for an option.
            here = str(self.folder)
            return ["--local-dir", f"./{here}" if here.startswith(("~", "-")) else here]
        if real.name != self.commit:
            return None
        cache = real.parent.parent.parent
        return [] if cache == Path(constants.HF_HUB_CACHE).resolve() else ["--cache-dir", str(cache)]
