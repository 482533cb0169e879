"""Writes a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kimi_inspect.errors import TransportError

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside its place, then give it that place: whoever reads it sees the old content or the new one.

    It is on disk before it takes its place, so that this holds when the power fails too.

    Raises:
        TransportError: it cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(_usual_mode(path))
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise TransportError(problem, file=str(path), retryable=False) from None


def _usual_mode(path: Path) -> int:
    """Return the mode of the file that is there, else that of a new file; a temporary one is its owner's alone."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
