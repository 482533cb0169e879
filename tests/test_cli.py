"""The command line: standard output, standard error and exit status of each verb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import REPO

import kimi_inspect as ki
from kimi_inspect.cli import main
from kimi_inspect.testing import HollowFile, LoopbackHub, TensorSpec, hollow_safetensors

NORM = TensorSpec("model.norm.weight", "BF16", (64,))


def write(folder: Path, **files: HollowFile) -> Path:
    for name, file in files.items():
        file.write_to(folder / f"{name.replace('_', '-')}.safetensors")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a whole checkpoint of one file."""
    return write(tmp_path, model=hollow_safetensors([NORM]))


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A folder whose one file ends before its tensor does."""
    path = tmp_path / "model.safetensors"
    file = hollow_safetensors([NORM])
    path.write_bytes(file.read(0, file.size - 10))
    return tmp_path


def test_show_prints_the_report(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(model)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert str(model) in out
    assert "norms" in out
    assert "64 parameters, 16.00 bits a weight" in out
    assert "nothing found that is wrong" in out


def test_show_json_is_the_report_and_nothing_else(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(model), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == ki.inspect(model).to_dict(by=())


@pytest.mark.parametrize("by", ["component", "layer", "file", "encoding"])
def test_show_by(by: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(model), "--by", by]) == 0
    title = capsys.readouterr().out.split("\n\n")[1].split()[0]
    assert title == by
    assert main(["show", str(model), "--by", by, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ki.inspect(model).to_dict(by=[by])


def test_show_reads_the_hub(hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", REPO, "--endpoint", hub.endpoint, "--jobs", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["family"] == "kimi-k31"
    assert document["traffic"]["requests"] == len(hub.log)


def test_ls_reads_the_listing_alone(hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", REPO, "--endpoint", hub.endpoint]) == 0
    assert "model  safetensors      8" in capsys.readouterr().out
    assert not [request for request in hub.log if "resolve" in request.target]


def test_ls_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(model, other=hollow_safetensors([NORM, TensorSpec("lm_head.weight", "BF16", (3,))]))
    assert main(["ls", str(model), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"schema", "source", "commit", "sets"}
    assert (document["schema"], document["source"], document["commit"]) == ("kimi-inspect/sets/1", str(model), None)
    assert [(item["name"], item["format"], item["file_count"], item["default"]) for item in document["sets"]] == [
        ("model", "safetensors", 1, True),
        ("other", "safetensors", 1, False),
    ]
    assert [item["file_bytes"] for item in document["sets"]] == [
        (model / f"{name}.safetensors").stat().st_size for name in ("model", "other")
    ]


def test_files_chooses_by_glob(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(model, other=hollow_safetensors([TensorSpec("lm_head.weight", "BF16", (3,))]))
    assert main(["show", str(model), "--files", "oth*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 3


def test_an_error_finding_makes_the_status_one(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(cut)]) == 1
    assert "error: truncated, model.safetensors: the file ends 10 bytes early" in capsys.readouterr().out


@pytest.mark.parametrize(("fail_on", "status"), [([], 0), (["--fail-on", "error"], 0), (["--fail-on", "warning"], 1)])
def test_a_warning_makes_the_status_one_only_on_request(fail_on: list[str], status: int, model: Path) -> None:
    (model / "config.json").write_text("no json")
    assert main(["show", str(model), *fail_on]) == status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "nonsense"], "'nonsense' names no checkpoint"),
        (["show", "./nowhere"], "there is no such file or folder"),
        (["show"], "the following arguments are required: SOURCE; see kimi-inspect show --help"),
        ([], "required: VERB"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["show", ".", "--by", "colour"], "invalid choice: 'colour'"),
        (["show", ".", "--jobs", "0"], "expected a number from 1 on, got '0'"),
        (["show", "evil\x1b[31m"], r"'evil\x1b[31m' names no checkpoint"),
    ],
)
def test_failures_are_one_line_and_status_two(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert "\x1b" not in err


def test_a_failure_with_json_is_an_error_object(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cut / "model.safetensors").write_bytes(b"\x90" + bytes(7) + b"{")
    assert main(["show", str(cut), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "schema": "kimi-inspect/error/1",
        "type": "TruncatedError",
        "message": document["message"],
        "file": "model.safetensors",
        "offset": 9,
        "expected": "a file of at least 152 bytes",
        "actual": "9 bytes",
        "retryable": False,
    }


def test_bad_usage_with_json_is_an_error_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["type"] == "InvalidSourceError"


def test_interrupted(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kimi_inspect.opening.locate", interrupt)
    assert main(["show", str(model)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_names_are_printed_safely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, model=hollow_safetensors([TensorSpec("\x1b[31m[bold]evil\r\u202e", "BF16", (64,))]))
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert not {"\x1b", "\r", "\u202e"} & set(out)


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kimi_inspect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_python_m_is_the_same_command(model: Path) -> None:
    done = run("show", str(model), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["parameters"] == 64


def test_a_reader_that_goes_away_is_no_error(model: Path) -> None:
    command = f"{sys.executable} -m kimi_inspect show {model} --json | head -c 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{", "")


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = command.replace("kimi-inspect", f"{sys.executable} -m kimi_inspect")
    environment = {**os.environ, **variables}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize("form", ["", "--by layer", "--json"])
def test_a_reader_that_has_seen_enough_is_no_finding(form: str) -> None:
    done = shell(f"kimi-inspect demo show {form} | head -n 1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("redirect", "words"), [("> /dev/full", "cannot write"), (">&-", "standard output is closed")])
@pytest.mark.parametrize("form", ["", "--json"])
def test_a_result_that_cannot_be_written_is_one_line(model: Path, form: str, redirect: str, words: str) -> None:
    done = shell(f"kimi-inspect show {model} {form} {redirect}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_names_that_the_terminal_cannot_spell_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "mod\u00e8le"
    folder.mkdir()
    write(folder, model=hollow_safetensors([NORM]))
    done = shell(f"kimi-inspect show {folder}", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mod\\xe8le" in done.stdout


@pytest.mark.parametrize(
    "variables", [{"ALL_PROXY": "socks5://x:1"}, {"HTTPS_PROXY": "garbage://["}, {"SSL_CERT_FILE": "/nowhere"}]
)
def test_settings_that_no_client_can_be_made_of_are_one_line(variables: dict[str, str]) -> None:
    done = shell("kimi-inspect show owner/name", **variables)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "check the proxy and certificate settings" in done.stderr


def test_the_demo_takes_options_without_a_verb(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["parameters"] == 2_780_110_363_392


def test_help_lists_the_verbs() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("ls", "show", "demo"))
    assert run("--version").stdout.strip() == f"kimi-inspect {ki.__version__}"


def test_the_demo_shows_equal_figures_even_offline() -> None:
    done = run("demo", env={"HF_HUB_OFFLINE": "1", "HTTP_PROXY": "http://127.0.0.1:9", "PATH": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 7
    assert "differs" not in done.stdout


def test_a_folder_by_the_name_of_a_repository_is_pointed_at(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two parts of a path are a name on the Hub, whatever stands here."""
    monkeypatch.chdir(model.parent.parent)
    named = "/".join(model.parts[-2:])
    with LoopbackHub([]) as hub:
        assert main(["show", named, "--endpoint", hub.endpoint]) == 2
        assert f"a folder of that name is here: write ./{named} for it" in capsys.readouterr().err
        assert main(["show", "acme/none", "--endpoint", hub.endpoint]) == 2
        assert "is here" not in capsys.readouterr().err
