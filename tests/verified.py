"""A small checkpoint of real bytes, and its digests by the plainest means: what the tests of lock and verify share."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from kimi_inspect.testing import TensorSpec, hollow_safetensors

SHARDS = 6
REPO = "acme/tiny-kimi"


def shard(number: int, *, seed: int = 0, columns: int = 64) -> bytes:
    """Make a weight file with a true header and random weights."""
    hollow = hollow_safetensors([TensorSpec(f"model.layers.{number}.mlp.up_proj.weight", "BF16", (16, columns))])
    body = random.Random(seed * 1000 + number).randbytes(hollow.size - len(hollow.head))  # noqa: S311
    return hollow.head + body


def shard_name(number: int) -> str:
    return f"model-{number:05d}-of-{SHARDS:06d}.safetensors"


def small_kimi(*, seed: int = 0, columns: int = 64) -> dict[str, bytes]:
    """Make the files of a repository."""
    files = {shard_name(number): shard(number, seed=seed, columns=columns) for number in range(1, SHARDS + 1)}
    config = json.dumps({"model_type": "kimi_k31", "num_hidden_layers": SHARDS, "of": seed}, indent=2)
    return files | {
        "config.json": config.encode() + b"\n",
        "tokenizer_config.json": b'{\n  "model_max_length": 1048576\n}\n',
        "docs/usage.md": b"# Usage\n",
        "empty.txt": b"",
    }


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob " + str(len(data)).encode() + b"\x00" + data).hexdigest()  # noqa: S324 - git's own


def header_sha256(data: bytes) -> str:
    return sha256(data[: 8 + int.from_bytes(data[:8], "little")])


def flipped(data: bytes, place: int) -> bytes:
    """Return the same with one bit turned."""
    changed = bytearray(data)
    changed[place] ^= 0x10
    return bytes(changed)


def statuses(files: Iterable[object]) -> dict[str, str]:
    return {getattr(file, "path"): str(getattr(file, "status")) for file in files}  # noqa: B009
