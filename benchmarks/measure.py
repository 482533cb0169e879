"""One measurement, in a process of its own: `measure.py WHAT ARGUMENT`, a JSON object on standard output."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

REPOSITORY = "moonshotai/Kimi-K3.1-Pro"


def peak_megabytes() -> float:
    """Return the peak resident size of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def ours(endpoint: str) -> dict[str, Any]:
    # What both sides import is imported before the clock starts.
    import huggingface_hub.hf_api  # noqa: F401

    import kimi_inspect.opening
    import kimi_inspect.summarizing

    begun = time.perf_counter()
    report = kimi_inspect.inspect(REPOSITORY, endpoint=endpoint, token=False)
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "requests": report.traffic.requests,
        "body_bytes": report.traffic.bytes_read,
        "header_bytes": report.header_bytes,
        "parameters": report.parameters,
        "peak_megabytes": peak_megabytes(),
    }


def second(endpoint: str) -> dict[str, Any]:
    """Look twice with one cache, empty at first."""
    import huggingface_hub.hf_api  # noqa: F401

    import kimi_inspect.opening
    import kimi_inspect.summarizing

    seconds, reports = [], []
    for _ in range(2):
        begun = time.perf_counter()
        reports.append(kimi_inspect.inspect(REPOSITORY, endpoint=endpoint, token=False))
        seconds.append(time.perf_counter() - begun)
    assert reports[0] == reports[1]
    return {
        "ratio": seconds[1] / seconds[0],
        "first": seconds[0],
        "second": seconds[1],
        "requests": reports[1].traffic.requests,
        "body_bytes": reports[1].traffic.bytes_read,
    }


def tokenizer(_: str) -> dict[str, Any]:
    """Time the header of one GGUF file with the tokenizer of Kimi beside gguf's own reader."""
    import tempfile
    from pathlib import Path

    from gguf import GGUFReader

    import kimi_inspect.opening
    from kimi_inspect.testing import kimi_gguf

    head = next(iter(kimi_gguf("MXFP4_MOE").values())).head
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "header.gguf")
        path.write_bytes(head)
        begun = time.perf_counter()
        checkpoint = kimi_inspect.open_checkpoint(path)
        ours_done = time.perf_counter()
        reader = GGUFReader(path)
        theirs_done = time.perf_counter()
    assert set(reader.fields) >= set(checkpoint.metadata)
    return {"bytes": len(head), "ours": ours_done - begun, "gguf": theirs_done - ours_done}


def remote_gguf(_: str) -> dict[str, Any]:
    """Count the requests for an unsplit GGUF file and for one in 34 parts beside side files."""
    import kimi_inspect
    from kimi_inspect.testing import LoopbackHub, Repository, danielhanchen_gguf, kimi_gguf

    (single,) = kimi_gguf("UD-Q4_K_XL", parts=1).values()
    repositories = [Repository("a/single", {"a.gguf": single}), Repository("a/split", danielhanchen_gguf())]
    with LoopbackHub(repositories) as hub:
        one, split = (
            kimi_inspect.inspect(source, endpoint=hub.endpoint, token=False, cache=False)
            for source in ("a/single", "a/split:UD-Q4_K_XL")
        )
    return {"single": one.traffic.requests, "split": split.traffic.requests, "parts": split.shard_count}


def audit(argument: str) -> dict[str, Any]:
    """Audit a build against the official checkpoint: nothing kept, or the official headers kept by a look before."""
    import kimi_inspect
    import kimi_inspect.auditing

    endpoint, candidate, kept = argument.split(",")
    if kept:
        kimi_inspect.inspect(REPOSITORY, endpoint=endpoint, token=False)
    begun = time.perf_counter()
    found = kimi_inspect.audit(candidate, REPOSITORY, endpoint=endpoint, token=False)
    return {
        "seconds": time.perf_counter() - begun,
        "verdict": found.verdict,
        "requests": found.traffic.requests,
        "body_bytes": found.traffic.bytes_read,
        "peak_megabytes": peak_megabytes(),
    }


def rival(endpoint: str) -> dict[str, Any]:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import get_session

    api = HfApi(endpoint=endpoint, token=False)
    requests: list[Any] = []
    responses: list[Any] = []
    hooks = get_session().event_hooks
    get_session().event_hooks = {
        "request": [*hooks["request"], requests.append],
        "response": [*hooks["response"], responses.append],
    }
    begun = time.perf_counter()
    metadata = api.get_safetensors_metadata(REPOSITORY)
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "requests": len(requests),
        "body_bytes": sum(response.num_bytes_downloaded for response in responses),
        "parameters": sum(metadata.parameter_count.values()),
        "peak_megabytes": peak_megabytes(),
    }


def meaning(share: str) -> dict[str, Any]:
    """Time classification and summary of already parsed headers, for a part or a multiple of the tensors."""
    import kimi_inspect
    from kimi_inspect.meaning import understand
    from kimi_inspect.safetensors import parse_header
    from kimi_inspect.testing import HollowFile, kimi_config

    files = heads(float(share))
    checkpoint = kimi_inspect.open_checkpoint({path: HollowFile(head, size) for path, head, size in files})
    headers = [(path, parse_header(head, size, file=path)) for path, head, size in files]
    config = kimi_config("kimi-k3.1-pro")
    begun = time.perf_counter()
    for _, head, _ in files:
        json.loads(head[8:])
    parsed = time.perf_counter()
    understand(headers, config, weights_format="safetensors")
    report = kimi_inspect.summarize(checkpoint)
    done = time.perf_counter()
    return {"json_seconds": parsed - begun, "meaning_seconds": done - parsed, "tensors": report.tensor_count}


def heads(share: float) -> list[tuple[str, bytes, int]]:
    """Return path, header and file size of that share of the shards; beyond 1, copies under other layer numbers."""
    from kimi_inspect.testing import kimi_k31_pro

    whole = [(path, file.head, file.size) for path, file in kimi_k31_pro().items() if path.endswith(".safetensors")]
    part = whole[: int(len(whole) * min(1.0, share))]
    count = max(1, int(share)) * len(part)
    copies = (renumbered(head, 100 * copy) for copy in range(max(1, int(share))) for head in part)
    return [
        (f"model-{number:05d}-of-{count:06d}.safetensors", head, size) for number, (head, size) in enumerate(copies, 1)
    ]


def renumbered(shard: tuple[str, bytes, int], add: int) -> tuple[bytes, int]:
    """Return header and file size with each layer's number raised by `add`."""
    _, data, size = shard
    body = re.sub(rb"(?<=layers\.)\d+(?=\.)", lambda found: b"%d" % (int(found[0]) + add), data[8:]).rstrip()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body, size - len(data) + 8 + len(body)


MEASUREMENTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "ours": ours,
    "huggingface_hub": rival,
    "meaning": meaning,
    "second": second,
    "tokenizer": tokenizer,
    "remote_gguf": remote_gguf,
    "audit": audit,
}

if __name__ == "__main__":
    json.dump(MEASUREMENTS[sys.argv[1]](sys.argv[2]), sys.stdout)
