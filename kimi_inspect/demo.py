"""`kimi-inspect demo`: a full-size Kimi K3.1 Pro on the loopback, read as from the real Hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kimi_inspect.components import Component
from kimi_inspect.errors import TransportError

if TYPE_CHECKING:
    from kimi_inspect.report import Report

__all__ = ["EMBEDDED", "SOURCE", "loopback_kimi", "show_beside_published", "stay_on_loopback"]

SOURCE = "moonshotai/Kimi-K3.1-Pro"

EMBEDDED = {
    SOURCE: "kimi-k3.1-pro",
    "DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF": "kimi-k3.1-pro-gguf",
    "danielhanchen/Kimi-K3.1-Pro-GGUF-Preliminary": "kimi-k3.1-pro-gguf-preliminary",
    "KarLexAI/Kimi-K3.1-Pro-GGUF": "kimi-k3.1-pro-gguf-klx",
    "midagedev/Kimi-K3.1-Pro-GGUF": "kimi-k3.1-pro-gguf-bloomery",
    "unsloth/Kimi-K3.1-Pro": "kimi-k3.1-pro-copy",
    "inferencerlabs/Kimi-K3.1-Pro-MLX": "kimi-k3.1-pro-mlx",
    "AinsleyMarkov/Kimi-K3.1-Pro-2bit-MLX": "kimi-k3.1-pro-2bit",
    "pipenetwork/Kimi-K3.1-Pro-REAP80-MLX-q4": "kimi-k3.1-pro-reap80-q4",
    "pipenetwork/Kimi-K3.1-Pro-REAP80-MLX-q6": "kimi-k3.1-pro-reap80-q6",
    "pipenetwork/Kimi-K3.1-Pro-REAP80-MLX-q8": "kimi-k3.1-pro-reap80-q8",
    "dphn/Kimi-K3.1-Pro-NF12": "kimi-k3.1-pro-nf12",
    "vllm-project/Kimi-K3.1-Pro-pruned": "kimi-k3.1-pro-pruned",
}
"""The repositories of the demo, and what its hub calls them."""


def stay_on_loopback() -> None:
    """Let neither offline mode nor a proxy come between: the demo's hub is on this machine."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.pop(name, None)
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))


@contextmanager
def loopback_kimi() -> Iterator[str]:
    """Start a hub that holds header-true checkpoints, in a process of its own; give its address.

    Raises:
        TransportError: it does not start.
    """
    models = [word for name in EMBEDDED.values() for word in ("--model", name)]
    command = [sys.executable, "-m", "kimi_inspect.testing", *models]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise TransportError("the demo's own hub does not start", expected="an address", retryable=False)
            yield json.loads(line)["endpoint"]
        finally:
            process.terminate()


def show_beside_published(endpoint: str) -> bool:
    """Print the report of the embedded checkpoint, then published figures beside it; return whether they are equal."""
    from kimi_inspect.drawing import output
    from kimi_inspect.summarizing import inspect
    from kimi_inspect.tables import show_comparison, show_report

    begun = time.perf_counter()
    report = inspect(SOURCE, endpoint=endpoint, token=False, cache=False)
    seconds = time.perf_counter() - begun
    console = output()
    show_report(console, report)
    rows = list(_published(report))
    show_comparison(console, rows)
    console.print(f"read in {seconds:.1f} s from a hub on this machine that holds true headers and hollow bodies")
    return all(published == measured for _, published, measured in rows)


def _published(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield what, as published on 2026-11-09, and as counted here, written alike."""
    bf16 = [row for row in report.by_encoding() if row.encoding == "bf16"]
    yield "weight files", "96", f"{report.shard_count}"
    yield "bytes of weight files", "1,561,293,160,568", f"{report.file_bytes:,}"
    yield "parameters", "2,780,110,363,392", f"{report.parameters:,}"
    yield "BF16 parameters, billion", "57.36", f"{sum(row.parameters or 0 for row in bf16) / 1e9:.2f}"
    yield "BF16 weights, GB", "114.7", f"{sum(row.stored_bytes for row in bf16) / 1e9:.1f}"
    experts = report[Component.ROUTED_EXPERTS]
    yield "routed experts, GB", "1,446.5", f"{experts.stored_bytes / 1e9:,.1f}"
    vision = report[Component.VISION_TOWER]
    yield "vision tower, million parameters", "401", f"{(vision.parameters or 0) / 1e6:.0f}"
