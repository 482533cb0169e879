from __future__ import annotations

import json
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from testing.raw_client import ask

from kimi_inspect import testing
from kimi_inspect.testing import BUILDS
from kimi_inspect.testing.__main__ import main


def test_a_process_of_its_own_serves_until_its_input_ends() -> None:
    command = [sys.executable, "-m", "kimi_inspect.testing", "--model", "kimi-k3.1-pro"]
    root = Path(testing.__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        line = json.loads(process.stdout.readline())
        assert line["repositories"] == [testing.KIMI_K31_PRO_ID]
        api = f"{line['endpoint']}/api/models/{testing.KIMI_K31_PRO_ID}"
        assert ask(api).json["sha"] == testing.KIMI_K31_PRO_COMMIT
        listing = ask(f"{api}/tree/main?recursive=true").json
        shards = [entry for entry in listing if entry["path"].endswith(".safetensors")]
        assert (len(shards), sum(entry["size"] for entry in shards)) == (96, 1_561_293_160_568)
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_all_models(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO()))
    assert main(["--model", "all", "--latency", "0.5"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["repositories"] == [
        "moonshotai/Kimi-K3.1-Pro",
        "moonshotai/Kimi-K3",
        "DevQuasar/moonshotai.Kimi-K3.1-Pro-GGUF",
        "danielhanchen/Kimi-K3.1-Pro-GGUF-Preliminary",
        *BUILDS,
        "KarLexAI/Kimi-K3.1-Pro-GGUF",
        "midagedev/Kimi-K3.1-Pro-GGUF",
    ]
    assert line["endpoint"] != line["cdn_origin"]


def test_bad_usage() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--model", "gpt2"])
    assert caught.value.code == 2
