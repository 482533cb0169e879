"""The fake Hub as the official client sees it, in a process of its own: that client reads its settings on import."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kimi_inspect.testing import LoopbackHub, Repository, kimi_k31_pro

SCRIPT = """
import hashlib, json, sys
from pathlib import Path
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError, RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
)

def refused(error, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except error:
        return True
    return False

api = HfApi()
entries = list(api.list_repo_tree("acme/kimi", recursive=True))
metadata = api.get_safetensors_metadata("acme/kimi")
index = Path(hf_hub_download("acme/kimi", "model.safetensors.index.json"))
weights = Path(hf_hub_download("acme/kimi", "small.safetensors", revision="v1", token="hf_full"))
print(json.dumps({
    "sha": api.model_info("old/kimi").sha,
    "files": {entry.path: [entry.size, entry.lfs and entry.lfs.sha256] for entry in entries if hasattr(entry, "size")},
    "folders": [entry.path for entry in entries if not hasattr(entry, "size")],
    "parameters": metadata.parameter_count,
    "tensors": sum(len(one.tensors) for one in metadata.files_metadata.values()),
    "weight_map": len(metadata.weight_map),
    "index": index.read_text(),
    "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
    "refs": [ref.target_commit for ref in api.list_repo_refs("acme/kimi").branches],
    "refused": [
        refused(RepositoryNotFoundError, api.model_info, "acme/nothing", token="hf_full"),
        refused(RevisionNotFoundError, api.model_info, "acme/kimi", revision="nothing"),
        refused(RemoteEntryNotFoundError, hf_hub_download, "acme/kimi", "nothing"),
        refused(GatedRepoError, hf_hub_download, "acme/gated", "x.json"),
        refused(GatedRepoError, hf_hub_download, "acme/gated", "x.json", token="hf_new"),
    ],
}))
"""


def run_client(hub: LoopbackHub, home: Path) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    settings = {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=kept | settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_official_client_can_use_the_hub(tmp_path: Path) -> None:
    files = kimi_k31_pro(layers=5, experts=4)
    shards = {path: file for path, file in files.items() if path.endswith(".safetensors")}
    # No part of the index, so the client takes it for no shard.
    extra = {"small.safetensors": b"weights" * 1000, "figures/a.png": b"png"}
    repositories = [
        Repository("acme/kimi", {**files, **extra}, tags=("v1",), renamed_from="old/kimi"),
        Repository("acme/gated", {"x.json": b"{}"}, gated=True),
    ]
    with LoopbackHub(repositories, page_size=4, tokens=["hf_full"], unapproved_tokens=["hf_new"]) as hub:
        seen = run_client(hub, tmp_path)
        log = hub.log
    assert seen["refs"] == [seen["sha"]]
    assert {path: seen["files"][path] for path in files if path in shards} == {
        path: [file.size, file.sha256] for path, file in shards.items()
    }
    assert set(seen["files"]) == {*files, *extra}
    assert seen["folders"] == ["figures"]
    assert seen["index"].encode() == files["model.safetensors.index.json"].read()
    assert seen["tensors"] == seen["weight_map"] == sum(file.head.count(b'"dtype"') for file in shards.values())
    assert seen["weights"] == hashlib.sha256(extra["small.safetensors"]).hexdigest()
    assert seen["refused"] == [True] * 5
    assert {one.authorization for one in log if one.origin == "cdn"} == {None}
    assert "Bearer hf_full" in {one.authorization for one in log if one.origin == "hub"}
