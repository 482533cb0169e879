"""Watching a download: each file is checked once it is whole, a bad one is told at once and checked again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from verified import REPO, flipped, shard_name, small_kimi, statuses, write

import kimi_inspect as ki
from kimi_inspect.hashing import Digested, DigestTask, digest_file
from kimi_inspect.testing import LoopbackHub, Repository
from kimi_inspect.watching import PATIENCE

FILES = {shard_name(number): small_kimi()[shard_name(number)] for number in (1, 2, 3)} | {"config.json": b"{}\n"}
TOTAL = sum(map(len, FILES.values()))
ONE, TWO, THREE = (shard_name(number) for number in (1, 2, 3))


class Download:
    """Does the next step of a download at each pause, and notes what had been told by then."""

    def __init__(self, folder: Path, steps: Sequence[Callable[[Path], object]]) -> None:
        self.folder = folder
        self._steps = list(steps)
        self.told: list[tuple[int, str, str]] = []
        self.commands: dict[str, str | None] = {}
        self.pauses = 0
        folder.mkdir()

    def seen(self, file: ki.FileVerification) -> None:
        self.told.append((self.pauses, file.path, str(file.status)))
        self.commands[file.path] = file.command

    def wait(self, seconds: float) -> None:
        assert seconds == 7
        self.pauses += 1
        if not self._steps:
            raise KeyboardInterrupt
        self._steps.pop(0)(self.folder)


@pytest.fixture
def manifest() -> ki.Manifest:
    with LoopbackHub([Repository(REPO, FILES)]) as hub:
        return ki.lock(REPO, endpoint=hub.endpoint)


def put(*paths: str, data: bytes | None = None) -> Callable[[Path], object]:
    return lambda folder: write(folder, {path: FILES[path] if data is None else data for path in paths})


def nothing(_: Path) -> None:
    pass


def follow(download: Download, manifest: ki.Manifest, **options: object) -> ki.Verification:
    return ki.watch(download.folder, manifest, seen=download.seen, wait=download.wait, interval=7, **options)  # type: ignore[arg-type]


def test_each_file_is_checked_when_it_is_whole(tmp_path: Path, manifest: ki.Manifest) -> None:
    half = FILES[TWO][: len(FILES[TWO]) // 2]
    download = Download(
        tmp_path / "model",
        [put(ONE), put(TWO, data=half), put(TWO, "config.json"), put(THREE), nothing],
    )
    found = follow(download, manifest)
    # A file is checked at the second look at which it is the same: one pause after it has come.
    assert sorted(download.told) == [(2, ONE, "ok"), (4, "config.json", "ok"), (4, TWO, "ok"), (5, THREE, "ok")]
    assert found.ok
    assert (found.bytes_hashed, found.bytes_remembered) == (TOTAL, 0)
    assert not any(file.remembered for file in found.files)
    assert not [note for note in found.notes if "earlier" in note]


def test_a_bad_file_is_told_at_once_and_checked_again(tmp_path: Path, manifest: ki.Manifest) -> None:
    bad = flipped(FILES[ONE], -5)
    steps = [put(ONE, data=bad), put(TWO), put(THREE, "config.json"), put(ONE), nothing]
    download = Download(tmp_path / "model", steps)
    found = follow(download, manifest)
    assert (2, ONE, "mismatch") in download.told
    assert download.told.count((5, ONE, "ok")) == 1
    assert found.ok
    assert download.commands[ONE] is None


def test_the_command_for_a_bad_file(tmp_path: Path, manifest: ki.Manifest) -> None:
    folder = tmp_path / "model"
    download = Download(folder, [put(*FILES), put(ONE, data=flipped(FILES[ONE], -5)), nothing])
    found = follow(download, manifest)
    assert statuses(found.files) == dict.fromkeys(FILES, "ok") | {ONE: "mismatch"}
    command = f"hf download {REPO} {ONE} --revision {manifest.commit} --local-dir {folder} --force-download"
    assert download.commands[ONE] == command


@pytest.mark.parametrize("sign", [".aria2", ".incomplete"])
def test_a_file_that_is_still_being_fetched_is_left_alone(sign: str, tmp_path: Path, manifest: ki.Manifest) -> None:
    """aria2 gives a file its full size at once; the Hub's client writes beside it."""
    name = ONE if sign == ".aria2" else f"{ONE}.incomplete"

    def finish(folder: Path) -> None:
        (folder / (ONE + sign)).unlink()
        write(folder, {ONE: FILES[ONE]})

    steps = [
        put(TWO, THREE, "config.json"),
        lambda folder: write(folder, {name: bytes(len(FILES[ONE])), ONE + sign: b"x"}),
    ]
    download = Download(tmp_path / "model", [*steps, nothing, nothing, finish, nothing])
    assert follow(download, manifest).ok
    assert [item for item in download.told if item[1] == ONE] == [(6, ONE, "ok")]


def test_a_file_of_unknown_size_is_whole_when_it_rests(tmp_path: Path) -> None:
    sums = tmp_path / "SHA256SUMS"
    write(tmp_path / "copy", FILES)
    manifest = ki.lock(tmp_path / "copy")
    sums.write_text("".join(f"{file.sha256}  {file.path}\n" for file in manifest.files))
    grow = [put(ONE, data=FILES[ONE][:end]) for end in (10, 20, len(FILES[ONE]))]
    download = Download(tmp_path / "model", [put(TWO, THREE, "config.json"), *grow, nothing])
    assert ki.watch(download.folder, sums, seen=download.seen, wait=download.wait, interval=7).ok
    assert [item for item in download.told if item[1] == ONE] == [(5, ONE, "ok")]


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (put(ONE, data=FILES[ONE] + b"x"), "size-differs"),
        (put("config.json", data=b"{}\r\n"), "size-differs"),
        (lambda folder: (folder / TWO).mkdir(), "unreadable"),
    ],
    ids=["longer", "CR LF", "a folder"],
)
def test_what_cannot_become_right_is_told_at_once(
    wrong: Callable[[Path], object], status: str, tmp_path: Path, manifest: ki.Manifest
) -> None:
    download = Download(tmp_path / "model", [wrong, nothing, nothing])
    with pytest.raises(KeyboardInterrupt):
        follow(download, manifest)
    assert (download.told[0][0], download.told[0][2]) == (2, status)


def test_it_does_not_wait_for_what_cannot_become_right(tmp_path: Path, manifest: ki.Manifest) -> None:
    download = Download(tmp_path / "model", [put(*FILES), put(ONE, data=FILES[ONE] + b"x"), nothing])
    found = follow(download, manifest)
    assert statuses(found.files) == dict.fromkeys(FILES, "ok") | {ONE: "size-differs"}
    assert (3, ONE, "size-differs") in download.told


def test_what_stays_too_short_is_told_after_a_while(tmp_path: Path, manifest: ki.Manifest) -> None:
    """A download may pause; and what goes on is not told."""
    steps = [*[nothing] * (PATIENCE - 2), put(ONE, data=FILES[ONE][:200]), *[nothing] * 2 * PATIENCE]
    download = Download(tmp_path / "model", [put(ONE, data=FILES[ONE][:100]), *steps, put(*FILES), nothing])
    found = follow(download, manifest)
    assert found.ok
    assert download.told[0] == (PATIENCE - 1 + PATIENCE, ONE, "size-differs")
    assert [status for _, path, status in download.told if path == ONE] == ["size-differs", "ok"]


def test_interrupted(tmp_path: Path, manifest: ki.Manifest) -> None:
    download = Download(tmp_path / "model", [put(ONE), nothing])
    with pytest.raises(KeyboardInterrupt):
        follow(download, manifest)
    assert download.told == [(2, ONE, "ok")]
    # What was found is not lost.
    again = ki.verify(download.folder, manifest)
    assert again.bytes_remembered == len(FILES[ONE])


def test_only_the_files_that_are_fetched(tmp_path: Path, manifest: ki.Manifest) -> None:
    download = Download(tmp_path / "model", [put(TWO), nothing])
    found = follow(download, manifest, files="*-00002-*", journal=False)
    assert (found.ok, statuses(found.files)) == (True, {TWO: "ok"})


def test_a_file_that_changes_while_it_is_hashed_is_looked_at_again(
    tmp_path: Path, manifest: ki.Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []

    def touching(task: DigestTask, tell: Callable[[int], object]) -> Digested:
        if task.path.endswith(ONE) and not touched:
            touched.append(task.path)
            os.utime(task.path, ns=(1, 1))
        return digest_file(task, tell)

    monkeypatch.setattr("kimi_inspect.digesting.digest_file", touching)
    download = Download(tmp_path / "model", [put(*FILES), nothing, nothing, nothing])
    assert follow(download, manifest).ok
    assert [status for _, path, status in download.told if path == ONE] == ["unfinished", "ok"]


def test_no_folder_yet(tmp_path: Path, manifest: ki.Manifest) -> None:
    with pytest.raises(ki.SourceFileNotFoundError):
        ki.watch(tmp_path / "none", manifest, seen=print)
