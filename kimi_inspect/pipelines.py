"""Repositories whose checkpoint is spread over folders: diffusers' pipelines, sentence-transformers' modules."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kimi_inspect.errors import SourceError
from kimi_inspect.set_names import is_copy
from kimi_inspect.sidecars import MAX_CONFIG_BYTES, parse_config
from kimi_inspect.sources import FileStore, ListedFile

__all__ = ["pipeline_folders"]

_MODULE = re.compile(r"[0-9]+_\w+")


def pipeline_folders(store: FileStore, listing: Sequence[ListedFile]) -> tuple[str, ...]:
    """Return the folders whose weights make one checkpoint together, "" for the root; none if it is no pipeline.

    diffusers names its parts in model_index.json; where that cannot be read, all folders in the root are parts but
    copies in another layout. Of sentence-transformers it is the root and the numbered folders.
    """
    by_path = {file.path: file for file in listing}
    folders = dict.fromkeys(file.path.split("/")[0] for file in listing if file.path.count("/") == 1)
    if "model_index.json" in by_path:
        named = _named_parts(store, by_path["model_index.json"])
        return tuple(name for name in folders if (name in named if named else not is_copy(f"{name}/")))
    if "modules.json" in by_path:
        return ("", *filter(_MODULE.fullmatch, folders))
    return ()


def _named_parts(store: FileStore, file: ListedFile) -> set[str]:
    try:
        index = parse_config(store.read_small(file, MAX_CONFIG_BYTES)) or {}
    except SourceError:
        return set()
    return {name for name, said in index.items() if isinstance(said, list) and said and said[0] is not None}
