"""The command that fetches one file of a repository again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from attrs import frozen

__all__ = ["Refetch"]

_REPOSITORY = re.compile(r"(?P<site>ms://)?(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")


@frozen(kw_only=True)
class Refetch:
    """Where the files of a folder come from.

    Attributes:
        source: a repository as it is called in results, or anything else: then there is no command.
        commit: the commit, or None.
        folder: where the files are to be.
    """

    source: str
    commit: str | None
    folder: Path

    def command(self, path: str, *, again: bool) -> str | None:
        """Return what to type for one file; `again` where one stands in its place."""
        match = _REPOSITORY.fullmatch(self.source)
        if match is None or path.startswith("-"):
            return None
        if match["site"]:
            # ModelScope's client looks at what is there itself.
            revision = ["--revision", match["revision"]] if match["revision"] else []
            words = ["modelscope", "download", "--model", match["repo"], path, *revision]
            return shlex.join([*words, "--local_dir", str(self.folder)])
        # A folder on this machine may be called like a repository; only one of the Hub always has a commit.
        if self.commit is None or match["repo"].endswith(f"/{self.commit}"):
            return None
        force = ["--force-download"] if again else []
        return shlex.join(["hf", "download", match["repo"], path, "--revision", self.commit, *self._place(), *force])

    def _place(self) -> list[str]:
        """Say where to: a snapshot of the Hub's cache is not to be written to but by the cache."""
        from huggingface_hub import constants

        real = self.folder.resolve()
        if real.parent.name != "snapshots":
            return ["--local-dir", str(self.folder)]
        cache = real.parent.parent.parent
        return [] if cache == Path(constants.HF_HUB_CACHE).resolve() else ["--cache-dir", str(cache)]
