"""The verb compare: its table, its statuses, and the rates of a link."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from contracts.checks import REPO
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import kimi_inspect as ki
from kimi_inspect.cli import main
from kimi_inspect.comparison_table import duration, short_names, show_compared
from kimi_inspect.rates import bits_per_second, seconds_for
from kimi_inspect.testing import (
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    devquasar_gguf,
    hollow_safetensors,
    kimi_k31_pro,
    kimi_nf12,
    kimi_reap,
)

NORM = TensorSpec("model.norm.weight", "BF16", (64,))
SMALL: dict[str, int] = {"layers": 4, "experts": 4}


@pytest.fixture
def good(tmp_path: Path) -> str:
    """A folder with a checkpoint that nothing is wrong with."""
    return folder(tmp_path, "good")


@pytest.fixture
def cut(tmp_path: Path) -> str:
    """One whose file ends before its tensor does: a finding of severity error."""
    file = hollow_safetensors([NORM])
    return folder(tmp_path, "cut", file.read(0, file.size - 10))


@pytest.fixture
def warned(tmp_path: Path) -> str:
    """One with a finding of severity warning."""
    path = folder(tmp_path, "warned")
    (Path(path) / "config.json").write_text("no json")
    return path


def folder(parent: Path, name: str, data: bytes | None = None) -> str:
    (parent / name).mkdir()
    path = parent / name / "model.safetensors"
    if data is None:
        hollow_safetensors([NORM]).write_to(path)
    else:
        path.write_bytes(data)
    return str(parent / name)


def test_json_is_the_comparison_and_nothing_else(good: str, cut: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", good, cut, "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == ki.compare(good, cut).to_dict()


def test_the_table_has_a_line_a_checkpoint(good: str, cut: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", good, cut]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith(good)
    assert "clean" in lines[2]
    assert "1 error" in lines[3]


@pytest.mark.parametrize(
    ("names", "options", "status"),
    [
        (["good", "good"], [], 0),
        (["good", "warned"], [], 0),
        (["good", "warned"], ["--fail-on", "warning"], 1),
        (["good", "cut"], [], 1),
        (["good", "missing"], [], 1),
        (["warned", "missing"], [], 1),
        (["missing"], [], 2),
        (["missing", "nonsense"], [], 2),
    ],
)
def test_exit_statuses(
    names: Sequence[str], options: Sequence[str], status: int, good: str, cut: str, warned: str
) -> None:
    sources = {"good": good, "cut": cut, "warned": warned, "missing": "./missing", "nonsense": "nonsense"}
    assert main(["compare", *(sources[name] for name in names), *options]) == status
    assert main(["compare", *(sources[name] for name in names), *options, "--json"]) == status


def test_what_cannot_be_read_is_said_below_the_table(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "./missing", good]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "./missing" in out.splitlines()[2]
    assert "cannot be read" in out.splitlines()[2]
    assert out.splitlines()[-1].startswith("cannot be read: ./missing: there is no such file or folder")


def test_the_file_at_fault_is_named(tmp_path: Path, good: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad = folder(tmp_path, "bad", b"\x90" + bytes(7) + b"{")
    assert main(["compare", bad, good]) == 1
    assert f"cannot be read: {bad}: model.safetensors: the file ends" in capsys.readouterr().out


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_if_none_can_be_read_standard_error_says_so_in_one_line(
    as_json: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "nonsense", *as_json]) == 2
    out, err = capsys.readouterr()
    assert err == "kimi-inspect: no checkpoint could be read\n"
    if as_json:
        assert json.loads(out)["rows"][0]["error"]["type"] == "InvalidSourceError"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare"], "the following arguments are required: SOURCE; see kimi-inspect compare --help"),
        (["compare", "--json"], "the following arguments are required: SOURCE"),
        (["compare", "a/b", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["show", "a/b", "c/d"], "unrecognized arguments: c/d"),
        (["compare", "a/b", "--link", "fast"], "expected a rate in bits such as 1Gbps, or in bytes such as 125MB/s"),
        (["compare", "a/b", "--link", "1\x1b[31mGbps"], r"1\x1b[31mGbps"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    if "--json" not in arguments:
        assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["{a}", "{b}", "--json"],
        ["--json", "{a}", "{b}"],
        ["{a}", "--json", "{b}"],
        ["{a}", "--jobs", "2", "--json", "{b}"],
        ["--json", "{a}", "--jobs", "2", "{b}", "--no-cache"],
        ["--json", "--", "{a}", "{b}"],
    ],
)
def test_sources_may_stand_anywhere(
    arguments: list[str], good: str, warned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *(word.format(a=good, b=warned) for word in arguments)]) == 0
    assert [row["source"] for row in json.loads(capsys.readouterr().out)["rows"]] == [good, warned]


def test_a_source_behind_companions_is_no_glob(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--json", "--companions", good]) == 0
    assert [row["source"] for row in json.loads(capsys.readouterr().out)["rows"]] == [good]


def test_common_options(capsys: pytest.CaptureFixture[str]) -> None:
    files = devquasar_gguf(**SMALL, tokens=50, parts=2)
    with LoopbackHub([Repository(REPO, files, tags=("v1",))]) as hub:
        options = ["--endpoint", hub.endpoint, "--revision", "v1", "--files", "*Q2_K*", "--files", "mmproj*"]
        assert main(["compare", REPO, *options, "--companions", "--jobs", "1", "--no-cache", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["source"], row["set_name"], row["vision"]) == (f"{REPO}@v1", "Q2_K", "side file")
    assert "vision_tower" in row["components"]


# Download times


RATES = {
    "1Gbps": 10**9,
    "100Mbps": 10**8,
    "100mbps": 10**8,
    "10 Gbit/s": 10**10,
    "10 gbits/s": 10**10,
    "2.5Gb/s": 2_500_000_000,
    "125MB/s": 10**9,
    "125 MBps": 10**9,
    "1 Gbyte/s": 8 * 10**9,
    "1 GBytes/s": 8 * 10**9,
    "0.1 Tbps": 10**11,
    "300bps": 300,
    " 1kB/s ": 8_000,
}


@pytest.mark.parametrize(("text", "rate"), RATES.items())
def test_rates_tell_bits_from_bytes(text: str, rate: int) -> None:
    assert bits_per_second(text) == rate


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "1G", "Gbps", "fast", "1 Gb", "1GBPS", "1Gib/s", "1 GiB/s", "-1Gbps", "0Gbps", "0.1 bps", "1e9bps"),
        *("1,000 Mbps", "1.Gbps", ".5Gbps", "1Gbps 2", "\u0661Gbps", "9" * 13 + "bps", "inf bps", "nanbps"),
    ],
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a rate"):
        bits_per_second(text)


@given(
    st.integers(1, 10**6),
    st.integers(0, 999),
    st.sampled_from(["", "k", "K", "M", "m", "G", "T"]),
    st.sampled_from([("bps", 1), ("b/s", 1), ("bit/s", 1), ("Bit/s", 1), ("B/s", 8), ("Bps", 8), ("bytes/s", 8)]),
    st.sampled_from(["", " ", "  "]),
)
def test_any_rate(whole: int, part: int, power: str, unit: tuple[str, int], space: str) -> None:
    thousands = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}[power.lower()]
    exact = (whole * 1000 + part) * unit[1] * 1000**thousands
    assert bits_per_second(f"{whole}.{part:03d}{space}{power}{unit[0]}") == exact // 1000


@given(st.from_regex(r"[0-9.]{0,3} ?[kKmMgG]?[bB]?(ps|it|/s|i)?", fullmatch=True) | st.text(max_size=8))
def test_no_text_is_more_than_refused(text: str) -> None:
    with suppress(ValueError):
        assert bits_per_second(text) >= 1


@pytest.mark.parametrize(
    ("nbytes", "rate", "text"),
    [
        (1_561_293_160_568, "1Gbps", "3 h 28 min"),
        (1_561_293_160_568, "10Gbps", "20 min 49 s"),
        (1_561_293_160_568, "125MB/s", "3 h 28 min"),
        (1_561_293_160_568, "100 Mbps", "1 d 11 h"),
        (0, "1Gbps", "< 1 s"),
        (125_000_000, "1Gbps", "1 s"),
        (7_450_000_000, "1Gbps", "1 min 0 s"),
        (449_990_000_000, "1Gbps", "1 h 0 min"),
        (10**18, "1 Mbps", "92,592,592 d 14 h"),
    ],
)
def test_download_times(nbytes: int, rate: str, text: str) -> None:
    seconds = seconds_for(nbytes, bits_per_second(rate))
    assert seconds is not None
    assert duration(seconds) == text


@given(st.floats(1, 1e12))
def test_a_time_is_off_by_half_its_smaller_unit_at_most(seconds: float) -> None:
    units = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
    words = duration(seconds).replace(",", "").split()
    shown = sum(int(count) * units[unit] for count, unit in zip(words[::2], words[1::2], strict=True))
    assert abs(shown - seconds) <= units[words[-1]] / 2
    assert all(
        int(count) < {"h": 24, "min": 60, "s": 60}[unit] for count, unit in zip(words[2::2], words[3::2], strict=True)
    )


def test_a_link_adds_times_to_the_table_and_to_json(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", good, "./missing", "--link", "10 kbit/s", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["link"] == {"bits_per_second": 10_000}
    size = document["rows"][0]["file_bytes"]
    assert [row["download_seconds"] for row in document["rows"]] == [size * 8 / 10_000, None]
    assert ki.Comparison.from_dict(document) == ki.compare(good, "./missing")
    assert main(["compare", good, "--link", "10 kbit/s"]) == 0
    out = capsys.readouterr().out
    assert "at 10 kbit/s" in out
    assert "< 1 s" in out
    assert main(["compare", good]) == 0
    assert "download" not in capsys.readouterr().out


# The table


@pytest.fixture(scope="module")
def table() -> ki.Comparison:
    broken = {"model.safetensors": HollowFile(b"<!doctype html><html></html>")}
    pruned = kimi_reap(4, layers=4, expert_counts=[4, 3, 4])
    made = ki.compare(
        kimi_k31_pro(**SMALL), devquasar_gguf(**SMALL, tokens=50, parts=2), pruned, kimi_nf12(**SMALL), broken
    )
    names = [f"some-maker-of-builds/Kimi-K3.1-Pro-of-a-long-name:{mark}" for mark in ("A", "B", "C", "D", "E", "F")]
    return ki.Comparison(rows=tuple(attrs.evolve(row, name=name) for row, name in zip(made.rows, names, strict=True)))


def drawn(table: ki.Comparison, width: int, **options: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        show_compared(console, table, **options)
    return capture.get().splitlines()


@pytest.mark.parametrize("link", [None, 10**9])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200, 400])
def test_a_table_is_never_wider_than_its_terminal_and_names_stay_apart(
    table: ki.Comparison, width: int, link: int | None
) -> None:
    lines = drawn(table, width, link=link)
    assert max(map(len, lines)) <= width
    assert "" in lines
    assert lines.index("") == len(table.rows) + 2
    named = [line.split("  ")[0] for line in lines[2 : lines.index("")]]
    assert [name[-2:] for name in named] == [":A", ":B", ":C", ":D", ":E", ":F"]
    for row, line in zip(table.rows, lines[2:], strict=False):
        assert (f"{(row.file_bytes or 0) / 1e9:,.2f}" in line) == (row.error is None)


def test_a_wider_terminal_shows_more(table: ki.Comparison) -> None:
    counts = [sum(map(len, drawn(table, width))) for width in (60, 80, 120, 200, 400)]
    assert counts == sorted(counts)
    assert len(set(counts)) == len(counts)


def test_what_the_cells_say(table: ki.Comparison) -> None:
    official, mxfp4, q2, pruned, unknown, unread = drawn(table, 400, link=10**9)[2:8]
    assert official.split()[1:3] == ["safetensors", str(table.rows[0].shard_count)]
    assert " yes " in official
    assert " 4.25 " in official
    assert f"{table.rows[0].parameters:,}" in official
    assert f"{table.rows[0].file_bytes:,}" in official
    assert " side file " in mxfp4
    assert " q2_k, q3_k " in q2
    assert " 3-4 " in pruned
    assert " unknown " in unknown
    assert unread.split() == [table.rows[5].name, "cannot", "be", "read"]


@given(st.lists(st.text("ab/:…é", max_size=40), max_size=8), st.integers(3, 30))
def test_shortened_names_stay_apart(names: list[str], limit: int) -> None:
    short = short_names(names, limit)
    assert len(set(short)) == len(set(names))
    for name, cut in zip(names, short, strict=True):
        assert cut == name or len(cut) == limit < len(name)


def test_names_from_strangers_are_shown_safely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = folder(tmp_path, "\x1b[31m[bold]evil\r\u202e")
    bad = folder(tmp_path, "\x1b[32m[red]bad", b"<!doctype html><html></html>")
    assert main(["compare", evil, bad, "evil\x1b[31m\u202e"]) == 1
    out, err = capsys.readouterr()
    assert not {"\x1b", "\r", "\u202e"} & set(out + err)
    assert r"\x1b[31m[bold]evil\r\u202e" in out
    assert r"\x1b[32m[red]bad" in out


# The demo


def test_the_demo_compares_what_it_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    sources = ["moonshotai/Kimi-K3.1-Pro", "DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF:Q2_K"]
    assert main(["demo", "compare", *sources, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [row["file_bytes"] for row in rows] == [1_561_293_160_568, 1_009_315_027_936]


def test_the_demo_compares_all_that_it_holds(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {
        "moonshotai/Kimi-K3.1-Pro": "kimi-k3.1-pro",
        "DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF": "kimi-k3.1-pro-gguf",
    }
    monkeypatch.setattr("kimi_inspect.demo.EMBEDDED", held)
    assert main(["demo", "compare", "--json", "--link", "1Gbps"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [(row["source"], row["set_name"], row["error"]) for row in rows] == [
        ("moonshotai/Kimi-K3.1-Pro", "model", None),
        ("DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF", "MXFP4_MOE", None),
        ("DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF", "Q2_K", None),
    ]
