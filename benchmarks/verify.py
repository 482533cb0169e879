"""Hashing a folder of real bytes, beside raw hashlib and huggingface_hub in one run. README.md has the rules."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = "acme/benchmark"
SHARD_BYTES = 512 * 1024 * 1024
PIECE_BYTES = 1 << 20
ROUNDS = 5


def make(folder: Path, shards: int) -> None:
    """Write weight files of true headers and random bytes, and a config."""
    from kimi_inspect.testing import TensorSpec, hollow_safetensors

    for number in range(1, shards + 1):
        path = folder / f"model-{number:05d}-of-{shards:06d}.safetensors"
        hollow = hollow_safetensors([TensorSpec(f"model.layers.{number}.weight", "U8", (SHARD_BYTES - 4096,))])
        with path.open("wb") as file:
            file.write(hollow.head)
            for _ in range((hollow.size - len(hollow.head)) // PIECE_BYTES):
                file.write(os.urandom(PIECE_BYTES))
            file.write(bytes((hollow.size - len(hollow.head)) % PIECE_BYTES))
    (folder / "config.json").write_text('{"model_type": "kimi_k31"}\n')


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Serve the listing of the folder from a process of its own, so that its memory is not measured."""
    command = [sys.executable, __file__, "--serve", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class _Stored:
    """A file as the loopback hub wants it, whose digest has been worked out without reading it into memory."""

    def __init__(self, path: Path) -> None:
        import hashlib

        self.size = path.stat().st_size
        self.head = path.read_bytes() if self.size < PIECE_BYTES else b""
        with path.open("rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()

    def read(self) -> bytes:
        return self.head


def serve(folder: Path) -> None:
    """Serve until standard input ends."""
    from typing import cast

    from kimi_inspect.testing import HollowFile, LoopbackHub, Repository

    files = {path.name: cast("HollowFile", _Stored(path)) for path in folder.iterdir()}
    with LoopbackHub([Repository(REPOSITORY, files)]) as server:
        print(server.endpoint, flush=True)
        sys.stdin.read()


def raw(folder: Path, _: str) -> None:
    """Hash on two threads with hashlib and nothing about it."""
    import hashlib
    from concurrent.futures import ThreadPoolExecutor

    def digest(path: Path) -> str:
        state, buffer = hashlib.sha256(), bytearray(PIECE_BYTES)
        view = memoryview(buffer)
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                state.update(view[:count])
        return state.hexdigest()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(digest, folder.iterdir()))) == len(list(folder.iterdir()))


def ours(folder: Path, endpoint: str) -> None:
    import kimi_inspect

    assert kimi_inspect.verify(folder, REPOSITORY, endpoint=endpoint, token=False, max_workers=2, journal=False).ok


def rival(folder: Path, endpoint: str) -> None:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint, token=False)
    found = api.verify_repo_checksums(REPOSITORY, local_dir=folder)
    assert not [*found.mismatches, *found.missing_paths, *found.extra_paths]


MEASURED: dict[str, Callable[[Path, str], None]] = {"hashlib": raw, "kimi_inspect": ours, "huggingface_hub": rival}


def measure_here(what: str, folder: Path, endpoint: str) -> None:
    """Do one measurement and print it. Imports are done before the clock starts."""
    import huggingface_hub.hf_api  # noqa: F401

    import kimi_inspect.verifying  # noqa: F401

    begun, worked = time.perf_counter(), time.process_time()
    MEASURED[what](folder, endpoint)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024 / 1000
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_megabytes": peak}))


def measure(what: str, folder: Path, endpoint: str) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    quiet = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS")
    environment = {**os.environ, **dict.fromkeys(quiet, "1")}
    command = [sys.executable, __file__, "--measure", what, str(folder), endpoint]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=6, help="weight files of 512 MiB")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(Path(asked.serve))
    elif asked.measure:
        what, folder, endpoint = asked.measure
        measure_here(what, Path(folder), endpoint)
    else:
        compare(asked.shards, asked.rounds)


def compare(shards: int, rounds: int) -> None:
    runs: dict[str, list[dict[str, Any]]] = {what: [] for what in MEASURED}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make(folder, shards)
        nbytes = sum(path.stat().st_size for path in folder.iterdir())
        with hub(folder) as endpoint:
            for _ in range(rounds):
                for what, found in runs.items():
                    found.append(measure(what, folder, endpoint))
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{nbytes:,} bytes in {shards} weight files, in the page cache; {rounds} rounds, medians")
    print(f"{'':<18}{'seconds':>10}{'GB/s':>8}{'CPU s':>8}{'peak MB':>10}{'our speed, times':>18}")
    for what, found in runs.items():
        seconds = statistics.median(run["seconds"] for run in found)
        cpu = statistics.median(run["cpu"] for run in found)
        peak = max(run["peak_megabytes"] for run in found)
        # Of runs that follow each other: what else the machine does is then the same for both.
        ratio = statistics.median(
            other["seconds"] / own["seconds"] for other, own in zip(found, runs["kimi_inspect"], strict=True)
        )
        print(f"{what:<18}{seconds:>10.2f}{nbytes / 1e9 / seconds:>8.2f}{cpu:>8.2f}{peak:>10.0f}{ratio:>18.2f}")


if __name__ == "__main__":
    main()
