"""Lists of SHA-256: written and read as the sha256sum program does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verified import sha256

from kimi_inspect import InvalidSourceError, UnsafePathError
from kimi_inspect.checksums import format_checksums, parse_checksums

DIGEST = "9f800cbd03848cb58ad1c9e7972be22bbabdcc40e49cc6402827e9ce10bb8357"

NAMES = st.binary(min_size=1, max_size=30).filter(
    lambda name: not {0, ord("/")} & {*name} and name not in (b".", b"..")
)
"""All that a file may be called, among it what has to be escaped."""

ODD = st.lists(st.sampled_from([b"\\", b"\n", b"\r", b" ", b"*", b"a", b"(", b")", b"=", b"\xff", b"n"]), min_size=1)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(NAMES | ODD.map(b"".join), st.binary(max_size=9), min_size=1, max_size=5))
def test_the_program_reads_what_we_write_and_we_what_it_writes(files: dict[bytes, bytes]) -> None:
    with TemporaryDirectory() as folder:
        names = {os.fsdecode(name): data for name, data in files.items()}
        for name, data in names.items():
            Path(folder, name).write_bytes(data)
        ours = format_checksums((name, sha256(data)) for name, data in names.items())
        for flags in ([], ["--binary"], ["--tag"]):
            # `-` alone is the program's standard input.
            command = ["sha256sum", *flags, "--", *("./-" if name == "-" else name for name in names)]
            theirs = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=True).stdout
            assert dict(parse_checksums(theirs).files) == {name: sha256(data) for name, data in names.items()}
            if not flags:
                assert ours == theirs
        subprocess.run(["sha256sum", "--check", "--strict", "--status"], cwd=folder, input=ours, check=True)


@pytest.mark.parametrize(
    "line",
    [
        f"{DIGEST}  a/b.safetensors",
        f"{DIGEST} *a/b.safetensors",
        f"{DIGEST} a/b.safetensors",
        f"{DIGEST.upper()}  a/b.safetensors",
        f"  {DIGEST}  ./a/b.safetensors",
        f"SHA256 (a/b.safetensors) = {DIGEST}",
        f"SHA256(././a/b.safetensors)= {DIGEST}",
        f"{DIGEST}  a/b.safetensors\r",
        f"# a comment\n\n{DIGEST}  a/b.safetensors",
    ],
)
def test_forms_of_a_line(line: str) -> None:
    found = parse_checksums(line.encode() + b"\n")
    assert (found.files, found.passed_over) == ((("a/b.safetensors", DIGEST),), 0)


def test_lines_of_another_form_are_counted() -> None:
    signed = f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{DIGEST}  a\nMD5 (a) = {DIGEST[:32]}\n"
    found = parse_checksums(signed.encode())
    assert (found.files, found.passed_over) == ((("a", DIGEST),), 3)
    with pytest.raises(InvalidSourceError, match="line 6 of the list is cut or damaged"):
        parse_checksums(f"{signed}\\{DIGEST}  a\\x\n{DIGEST}  b\n".encode())


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "a//b", "a/./b", "..", "."])
def test_a_path_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(UnsafePathError):
        parse_checksums(f"{DIGEST}  {name}\n".encode())


@pytest.mark.parametrize("data", [b"", b"\n", b"nothing\n", DIGEST.encode(), f"{DIGEST[:63]}  a".encode(), b"\0" * 99])
def test_what_is_no_list(data: bytes) -> None:
    with pytest.raises(InvalidSourceError, match="neither a manifest nor a list"):
        parse_checksums(data)


def test_two_digests_for_one_path() -> None:
    twice = f"{DIGEST}  a\n{DIGEST}  ./a\n"
    assert parse_checksums(twice.encode()).files == (("a", DIGEST),)
    with pytest.raises(InvalidSourceError, match="two digests"):
        parse_checksums(twice.encode() + f"{'0' * 64}  a\n".encode())


@pytest.mark.parametrize(
    "line",
    [
        f"g{DIGEST[1:]}  a",
        f"{DIGEST[:20]}\ufffd{DIGEST[21:]}  a",
        f"{DIGEST[:40]} {DIGEST[40:]}  a",
        f"x {DIGEST}  a",
        "\0" * 70,
        f"{DIGEST[:10]}\x1b{DIGEST[11:]}  a",
    ],
)
def test_a_line_that_is_damaged_is_refused(line: str) -> None:
    """A list without it would say less than it seems to."""
    with pytest.raises(InvalidSourceError, match="line 2 of the list is cut or damaged"):
        parse_checksums(f"{DIGEST}  b\n{line}\n{DIGEST}  c\n".encode())


@pytest.mark.parametrize(
    "line",
    [
        "a remark",
        "-----BEGIN PGP SIGNATURE-----",
        "iQIzBAABCAAdFiEEq7RzLQ0pEhTqhP6KXb2vNwHaYmwFAmdk0H8ACgkQXb2vNwHa",
        f"{DIGEST[:32]}  md5",
        "https://huggingface.co/acme/a-model-of-some-length/tree/main and more",
        "",
    ],
)
def test_a_line_that_was_never_a_checksum_is_passed_over(line: str) -> None:
    found = parse_checksums(f"{DIGEST}  b\n{line}\n{DIGEST}  c\n".encode())
    assert [path for path, _ in found.files] == ["b", "c"]
    assert found.passed_over == bool(line)
