"""Opening Kimi K3.1 Pro, beside huggingface_hub in one run. See README.md here for the rules."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAIRS = 5
LATENCY = 0.04

AUDITS = {
    "two listings": ("kimi-k3.1-pro-copy", "unsloth/Kimi-K3.1-Pro", ""),
    "96 and 96 files": ("kimi-k3.1-pro-nf12", "dphn/Kimi-K3.1-Pro-NF12", ""),
    "34-part GGUF, reference kept": (
        "kimi-k3.1-pro-gguf-preliminary",
        "danielhanchen/Kimi-K3.1-Pro-GGUF-Preliminary:UD-Q4_K_XL",
        "kept",
    ),
}
"""Builds that are audited against the official checkpoint: model of the hub, source, whether its headers are kept."""


@contextmanager
def hub(*models: str) -> Iterator[str]:
    """Start the loopback hub, which holds the official checkpoint and others; give its address."""
    chosen = [word for model in ("kimi-k3.1-pro", *models) for word in ("--model", model)]
    command = [sys.executable, "-m", "kimi_inspect.testing", "--latency", str(LATENCY), *chosen]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["endpoint"]
        finally:
            process.terminate()


def measure(what: str, endpoint: str = "") -> dict[str, Any]:
    """Run one measurement in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as home:
        quiet = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_PROGRESS_BARS")
        environment = {**os.environ, "HF_HOME": home, **dict.fromkeys(quiet, "1")}
        command = [sys.executable, str(HERE / "measure.py"), what, endpoint]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def import_milliseconds(statement: str, times: int = 15) -> float:
    """Return the shortest of several runs of an interpreter that executes one statement."""
    code = f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1000)"
    runs = [subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True) for _ in range(times)]
    return min(float(run.stdout) for run in runs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    ours, theirs, twice = [], [], []
    with hub() as endpoint:
        for _ in range(pairs):
            ours.append(measure("ours", endpoint))
            theirs.append(measure("huggingface_hub", endpoint))
            twice.append(measure("second", endpoint))
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {pairs} pairs, medians")
    print(f"{'measure':<34}{'kimi_inspect':>16}{'huggingface_hub':>18}{'ratio':>8}")
    for key, unit in (("seconds", "s"), ("requests", ""), ("body_bytes", ""), ("peak_megabytes", "MB")):
        mine, other = (statistics.median(run[key] for run in runs) for runs in (ours, theirs))
        print(f"{key + ' ' + unit:<34}{mine:>16,.2f}{other:>18,.2f}{mine / other:>8.3f}")
    mine, other = (runs[0]["body_bytes"] / ours[0]["header_bytes"] for runs in (ours, theirs))
    print(f"{'body bytes / header bytes':<34}{mine:>16.3f}{other:>18.3f}")
    told = {key: statistics.median(run[key] for run in twice) for key in twice[0]}
    print(
        f"second look with kept headers: {told['second']:.2f} s after {told['first']:.2f} s, "
        f"ratio {told['ratio']:.3f}, {told['requests']:.0f} requests, {told['body_bytes']:,.0f} body bytes"
    )
    print(f"{'import, ms over a bare interpreter':<34}{import_milliseconds('import kimi_inspect'):>16.1f}")
    for share in ("0.25", "1", "4"):
        part = measure("meaning", share)
        ratio = part["meaning_seconds"] / part["json_seconds"]
        print(
            f"{part['tensors']:>9,} tensors: classify and summarize {part['meaning_seconds']:.3f} s, "
            f"json.loads of the same headers {part['json_seconds']:.3f} s, ratio {ratio:.3f}"
        )
    header = measure("tokenizer")
    print(
        f"GGUF header of {header['bytes']:,} bytes: {header['ours']:.3f} s, gguf.GGUFReader {header['gguf']:.2f} s, "
        f"ratio {header['ours'] / header['gguf']:.4f}"
    )
    remote = measure("remote_gguf")
    print(f"requests: unsplit GGUF {remote['single']}, GGUF in {remote['parts']} parts {remote['split']}")
    with hub(*(model for model, _, _ in AUDITS.values())) as endpoint:
        for what, (_, source, kept) in AUDITS.items():
            found = measure("audit", f"{endpoint},{source},{kept}")
            print(
                f"audit, {what}: {found['verdict']}, {found['seconds']:.2f} s, {found['requests']} requests, "
                f"{found['body_bytes']:,} body bytes, {found['peak_megabytes']:.0f} MB"
            )


if __name__ == "__main__":
    main()
