"""Writes a file whole or not at all, and what is no file as it is."""

from __future__ import annotations

import os
import tempfile
from errno import EISDIR
from pathlib import Path
from stat import S_ISREG

from kimi_inspect.errors import TransportError

__all__ = ["is_stream", "refuse_unwritable", "write_out", "write_whole"]


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
        raise _unwritable(path, error) from None


def is_stream(path: Path) -> bool:
    """Whether a path names what is written to as it is, and never replaced: a device, a pipe, an open file's number."""
    here = Path.cwd() / path
    # A shell may have opened a file for it, to which others write too.
    if str(here) in ("/dev/stdout", "/dev/stderr") or any(map(here.is_relative_to, ("/dev/fd", "/proc"))):
        return True
    try:
        return not S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def write_out(path: Path, data: bytes) -> None:
    """Write where somebody has asked for it: a file whole or not at all, the target of a link, or into a stream.

    Raises:
        TransportError: it cannot be written.
    """
    try:
        if not is_stream(path):
            write_whole(Path(os.path.realpath(path)), data)
            return
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)), "wb") as stream:
            stream.write(data)
    except TransportError:
        raise
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def refuse_unwritable(path: Path) -> None:
    """Say before long work that its result could not be written.

    Raises:
        TransportError: the path is a folder, or no file can be made in the folder where it would lie.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not is_stream(path):
            with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
                pass
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError | ValueError) -> TransportError:
    problem = f"cannot be written: {getattr(error, 'strerror', None) or error}"
    return TransportError(problem, file=str(path), retryable=False)


def _usual_mode(path: Path) -> int:
    """Return the mode of the file that is there, else that of a new file; a temporary one is its owner's alone."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
