"""Verifies files by their digests: a folder, or one file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import Executor

from attrs import evolve

from kimi_inspect.checking import check, check_files
from kimi_inspect.digesting import Means
from kimi_inspect.errors import InvalidSourceError
from kimi_inspect.expectations import Against, expect
from kimi_inspect.journal import Memory, open_memory
from kimi_inspect.judging import Expected
from kimi_inspect.locking import Companions
from kimi_inspect.sets import as_globs
from kimi_inspect.tree import at_home, named_folder
from kimi_inspect.values import ProgressCallback
from kimi_inspect.verification import FileVerification, Verification

__all__ = ["verify", "verify_file"]

_DIGEST = re.compile(r"(?:sha256:)?(?P<sha256>[0-9a-f]{64})|(?P<git_sha1>[0-9a-f]{40})")


def verify(
    folder: str | os.PathLike[str],
    against: Against,
    *,
    files: str | Sequence[str] | None = None,
    quick: bool = False,
    journal: bool = True,
    max_workers: int | None = None,
    executor: Executor | None = None,
    companions: Companions = False,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    progress: ProgressCallback | None = None,
) -> Verification:
    """Hold the files of a folder against digests: sizes first, then headers, then every byte.

    Args:
        folder: a folder on this machine; a snapshot of the Hub's cache is one.
        against: a source as for `open_checkpoint`, an open checkpoint, a manifest, or the path of a manifest or of a
            list as sha256sum writes it.
        files: globs on the paths: only these are expected.
        quick: compare sizes and headers and hash no file; damage that keeps both is not found.
        journal: remember digests, and use those remembered of files whose size, mtime and inode are what they were.
            A change that keeps all of them is found with False only.
        max_workers: files hashed at a time; None for as many as there are processors.
        executor: hashes instead of threads here, a file a task. Its workers have to see the folder under the same path
            and have this package; what they cannot do is done here.
        companions: side files that belong to `owner/name:SET` too, as for `open_checkpoint`.
        revision: of the source, as for `open_checkpoint`.
        token: as for `open_checkpoint`.
        endpoint: as for `open_checkpoint`.
        progress: called from this thread, in bytes while files are hashed; what it raises cancels the call.

    Raises:
        SourceError: there is no such folder, or what it is held against cannot be read.
        InvalidSourceError: `against` is nothing to hold a folder against.
        CheckpointError: no file is expected, or one outside of the folder.
    """
    root = named_folder(folder)
    memory = Memory() if quick else open_memory(root, believed=journal)
    means = Means(memory=memory, max_workers=max_workers, executor=executor, notify=progress or (lambda _: None))
    expectation = expect(
        against, root, means, quick=quick, companions=companions, revision=revision, token=token, endpoint=endpoint
    )
    return check(root, expectation.limited(as_globs(files)), means, quick=quick)


def verify_file(
    path: str | os.PathLike[str], digest: str, *, progress: ProgressCallback | None = None
) -> FileVerification:
    """Hash one file and compare; the result is true where the digest is right, and tells the one that it has.

    Args:
        path: the file.
        digest: SHA-256 in 64 hex digits, with or without `sha256:` before it; or git's id of a blob, 40 hex digits.
        progress: called from this thread, in bytes; what it raises cancels the call.

    Raises:
        InvalidSourceError: the digest is of no known form.
    """
    given: object = digest
    told = given if isinstance(given, str) else repr(given)
    match = _DIGEST.fullmatch(told.strip().lower())
    if match is None:
        raise InvalidSourceError("no digest", expected="64 hex digits (SHA-256), or 40 (a git blob)", actual=told[:100])
    file = at_home(path)
    expected = Expected(path=file.name, sha256=match["sha256"], git_sha1=match["git_sha1"])
    means = Means(memory=Memory(), max_workers=1, notify=progress or (lambda _: None))
    (found,) = check_files(file.parent, [expected], means).files
    return evolve(found, path=str(path))
