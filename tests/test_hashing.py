"""The unit of work: one file's digests, right, in little memory, and without harm to what others have cached."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from verified import git_sha1, sha256

import kimi_inspect as ki
from kimi_inspect.hashing import GIT_SHA1, SEGMENT_BYTES, SHA256, Digested, DigestTask, digest_file

BOTH = (SHA256, GIT_SHA1)


def digests(path: Path, *algorithms: str) -> dict[str, str]:
    done = digest_file(DigestTask(path=str(path), algorithms=algorithms or BOTH))
    assert done.problem is None
    return dict(done.digests)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1, SEGMENT_BYTES, SEGMENT_BYTES + 12345])
def test_digests_are_those_of_the_programs(size: int, tmp_path: Path) -> None:
    path = tmp_path / "some file"
    path.write_bytes(
        os.urandom(min(size, 1 << 20)) * (size >> 20 or 1) + b"x" * (size % (1 << 20) if size >> 20 else 0)
    )
    data = path.read_bytes()
    assert len(data) == size
    assert digests(path) == {SHA256: sha256(data), GIT_SHA1: git_sha1(data)}
    said = subprocess.run(["sha256sum", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert digests(path, SHA256)[SHA256] == said.split()[0]


def test_progress_adds_up_to_the_size(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(SEGMENT_BYTES * 2 + 5)
    told: list[int] = []
    done = digest_file(DigestTask(path=str(path), algorithms=(SHA256,)), told.append)
    assert told == [SEGMENT_BYTES, SEGMENT_BYTES, 5]
    assert done.bytes == sum(told)


def test_what_progress_raises_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some")

    def stop(_: int) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        digest_file(DigestTask(path=str(path), algorithms=(SHA256,)), stop)


def test_problems_are_told_not_raised(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    problems = {
        name: digest_file(DigestTask(path=str(tmp_path / name), algorithms=(SHA256,)))
        for name in ("pipe", "folder", "dangling", "loop")
    }
    assert {name: result.problem for name, result in problems.items()} == {
        "pipe": "no regular file",
        "folder": "a folder",
        "dangling": "No such file or directory",
        "loop": "Too many levels of symbolic links",
    }
    assert not any(result.digests or result.changed for result in problems.values())


@pytest.mark.parametrize("change", ["appended", "cut"])
def test_a_file_that_is_written_to_has_no_digest(change: str, tmp_path: Path) -> None:
    path = tmp_path / "growing"
    with path.open("wb") as file:
        file.truncate(2 * SEGMENT_BYTES)

    def write(_: int) -> None:
        if change == "appended":
            with path.open("ab") as file:
                file.write(b"more")
        else:
            os.truncate(path, SEGMENT_BYTES)

    done = digest_file(DigestTask(path=str(path), algorithms=(SHA256,)), write)
    assert done == Digested(problem="it changed while it was read", changed=True)


def test_task_and_result_pickle(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some")
    task = DigestTask(path=str(path), algorithms=BOTH)
    result = digest_file(task)
    assert pickle.loads(pickle.dumps((task, result))) == (task, result)  # noqa: S301


def cached_share(path: Path) -> float:
    """Return the part of a file's pages that are in memory, asked without bringing any there."""
    with path.open("rb") as file:
        spots = range(0, path.stat().st_size, 1 << 16)
        hits = 0
        for spot in spots:
            try:
                hits += bool(os.preadv(file.fileno(), [bytearray(1)], spot, os.RWF_NOWAIT))
            except BlockingIOError:
                pass
            except OSError:
                pytest.skip("this file system does not tell what it has cached")
        return hits / len(spots)


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_share(path) > 0.1:
        pytest.skip("this system does not drop pages when asked")


def test_pages_that_nobody_used_are_dropped_again(tmp_path: Path) -> None:
    path = tmp_path / "cold"
    path.write_bytes(os.urandom(1 << 20) * 40)
    evict(path)
    digests(path, SHA256)
    assert cached_share(path) < 0.1


def test_pages_that_somebody_uses_stay(tmp_path: Path) -> None:
    path = tmp_path / "warm"
    path.write_bytes(os.urandom(1 << 20) * 40)
    if cached_share(path) < 1:
        pytest.skip("the system has no memory to spare")
    digests(path, SHA256)
    assert cached_share(path) > 0.9


def test_a_worker_imports_little() -> None:
    """Workers of a cluster load the unit of work alone."""
    code = "import sys, kimi_inspect.hashing; print([n for n in sys.modules if n in ('numpy', 'huggingface_hub')])"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "[]\n"


MEMORY = """
import sys
import kimi_inspect as ki
found = ki.verify(sys.argv[1], ki.Manifest.from_json(open(sys.argv[2]).read()), max_workers=4, journal=False)
assert found.ok, found
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read where Linux tells it")
def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    zeros = 96 << 20
    digest = hashlib.sha256(bytes(zeros)).hexdigest()
    files = [ki.ManifestFile(path=f"{number}.safetensors", bytes=zeros, sha256=digest) for number in range(6)]
    for file in files:
        with (folder / file.path).open("wb") as stream:
            stream.truncate(zeros)
    (tmp_path / "kimi.json").write_text(ki.Manifest(source="x", files=tuple(files)).to_json())
    command = [sys.executable, "-c", MEMORY, str(folder), str(tmp_path / "kimi.json")]
    kilobytes = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert kilobytes * 1024 < 120_000_000
