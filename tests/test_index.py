"""The index of a sharded checkpoint held against the headers of its shards: on disk always, remotely on request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import CONFIG as SMALL
from contracts.checks import REPO, usual_requests

from kimi_inspect import Checkpoint, Finding, Role, Severity, UnsafePathError, open_checkpoint
from kimi_inspect.cli import main
from kimi_inspect.testing import (
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    faults,
    hollow_safetensors,
    packed_model,
)

Files = dict[str, HollowFile]
Entries = list[tuple[bytes, bytes]]

INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


# ---- against the headers


def shard(*tensors: str) -> HollowFile:
    return hollow_safetensors([TensorSpec(name, "BF16", (8, 8)) for name in tensors])


def index(entries: Mapping[str, str] | Iterable[tuple[str, str]], total: Any = None, path: str = INDEX) -> Files:
    listed = dict(entries)
    metadata = {} if total is None else {"metadata": {"total_size": total}}
    return {path: HollowFile(json.dumps({**metadata, "weight_map": listed}).encode())}


PLACES = {
    "model.embed_tokens.weight": SHARDS[0],
    "model.layers.0.self_attn.q_proj.weight": SHARDS[0],
    "lm_head.weight": SHARDS[1],
}
WHOLE: Files = {path: shard(*(name for name, place in PLACES.items() if place == path)) for path in SHARDS}
HEAD = "lm_head.weight"
TOTAL = 3 * 128


def brief(item: Finding) -> tuple[Any, ...]:
    return (item.code, item.file, item.tensor, item.count)


def told(files: Files) -> list[tuple[Any, ...]]:
    return [brief(item) for item in open_checkpoint(files).findings]


@pytest.mark.parametrize("total", [None, TOTAL, float(TOTAL), "384", True])
def test_an_index_that_is_right(total: Any) -> None:
    assert told({**WHOLE, **index(PLACES, total)}) == []
    assert told(WHOLE) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"mtp.fc.weight": SHARDS[1]}, ("index-tensor-absent", SHARDS[1], "mtp.fc.weight", 1)),
        ({f"mtp.{n}": SHARDS[1] for n in range(20)}, ("index-tensor-absent", SHARDS[1], "mtp.0", 20)),
        ({HEAD: SHARDS[0]}, ("index-stale", SHARDS[0], HEAD, 1)),
        ({"mtp.fc.weight": "other.safetensors"}, ("index-stale", "other.safetensors", "mtp.fc.weight", 1)),
        ({HEAD: None}, ("unindexed-tensors", None, HEAD, 1)),
    ],
)
def test_an_index_that_is_wrong(change: dict[str, str | None], expected: tuple[Any, ...]) -> None:
    entries = {name: place for name, place in {**PLACES, **change}.items() if place is not None}
    found = open_checkpoint({**WHOLE, **index(entries, TOTAL)})
    assert [brief(item) for item in found.findings] == [expected]
    (item,) = found.findings
    assert item.severity is (Severity.WARNING if item.code == "unindexed-tensors" else Severity.ERROR)
    assert len(item.examples) == min(item.count, 10)
    assert found.complete


def test_a_tensor_promised_in_a_file_that_is_not_there_and_stored_elsewhere_is_stale() -> None:
    found = told({**WHOLE, **index({**PLACES, HEAD: "model-00009-of-00009.safetensors"})})
    assert found == [("index-stale", "model-00009-of-00009.safetensors", HEAD, 1)]


@pytest.mark.parametrize("total", [0, TOTAL - 1, 10**18, 384.5, 1e300])
def test_a_total_that_is_wrong(total: float) -> None:
    (found,) = open_checkpoint({**WHOLE, **index(PLACES, total)}).findings
    assert (found.code, found.severity) == ("declared-total-wrong", Severity.WARNING)
    assert (found.expected, found.actual, found.file) == (total, TOTAL, INDEX)


ALONE = {"metadata": {"total_parameters": 192}, "weight_map": PLACES}


@pytest.mark.parametrize("parameters", [192, 191, 193, "192", None, True, 192.0])
def test_a_number_of_parameters_that_is_right_or_none(parameters: Any) -> None:
    said = {**ALONE, "metadata": {"total_parameters": parameters, "total_size": TOTAL}}
    assert told({**WHOLE, INDEX: HollowFile(json.dumps(said).encode())}) == []


@pytest.mark.parametrize("parameters", [0, 100, 384, 10**18, -1])
def test_a_number_of_parameters_that_is_wrong(parameters: int) -> None:
    said = {**ALONE, "metadata": {"total_parameters": parameters}}
    (found,) = open_checkpoint({**WHOLE, INDEX: HollowFile(json.dumps(said).encode())}).findings
    assert (found.code, found.expected, found.actual) == ("declared-total-wrong", parameters, 192)


@pytest.mark.parametrize("encoding", ["compressed-mxfp4", "compressed-int4-32", "bnb-nf4", "gptq-4", "mlx-affine4-64"])
@pytest.mark.parametrize("counted", ["values", "stored", "weights", "plain"])
def test_tools_count_the_parameters_of_packed_weights_in_several_ways(encoding: str, counted: str) -> None:
    model = packed_model(encoding, layers=3)
    files = dict(model.files)
    table = open_checkpoint(files).tensors
    weights = [item for item in table if item.role is Role.WEIGHT]
    number = {
        "values": model.parameters,
        "stored": sum(prod(item.stored_shape) for item in table),
        "weights": sum(prod(item.stored_shape) for item in weights),
        "plain": sum(prod(item.stored_shape) for item in weights if item.dtype in ("BF16", "F16")),
    }[counted]
    for parameters, codes in ((number, []), (model.parameters * 3, ["declared-total-wrong"])):
        said = json.loads(files[INDEX].read())
        said["metadata"]["total_parameters"] = parameters
        found = open_checkpoint({**files, INDEX: HollowFile(json.dumps(said).encode())}).findings
        assert [item.code for item in found] == codes


def test_of_a_packing_that_is_not_known_parameters_are_not_compared() -> None:
    odd = hollow_safetensors([TensorSpec("lm_head.weight", "U8", (8,)), TensorSpec("lm_head.codes", "F32", (4,))])
    files = {SHARDS[0]: WHOLE[SHARDS[0]], SHARDS[1]: odd}
    entries = {**PLACES, "lm_head.codes": SHARDS[1]}
    said = {"metadata": {"total_parameters": 7}, "weight_map": entries}
    found = open_checkpoint({**files, INDEX: HollowFile(json.dumps(said).encode())}).findings
    assert [item.code for item in found] == []


def test_a_total_without_the_tensors_that_are_not_indexed_is_no_second_finding() -> None:
    entries = {name: place for name, place in PLACES.items() if name != HEAD}
    assert [code for code, *_ in told({**WHOLE, **index(entries, TOTAL - 128)})] == ["unindexed-tensors"]
    found = [code for code, *_ in told({**WHOLE, **index(entries, TOTAL - 1)})]
    assert found == ["unindexed-tensors", "declared-total-wrong"]


def test_a_total_with_tensors_that_are_absent_is_no_second_finding() -> None:
    entries = {**PLACES, "mtp.fc.weight": SHARDS[1]}
    assert [code for code, *_ in told({**WHOLE, **index(entries, TOTAL + 128)})] == ["index-tensor-absent"]


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"<html>", b'{"weight_map": {"a": 1}}', b"\xff"])
def test_an_index_that_is_none(text: bytes) -> None:
    assert told({**WHOLE, INDEX: HollowFile(text)}) == [("index-unreadable", INDEX, None, 1)]


@pytest.mark.parametrize(
    "place",
    ["../x.safetensors", "/etc/x.safetensors", "a/../../x", "..", ".", "", "a//b", "a\\..\\x", "x\0y", "./x", "a/./b"],
)
def test_a_path_that_leaves_the_repository_is_refused_and_not_asked_for(place: str, tmp_path: Path) -> None:
    files = {**WHOLE, **index({**PLACES, "x": place})}
    with pytest.raises(UnsafePathError) as error:
        open_checkpoint(files)
    assert error.value.file == INDEX
    for path, file in files.items():
        file.write_to(tmp_path / path)
    with pytest.raises(UnsafePathError):
        open_checkpoint(tmp_path)
    with LoopbackHub([Repository(REPO, files)]) as hub:
        with pytest.raises(UnsafePathError):
            open_checkpoint(REPO, endpoint=hub.endpoint, check_index=True)
        asked = {one.target.partition("?")[0].rpartition("/")[2] for one in hub.log if "/resolve/" in one.target}
    assert asked <= files.keys()


def test_a_missing_shard_is_told_by_its_name_and_not_again_by_the_index() -> None:
    found = told({SHARDS[0]: WHOLE[SHARDS[0]], **index(PLACES, TOTAL)})
    assert found == [("shard-missing", SHARDS[1], None, 1)]


def test_an_index_beside_a_single_file_is_left_over() -> None:
    assert told({"model.safetensors": shard(*PLACES), **index({"a": "b.safetensors"}, 1)}) == []


def test_tensors_that_lie_in_two_shards_are_indexed_once() -> None:
    files = {SHARDS[0]: shard(*PLACES), SHARDS[1]: shard(HEAD), **index({**PLACES, HEAD: SHARDS[0]})}
    assert [code for code, *_ in told(files)] == ["duplicate-tensor"]


@pytest.mark.parametrize("path", ["model.fp16.safetensors.index.json", "model.safetensors.index.fp16.json"])
def test_variants_have_an_index_of_their_own(path: str) -> None:
    shards = [f"model-{number}-of-2.fp16.safetensors" for number in (1, 2)]
    files = {shards[0]: shard("a"), shards[1]: shard("b")}
    findings = [
        item.code for item in open_checkpoint({**files, **index({"a": shards[0], "b": shards[1]}, 256, path)}).findings
    ]
    assert "unclassified" in findings
    assert len(findings) == 1
    wrong = open_checkpoint({**files, **index({"a": shards[0], "b": shards[0]}, 256, path)})
    assert [item.code for item in wrong.findings if item.severity is Severity.ERROR] == ["index-stale"]


def test_each_folder_of_a_pipeline_has_its_index() -> None:
    folders = {folder: [f"{folder}/x-{number}-of-2.safetensors" for number in (1, 2)] for folder in ("unet", "vae")}
    files: Files = {"model_index.json": HollowFile(b"{}")}
    for folder, paths in folders.items():
        files |= {paths[0]: shard("a.weight"), paths[1]: shard("b.weight")}
        entries = {"a.weight": "x-1-of-2.safetensors", "b.weight": "x-2-of-2.safetensors"}
        files |= index(entries, 256, f"{folder}/x.safetensors.index.json")
    assert errors(open_checkpoint(files)) == []
    files |= index(
        {"a.weight": "x-1-of-2.safetensors", "c.weight": "x-2-of-2.safetensors"}, 256, "vae/x.safetensors.index.json"
    )
    assert errors(open_checkpoint(files)) == [
        ("index-tensor-absent", "vae/x-2-of-2.safetensors", "c.weight", 1),
        ("unindexed-tensors", None, "b.weight", 1),
    ]


def errors(checkpoint: Checkpoint) -> list[tuple[Any, ...]]:
    return [brief(item) for item in checkpoint.findings if item.severity is not Severity.INFO]


@pytest.mark.parametrize("present", [range(1, 4), range(3)])
def test_numbers_may_be_others_than_the_count_says_if_the_index_says_so(present: Iterable[int]) -> None:
    """MiniMax counts one more file than it has."""
    paths = [f"model-{number:05d}-of-00004.safetensors" for number in present]
    files: Files = {path: shard(f"model.layers.{number}.mlp.up_proj.weight") for number, path in enumerate(paths)}
    entries = {f"model.layers.{number}.mlp.up_proj.weight": path for number, path in enumerate(paths)}
    assert errors(open_checkpoint({**files, **index(entries, TOTAL)})) == []
    assert [code for code, *_ in errors(open_checkpoint(files))] == ["shard-missing"]


# ---- from where


def test_a_folder_is_checked_always(tmp_path: Path, kimi: Files) -> None:
    files = {**WHOLE, **index({**PLACES, HEAD: SHARDS[0]})}
    for path, file in files.items():
        file.write_to(tmp_path / path)
    assert [item.code for item in open_checkpoint(tmp_path).findings] == ["index-stale"]
    assert [item.code for item in open_checkpoint(kimi).findings] == []


def test_a_repository_is_checked_on_request(hub: LoopbackHub, kimi: Files) -> None:
    assert open_checkpoint(REPO, endpoint=hub.endpoint).findings == ()
    assert len(hub.log) == usual_requests(kimi)
    checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, check_index=True)
    assert checkpoint.findings == ()
    assert len(hub.log) == 2 * usual_requests(kimi) + SMALL
    assert checkpoint.traffic.requests == usual_requests(kimi) + SMALL


@pytest.mark.parametrize("check", [False, True])
def test_a_repository_with_a_wrong_index(capsys: pytest.CaptureFixture[str], *, check: bool) -> None:
    files = {**WHOLE, **index({**PLACES, "x": SHARDS[0]})}
    with LoopbackHub([Repository(REPO, files)]) as hub:
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, check_index=check)
        assert [item.code for item in checkpoint.findings] == ["index-tensor-absent"] * check
        flags = ["--check-index"] * check
        status = main(["show", REPO, "--endpoint", hub.endpoint, "--json", "--no-cache", *flags])
    assert status == int(check)
    report = json.loads(capsys.readouterr().out)
    assert [item["code"] for item in report["findings"]] == ["index-tensor-absent"] * check


def test_an_index_that_the_hub_does_not_give_is_told() -> None:
    files = {**WHOLE, **index(PLACES)}
    with LoopbackHub([Repository(REPO, files)]) as hub:
        hub.play(faults.refused("gated-anonymous"), path="index.json")
        found = open_checkpoint(REPO, endpoint=hub.endpoint, check_index=True).findings
    assert [item.code for item in found] == ["index-unreadable"]
