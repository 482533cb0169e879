"""Repositories whose checkpoint is spread over folders: diffusers' pipelines, sentence-transformers' modules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from kimi_inspect.errors import SourceError
from kimi_inspect.set_names import is_copy
from kimi_inspect.sidecars import MAX_CONFIG_BYTES, parse_json
from kimi_inspect.sources import FileStore, ListedFile, leads_outside

__all__ = ["Pipeline", "read_pipeline"]

_MODULE = re.compile(r"[0-9]+_\w+")

_WEIGHTED_CLASS = re.compile(
    r"\w*(?:Model|ModelWithProjection|Transformer|UNet|VAE|Adapter|ForCausalLM|ForConditionalGeneration)"
    r"|\w*Autoencoder\w+|StableDiffusionSafetyChecker"
)
"""Classes of diffusers and transformers that are saved with weights, by the conventions of their names. What is called
otherwise (schedulers, tokenizers, processors) may have none."""

_WEIGHTED_MODULES = frozenset(
    {
        *("Transformer", "MLMTransformer", "CLIPModel", "StaticEmbedding", "WordEmbeddings"),
        *("Dense", "LayerNorm", "LSTM", "CNN", "WeightedLayerPooling"),
    }
)
"""Modules of sentence-transformers that are saved with weights; Pooling, Normalize, Dropout, … have none."""

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".pb")
"""Endings of weight files in any format: a part that is stored in another one is not gone."""


@frozen(kw_only=True)
class Pipeline:
    """What a repository says of the parts that it is made of.

    Attributes:
        folders: those whose weights make one checkpoint together, "" for the root; none if it is no pipeline.
        bare: those of parts that have weights by their class, and no weight file.
        index: path of the file that says so.
        class_name: the class of the whole, as diffusers names it, or None.
    """

    folders: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    index: str = ""
    class_name: str | None = None


def read_pipeline(store: FileStore, listing: Sequence[ListedFile]) -> Pipeline:
    """Read which parts a repository is made of.

    diffusers names its parts in model_index.json; where that cannot be read, all folders in the root are parts but
    copies in another layout. Of sentence-transformers it is the root and the numbered folders.
    """
    by_path = {file.path: file for file in listing}
    folders = dict.fromkeys(file.path.split("/")[0] for file in listing if file.path.count("/") == 1)
    stored = {file.path.rpartition("/")[0] for file in listing if file.path.endswith(_WEIGHTS)}
    if "model_index.json" in by_path:
        said = _read(store, by_path["model_index.json"])
        index = said if isinstance(said, dict) else {}
        named = {name: parts for name, parts in index.items() if _is_part(parts)}
        class_name = index.get("_class_name")
        return Pipeline(
            folders=tuple(name for name in folders if (name in named if named else not is_copy(f"{name}/"))),
            bare=tuple(name for name in _weighted(named) if name not in stored),
            index="model_index.json",
            class_name=class_name if isinstance(class_name, str) else None,
        )
    if "modules.json" in by_path:
        modules = _weighted_modules(_read(store, by_path["modules.json"]))
        return Pipeline(
            folders=("", *filter(_MODULE.fullmatch, folders)),
            bare=tuple(folder for folder in modules if folder not in stored),
            index="modules.json",
        )
    return Pipeline()


def _read(store: FileStore, file: ListedFile) -> Any:
    try:
        return parse_json(store.read_small(file, MAX_CONFIG_BYTES))
    except SourceError:
        return None


def _is_part(said: Any) -> bool:
    """Whether model_index.json names a part: its library and class; what is left out is null in both."""
    return isinstance(said, list) and bool(said) and said[0] is not None


def _weighted(parts: Mapping[str, list[Any]]) -> Iterator[str]:
    for name, said in parts.items():
        named = said[1] if len(said) > 1 else None
        if isinstance(named, str) and _WEIGHTED_CLASS.fullmatch(named) and not leads_outside(name):
            yield name


def _weighted_modules(said: Any) -> Iterator[str]:
    for module in said if isinstance(said, list) else []:
        folder, kind = (module.get("path"), module.get("type")) if isinstance(module, dict) else (None, None)
        if isinstance(folder, str) and isinstance(kind, str) and kind.rpartition(".")[2] in _WEIGHTED_MODULES:
            folder = folder.removesuffix("/")
            if not folder or not leads_outside(folder):
                yield folder
