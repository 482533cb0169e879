"""What a source string means."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any
from urllib.parse import unquote, urlsplit

from attrs import frozen

from kimi_inspect.addresses import next_address, origin, public_url
from kimi_inspect.errors import InvalidSourceError, KimiInspectError, OfflineError
from kimi_inspect.modelscope import SCHEME as MODELSCOPE
from kimi_inspect.modelscope import ModelScopeRepository
from kimi_inspect.remote import HubRepository, PlainFiles
from kimi_inspect.sources import ByteSource, FileStore, LocalFolder, MappedFiles, leads_outside, translated
from kimi_inspect.text import printable
from kimi_inspect.transport import DEFAULT_TIMEOUT

__all__ = ["WEIGHT_SUFFIXES", "Location", "Source", "at_one_site", "is_local", "locate"]

Source = str | os.PathLike[str] | Mapping[str, ByteSource]
"""A source string, a path, or byte sources of the caller's own by path."""

WEIGHT_SUFFIXES = (".safetensors", ".gguf")
DEFAULT_HUB = "https://huggingface.co"

_REPOSITORY = re.compile(r"(?P<repo>[^/@:\s]+/[^/@:\s]+)(?:@(?P<revision>[^:\s]+))?(?::(?P<set>.+))?")
_MODELSCOPE_ID = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile("[0-9a-f]{40}")

_PAGE = re.compile(r"/(?P<repo>[^/]+/[^/]+)(?:/(?P<view>tree|blob|resolve)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?/?")


@frozen(kw_only=True)
class Location:
    """Where a source string leads.

    Attributes:
        store: the folder or repository.
        set_name: the set chosen after a colon, or None.
        member: the file that the wanted set holds, or None.
        folder: the folder that the wanted set lies in, or below; empty for all.
    """

    store: FileStore
    set_name: str | None = None
    member: str | None = None
    folder: str = ""


@frozen(kw_only=True)
class _Hub:
    repo_id: str
    revision: str | None
    set_name: str | None = None
    member: str | None = None
    folder: str = ""
    endpoint: str | None = None


def locate(
    source: Source,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Location:
    """Find the store that `source` names; nothing is read yet.

    Raises:
        InvalidSourceError: the string names none; or it is no string, and no path or mapping of byte sources either.
        OfflineError: offline mode is on and the Hub's cache does not hold the repository; or it is one of ModelScope's.
    """
    seconds: object = timeout
    if not (isinstance(seconds, int | float) and seconds > 0):
        raise InvalidSourceError("no time to wait", expected="a number of seconds above 0", actual=repr(timeout))
    if isinstance(source, Mapping):
        return Location(store=MappedFiles(_byte_sources(source)))
    _check_path(source)
    try:
        if not isinstance(source, str) or is_local(source):
            return _local(Path(source).expanduser())
        return _remote(source, revision, token, endpoint, timeout)
    except KimiInspectError:
        raise
    except (ValueError, RuntimeError, OSError):
        # No such user's home, a NUL, a name too long, half a surrogate: no source either way.
        raise _invalid(os.fspath(source)) from None


_SOURCES = "a string, a path, or a mapping of file names to objects with size and read"
_OF_CONFIGS = frozenset({"model_type", "architectures", "quantization_config", "text_config", "transformers_version"})


def _byte_sources(source: Mapping[Any, Any]) -> Mapping[str, ByteSource]:
    """Return the mapping, if it is one of byte sources.

    Raises:
        InvalidSourceError: it is not; a parsed config, perhaps.
    """
    if all(isinstance(path, str) and isinstance(file, ByteSource) for path, file in source.items()):
        return source
    if not _OF_CONFIGS.isdisjoint(source):
        raise InvalidSourceError(
            "a config that is parsed already is no source; write it to a file, or pass its path", expected=_SOURCES
        )
    wrong = next(
        f"{type(path).__name__} to {type(file).__name__}"
        for path, file in source.items()
        if not (isinstance(path, str) and isinstance(file, ByteSource))
    )
    raise InvalidSourceError("the mapping is none of byte sources", expected=_SOURCES, actual=wrong)


def _check_path(source: object) -> None:
    """Refuse what is neither a string nor a path of one.

    Raises:
        InvalidSourceError: it is not.
    """
    if not isinstance(source, str | os.PathLike) or not isinstance(os.fspath(source), str):
        raise InvalidSourceError("this is no source", expected=_SOURCES, actual=type(source).__name__)


def at_one_site(one: object, other: object) -> bool:
    """Whether a token and an endpoint for one source may serve another: both of ModelScope, or neither."""
    return _of_modelscope(one) == _of_modelscope(other)


def _of_modelscope(source: object) -> bool:
    return isinstance(source, str) and source.lower().startswith(MODELSCOPE)


def _remote(
    source: str, revision: str | None, token: str | bool | None, endpoint: str | None, timeout: float
) -> Location:
    if not source.isprintable():
        raise _invalid(source)
    scheme, _, rest = source.partition("://")
    scheme = scheme.lower()
    if not rest:
        return _hub(_repository(source, source, revision), token, endpoint, timeout)
    if scheme == "hf":
        return _hub(_repository(rest.removeprefix("models/"), source, revision), token, endpoint, timeout)
    if f"{scheme}://" == MODELSCOPE:
        return _modelscope(_repository(rest, source, revision), source, token, endpoint, timeout)
    if scheme in ("http", "https"):
        page = _page(source, revision, endpoint)
        if page:
            return _hub(page, token, endpoint, timeout)
        if next_address(source, "") and urlsplit(source).path.endswith(WEIGHT_SUFFIXES):
            name = unquote(urlsplit(source).path.rpartition("/")[2])
            return Location(store=PlainFiles(source, timeout=timeout), member=name)
    raise _invalid(source)


def _invalid(source: str) -> InvalidSourceError:
    """Make the error; what may be a password or a signed query is left out of its words."""
    words = re.split("[?#]", source)[0]
    user, _, place = words.rpartition("@")
    shown = public_url(source) if "://" in source else place if ":" in user else words
    advice = f"; for what is here under that name write ./{printable(shown)}" if _is_here(source) else ""
    return InvalidSourceError(
        f"'{printable(shown)}' names no checkpoint{advice}",
        expected="owner/name[@revision][:SET], the same after ms:// for ModelScope, a Hub address, ./folder, a path or "
        "address of .safetensors or .gguf",
    )


def _is_here(source: str) -> bool:
    try:
        return os.path.lexists(source)
    except ValueError:
        return False


def is_local(source: str) -> bool:
    """Whether a source string is a path on this machine by its form."""
    if "://" in source:
        return False
    return source in (".", "..", "~") or source.startswith(("./", "../", "/", "~/")) or source.endswith(WEIGHT_SUFFIXES)


def _local(path: Path) -> Location:
    folder, colon, name = str(path).rpartition(":")
    if colon and name and not os.path.lexists(path) and Path(folder).is_dir():
        return Location(store=LocalFolder(folder, commit=_snapshot_commit(Path(folder))), set_name=name)
    with translated(path):
        is_folder = S_ISDIR(path.stat().st_mode)
    if is_folder:
        return Location(store=LocalFolder(path, commit=_snapshot_commit(path)))
    if not path.name.endswith(WEIGHT_SUFFIXES):
        raise InvalidSourceError("neither a folder nor a file in .safetensors or .gguf", file=str(path))
    store = LocalFolder(path.parent, source=str(path), commit=_snapshot_commit(path.parent), depth=0)
    return Location(store=store, member=path.name)


def _snapshot_commit(path: Path) -> str | None:
    """Return the commit that a folder of the Hub's cache is named after."""
    resolved = path.resolve()
    return (
        resolved.name if resolved.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", resolved.name) else None
    )


def _repository(text: str, source: str, revision: str | None) -> _Hub:
    match = _REPOSITORY.fullmatch(text)
    if not match:
        raise _invalid(source)
    return _Hub(repo_id=match["repo"], revision=_one_revision(match["revision"], revision), set_name=match["set"])


def _one_revision(written: str | None, given: str | None) -> str | None:
    if not (written or given or "").isprintable():
        raise InvalidSourceError("no revision has such characters", actual=written or given)
    if written and given and written != given:
        raise InvalidSourceError("two revisions are named", expected=written, actual=given)
    return written or given


def _page(url: str, revision: str | None, endpoint: str | None) -> _Hub | None:
    """Read an address pasted from the Hub's pages."""
    from huggingface_hub import constants

    if next_address(url, "") is None:
        return None
    hubs = {origin(hub): hub for hub in (DEFAULT_HUB, "https://hf.co", constants.ENDPOINT, endpoint) if hub}
    match = _PAGE.fullmatch(urlsplit(url).path)
    hub = hubs.get(origin(url))
    if hub is None or match is None:
        return None
    path = unquote(match["path"] or "")
    return _Hub(
        repo_id=unquote(match["repo"]),
        revision=_one_revision(unquote(match["revision"]) if match["revision"] else None, revision),
        member=path if path.endswith(WEIGHT_SUFFIXES) and match["view"] != "tree" else None,
        folder=path.strip("/") if match["view"] == "tree" else "",
        endpoint=DEFAULT_HUB if hub == "https://hf.co" else hub,
    )


def _hub(found: _Hub, token: str | bool | None, endpoint: str | None, timeout: float) -> Location:
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(found.repo_id)
    except HFValidationError:
        raise _invalid(found.repo_id) from None
    store: FileStore
    if constants.is_offline_mode():
        store = _cached(found)
    else:
        store = HubRepository(
            found.repo_id,
            revision=found.revision,
            token=token,
            endpoint=found.endpoint or endpoint,
            timeout=timeout,
        )
    return Location(store=store, set_name=found.set_name, member=found.member, folder=found.folder)


def _modelscope(found: _Hub, source: str, token: str | bool | None, endpoint: str | None, timeout: float) -> Location:
    from huggingface_hub import constants

    if not _MODELSCOPE_ID.fullmatch(found.repo_id) or leads_outside(found.repo_id):
        raise _invalid(source)
    if constants.is_offline_mode():
        raise OfflineError(
            "offline mode is on and nothing of ModelScope's is kept; unset HF_HUB_OFFLINE",
            file=MODELSCOPE + found.repo_id,
        )
    store = ModelScopeRepository(
        found.repo_id, revision=found.revision, token=token, endpoint=endpoint, timeout=timeout
    )
    return Location(store=store, set_name=found.set_name)


def _cached(found: _Hub) -> LocalFolder:
    folder = _snapshot(found.repo_id, found.revision)
    if folder is not None:
        cached = LocalFolder(folder, source=found.repo_id, commit=folder.name)
        if any(file.path.endswith(WEIGHT_SUFFIXES) for file in cached.list_files()):
            return cached
    raise OfflineError(
        "offline mode is on and the Hub's cache lacks these weights; unset HF_HUB_OFFLINE or download them first",
        file=found.repo_id,
    )


def _snapshot(repo_id: str, revision: str | None) -> Path | None:
    """Return the cached snapshot of a revision, or None.

    One that holds a part of the files counts: a quantization was pulled, or a few shards. The client's own function
    refuses those.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo_id, repo_type="model"))
    commit = revision or constants.DEFAULT_REVISION
    if leads_outside(commit):
        return None
    with suppress(OSError, ValueError):  # it may be a commit itself
        commit = (cache / "refs" / commit).read_text().strip()
    folder = cache / "snapshots" / commit
    return folder if _COMMIT.fullmatch(commit) and folder.is_dir() else None
