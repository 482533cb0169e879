"""SIGKILL at any moment: the journal is readable, what was finished stays, and the answer in the end is right.

The process kills itself at a moment of its own work, drawn by a seed: before, inside or after hashing a file, writing a
line of the journal (a half of it among these), or telling of progress. So nothing depends on how fast the machine is.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from verified import flipped, sha256, statuses, write

import kimi_inspect as ki
from kimi_inspect.hashing import SHA256
from kimi_inspect.journal import Journal, journal_file
from kimi_inspect.tree import look_at

ROUNDS = 20
FILES = {f"model-{number:05d}-of-000096.safetensors": b"%d" % number * 5000 for number in range(1, 97)}
BAD = "model-00050-of-000096.safetensors"

CHILD = """
import os, signal, sys
import kimi_inspect as ki
from kimi_inspect import digesting, journal

folder, manifest, moments = sys.argv[1], sys.argv[2], int(sys.argv[3])
left, true_write, true_digest = [moments], os.write, digesting.digest_file

def moment():
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def write(handle, data):
    moment()
    left[0] -= 1
    if left[0] == 0:
        true_write(handle, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    count = true_write(handle, data)
    # To the file of the test: the journal has this line now.
    true_write(done, data)
    moment()
    return count

def digest(task, tell):
    moment()
    result = true_digest(task, tell)
    moment()
    return result

done = os.open(sys.argv[4], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
journal.os.write = write
digesting.digest_file = digest
found = ki.verify(folder, manifest, max_workers=2, progress=lambda _: moment())
print(found.ok, [file.path for file in found.files if not file.ok])
"""


def run(folder: Path, manifest: Path, moments: int, done: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, str(folder), str(manifest), str(moments), str(done)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", FILES | {BAD: flipped(FILES[BAD], 77)})


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    files = tuple(
        ki.ManifestFile(path=path, bytes=len(data), sha256=sha256(data)) for path, data in sorted(FILES.items())
    )
    path = tmp_path / "kimi.json"
    path.write_text(ki.Manifest(source="x", files=files).to_json())
    return path


def test_killed_twenty_times_in_a_row(folder: Path, manifest: Path, tmp_path: Path) -> None:
    file = journal_file(folder)
    assert file is not None
    moments = random.Random(96)  # noqa: S311
    done = tmp_path / "done"
    kept = 0
    written: set[str] = set()
    for _ in range(ROUNDS):
        killed = run(folder, manifest, moments.randint(1, 40), done)
        assert killed.returncode == -signal.SIGKILL, killed.stdout
        # Each digest that was written down by then is there; the two files in flight are all that may be lost.
        written = (
            {json.loads(line[9:])[0] for line in done.read_bytes().splitlines() if line} if done.exists() else set()
        )
        journal = Journal(file)
        for path in written:
            mark = look_at(folder / path).mark
            assert mark is not None
            assert journal.recall(path, mark, SHA256) == sha256((folder / path).read_bytes())
        assert len(written) >= kept
        kept = len(written)
    assert 0 < kept < len(FILES)
    found = ki.verify(folder, manifest)
    assert statuses(found.files) == dict.fromkeys(FILES, "ok") | {BAD: "mismatch"}
    assert found.bytes_remembered >= sum(len(FILES[path]) for path in written)
    assert found.bytes_hashed + found.bytes_remembered == sum(map(len, FILES.values()))
    assert run(folder, manifest, 10**9, done).stdout == f"False ['{BAD}']\n"


def test_sixty_of_ninety_six(folder: Path, manifest: Path) -> None:
    """A run that was stopped after 60 files goes on with the 61st."""
    done: list[str] = []

    def stop(progress: ki.Progress) -> None:
        if progress.phase == "hashing" and progress.path:
            done.append(progress.path)
            if len(done) == 60:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ki.verify(folder, manifest, max_workers=1, progress=stop)
    found = ki.verify(folder, manifest, max_workers=1)
    assert {file.path for file in found.files if file.remembered} >= set(done)
    assert found.bytes_hashed <= sum(len(FILES[path]) for path in FILES.keys() - set(done))
