"""Serve full-size hollow Kimi checkpoints on the loopback, from a process of its own.

Prints one line of JSON with the endpoint once it listens, and ends when its standard input does, so that it goes with
the process that started it. The first model is ready then, any other is made when it is first asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from kimi_inspect.testing.catalog import Repository
from kimi_inspect.testing.hollow import HollowFile
from kimi_inspect.testing.hub import LoopbackHub
from kimi_inspect.testing.kimi import KIMI_K3_ID, KIMI_K31_PRO_COMMIT, KIMI_K31_PRO_ID, kimi_k3, kimi_k31_pro
from kimi_inspect.testing.kimi_builds import (
    AINSLEYMARKOV_ID,
    BUILDS,
    DPHN_ID,
    INFERENCERLABS_ID,
    PIPENETWORK_IDS,
    UNSLOTH_ID,
    VLLM_PROJECT_ID,
)
from kimi_inspect.testing.kimi_gguf import (
    DANIELHANCHEN_GGUF_ID,
    DEVQUASAR_GGUF_ID,
    danielhanchen_gguf,
    devquasar_gguf,
)
from kimi_inspect.testing.kimi_gguf_builds import (
    KARLEXAI_GGUF_ID,
    MIDAGEDEV_GGUF_ID,
    karlexai_gguf,
    midagedev_gguf,
)

__all__ = ["main"]

_BUILD_NAMES: Mapping[str, str] = {
    "kimi-k3.1-pro-copy": UNSLOTH_ID,
    "kimi-k3.1-pro-mlx": INFERENCERLABS_ID,
    "kimi-k3.1-pro-2bit": AINSLEYMARKOV_ID,
    **{f"kimi-k3.1-pro-reap80-q{bits}": repo_id for bits, repo_id in PIPENETWORK_IDS.items()},
    "kimi-k3.1-pro-nf12": DPHN_ID,
    "kimi-k3.1-pro-pruned": VLLM_PROJECT_ID,
}
_MODELS: Mapping[str, tuple[str, str, Callable[[], dict[str, HollowFile]]]] = {
    "kimi-k3.1-pro": (KIMI_K31_PRO_ID, KIMI_K31_PRO_COMMIT, kimi_k31_pro),
    "kimi-k3": (KIMI_K3_ID, "", kimi_k3),
    "kimi-k3.1-pro-gguf": (DEVQUASAR_GGUF_ID, "", devquasar_gguf),
    "kimi-k3.1-pro-gguf-preliminary": (DANIELHANCHEN_GGUF_ID, "", danielhanchen_gguf),
    **{name: (repo_id, "", BUILDS[repo_id]) for name, repo_id in _BUILD_NAMES.items()},
    "kimi-k3.1-pro-gguf-klx": (KARLEXAI_GGUF_ID, "", karlexai_gguf),
    "kimi-k3.1-pro-gguf-bloomery": (MIDAGEDEV_GGUF_ID, "", midagedev_gguf),
}
_DEFAULT_MODEL = "kimi-k3.1-pro"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends; return the exit status."""
    options = _parser().parse_args(arguments)
    chosen = options.model or [_DEFAULT_MODEL]
    names = list(_MODELS) if "all" in chosen else list(dict.fromkeys(chosen))
    repositories = [_repository(name, at_once=name == names[0]) for name in names]
    with LoopbackHub(repositories, latency=options.latency, port=options.port) as hub:
        line = {
            "endpoint": hub.endpoint,
            "cdn_origin": hub.cdn_origin,
            "repositories": [r.repo_id for r in repositories],
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        # An interrupt at the terminal is meant for whoever started us; it comes to us too.
        with suppress(KeyboardInterrupt):
            sys.stdin.buffer.read()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kimi_inspect.testing", description=__doc__)
    parser.add_argument("--model", choices=[*_MODELS, "all"], action="append", help="may be given several times")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS", help="added to every answer")
    parser.add_argument("--port", type=int, default=0, help="the Hub's port (default: any that is free)")
    return parser


def _repository(name: str, *, at_once: bool) -> Repository:
    repo_id, commit, build = _MODELS[name]
    if not at_once:
        return Repository(repo_id=repo_id, files=build, commit=commit)
    files = build()
    # Digests and the index are made now, not in the first listing: whoever measures a client should not measure this.
    for file in files.values():
        _ = file.sha256
    return Repository(repo_id=repo_id, files=files, commit=commit)


if __name__ == "__main__":
    raise SystemExit(main())
