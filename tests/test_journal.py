"""The journal: what was remembered comes back, and nothing else is believed, whatever stands in the file."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_inspect.hashing import GIT_SHA1, SHA256, Mark
from kimi_inspect.journal import SPARE_LINES, Journal, Memory, journal_file, open_memory

MARK = Mark(size=10, mtime_ns=1_700_000_000_000_000_001, inode=7, device=3)
DIGEST, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "one.journal"


def remembered(file: Path, *items: tuple[str, Mark, str]) -> Journal:
    journal = Journal(file)
    for path, mark, digest in items:
        journal.remember(path, mark, SHA256, digest)
    return journal


def test_what_was_remembered_comes_back(file: Path) -> None:
    journal = remembered(file, ("a", MARK, DIGEST), ("b\n\udcff", MARK, OTHER))
    journal.remember("a", MARK, GIT_SHA1, "ef" * 20)
    for one in (journal, Journal(file)):
        assert one.recall("a", MARK, SHA256) == DIGEST
        assert one.recall("b\n\udcff", MARK, SHA256) == OTHER
        assert one.recall("a", MARK, GIT_SHA1) == "ef" * 20


@pytest.mark.parametrize("change", [{"size": 11}, {"mtime_ns": MARK.mtime_ns + 1}, {"inode": 8}, {"device": 4}])
def test_a_file_that_changed_is_not_known(file: Path, change: dict[str, int]) -> None:
    remembered(file, ("a", MARK, DIGEST))
    assert Journal(file).recall("a", evolve(MARK, **change), SHA256) is None


def test_other_paths_and_algorithms_are_not_known(file: Path) -> None:
    remembered(file, ("a", MARK, DIGEST))
    assert Journal(file).recall("b", MARK, SHA256) is None
    assert Journal(file).recall("a", MARK, GIT_SHA1) is None


def test_what_was_found_last_counts(file: Path) -> None:
    later = evolve(MARK, mtime_ns=MARK.mtime_ns + 5)
    remembered(file, ("a", MARK, DIGEST), ("a", later, OTHER))
    assert Journal(file).recall("a", later, SHA256) == OTHER
    assert Journal(file).recall("a", MARK, SHA256) is None


@settings(deadline=None)
@given(st.data())
def test_a_journal_cut_or_changed_anywhere_gives_nothing_false(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("journal") / "one.journal"
    truth = {f"file {number}": f"{number:064x}" for number in range(4)}
    remembered(file, *((path, MARK, digest) for path, digest in truth.items()))
    whole = file.read_bytes()
    begin = data.draw(st.integers(0, len(whole)))
    damaged = whole[:begin] + data.draw(st.binary(max_size=20)) + whole[data.draw(st.integers(begin, len(whole))) :]
    file.write_bytes(damaged)
    journal = Journal(file)
    for path, digest in truth.items():
        assert journal.recall(path, MARK, SHA256) in (None, digest)
    journal.remember("new", MARK, SHA256, DIGEST)
    assert Journal(file).recall("new", MARK, SHA256) == DIGEST


def test_a_line_cut_at_its_end_costs_that_line_alone(file: Path) -> None:
    remembered(file, ("a", MARK, DIGEST), ("b", MARK, DIGEST))
    os.truncate(file, file.stat().st_size - 1)
    journal = remembered(file, ("c", MARK, DIGEST))
    assert [Journal(file).recall(path, MARK, SHA256) for path in "abc"] == [DIGEST, DIGEST, DIGEST]
    os.truncate(file, file.stat().st_size - 2)
    remembered(file, ("d", MARK, DIGEST))
    assert [Journal(file).recall(path, MARK, SHA256) for path in "abcd"] == [DIGEST, DIGEST, None, DIGEST]
    assert journal.recall("c", MARK, SHA256) == DIGEST


HOSTILE: list[Any] = [
    [],
    {},
    "a",
    None,
    ["a", 1, 2, 3],
    ["a", 10, MARK.mtime_ns, 7, 3, "sha256", DIGEST, "more"],
    ["a", "10", MARK.mtime_ns, 7, 3, "sha256", DIGEST],
    ["a", 10.0, MARK.mtime_ns, 7, 3, "sha256", DIGEST],
    ["a", True, MARK.mtime_ns, 7, 3, "sha256", DIGEST],
    ["a", 10, MARK.mtime_ns, 7, 3, "md5", DIGEST],
    ["a", 10, MARK.mtime_ns, 7, 3, "sha256", DIGEST[:-1]],
    ["a", 10, MARK.mtime_ns, 7, 3, "sha256", DIGEST + "\n"],
    ["a", 10, MARK.mtime_ns, 7, 3, "sha256", 5],
    [["a"], 10, MARK.mtime_ns, 7, 3, "sha256", DIGEST],
]


@pytest.mark.parametrize("values", HOSTILE, ids=repr)
def test_lines_with_a_right_checksum_and_wrong_values(file: Path, values: Any) -> None:
    body = json.dumps(values).encode()
    file.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    assert Journal(file).recall("a", MARK, SHA256) is None


def test_deep_and_long_lines(file: Path) -> None:
    bodies = [b"[" * 100_000, b'["a",' + b"9" * 10_000 + b"]", b"\xff\xfe"]
    file.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(body), body) for body in bodies))
    assert remembered(file, ("a", MARK, DIGEST)).recall("a", MARK, SHA256) == DIGEST


def test_a_file_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    journal = Journal(tmp_path / "folder")
    journal.remember("a", MARK, SHA256, DIGEST)
    assert journal.recall("a", MARK, SHA256) == DIGEST
    assert Journal(tmp_path / "none" / "x").recall("a", MARK, SHA256) is None


def test_a_journal_of_somebody_else_is_not_believed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered(file, ("a", MARK, DIGEST))
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert Journal(file).recall("a", MARK, SHA256) is None


def test_lines_that_stand_for_nothing_are_removed_in_time(file: Path) -> None:
    journal = Journal(file)
    marks = [evolve(MARK, mtime_ns=number) for number in range(SPARE_LINES + 10)]
    for mark in marks:
        journal.remember("a", mark, SHA256, DIGEST)
    assert len(file.read_bytes().splitlines()) == len(marks)
    again = Journal(file)
    assert len(file.read_bytes().splitlines()) == 1
    assert again.recall("a", marks[-1], SHA256) == DIGEST
    again.remember("b", MARK, SHA256, OTHER)
    assert Journal(file).recall("b", MARK, SHA256) == OTHER


def test_two_processes_may_write_at_once(file: Path) -> None:
    one, other = Journal(file), Journal(file)
    one.remember("a", MARK, SHA256, DIGEST)
    other.remember("b", MARK, SHA256, OTHER)
    one.remember("c", MARK, SHA256, DIGEST)
    assert [Journal(file).recall(path, MARK, SHA256) for path in "abc"] == [DIGEST, OTHER, DIGEST]


def test_it_lies_with_the_assets_of_the_hub_and_not_in_the_folder(tmp_path: Path, clean_environment: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    place = journal_file(folder)
    assert place is not None
    assert place.is_relative_to(clean_environment / "assets")
    assert place == journal_file(tmp_path / "link")
    assert place != journal_file(tmp_path)
    assert isinstance(open_memory(folder, believed=True), Journal)


def test_without_a_place_digests_are_known_until_the_call_ends(tmp_path: Path, clean_environment: Path) -> None:
    clean_environment.write_text("a file where the folder should be")
    memory = open_memory(tmp_path, believed=True)
    assert type(memory) is Memory
    assert "no journal is kept" in memory.notes[0]
    assert not open_memory(tmp_path, believed=False).notes


def test_one_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    file = tmp_path / "none" / "one.journal"
    journal = remembered(file, ("a", MARK, DIGEST), ("b", MARK, OTHER))
    (note,) = journal.notes
    assert note == f"no journal is kept: {file} cannot be written: No such file or directory"
    assert journal.recall("b", MARK, SHA256) == OTHER


def test_one_that_is_too_long_is_begun_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered(file, ("a", MARK, DIGEST))
    monkeypatch.setattr("kimi_inspect.journal.MAX_BYTES", file.stat().st_size - 1)
    remembered(file, ("b", MARK, OTHER))
    monkeypatch.undo()
    assert [Journal(file).recall(path, MARK, SHA256) for path in "ab"] == [None, OTHER]


@pytest.mark.usefixtures("clean_environment")
def test_one_that_is_not_believed_is_corrected(tmp_path: Path) -> None:
    """And left as it is where it was right, or told nothing."""
    open_memory(tmp_path, believed=False).remember("a", MARK, SHA256, DIGEST)
    file = journal_file(tmp_path)
    assert file is not None
    assert not file.exists()
    remembered(file, ("a", MARK, DIGEST), ("b", MARK, DIGEST))
    before = file.read_bytes()
    memory = open_memory(tmp_path, believed=False)
    assert memory.recall("a", MARK, SHA256) is None
    for path in "ac":
        memory.remember(path, MARK, SHA256, DIGEST)
        assert memory.recall(path, MARK, SHA256) == DIGEST
    assert file.read_bytes() == before
    memory.remember("b", MARK, SHA256, OTHER)
    assert [Journal(file).recall(path, MARK, SHA256) for path in "abc"] == [DIGEST, OTHER, None]
