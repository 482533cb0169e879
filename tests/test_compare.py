"""Checkpoints side by side: each row says what `inspect` says, and one that cannot be read stops no other."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import LOOKS, REPO, TOKEN

import kimi_inspect as ki
from kimi_inspect import Checkpoint, Component, ComponentSize, Group
from kimi_inspect.testing import (
    GgufTensor,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    danielhanchen_gguf,
    devquasar_gguf,
    hollow_from_header,
    hollow_gguf,
    hollow_safetensors,
    kimi_2bit,
    kimi_gguf,
    kimi_k31_pro,
    kimi_mlx,
    kimi_mmproj,
    kimi_nf12,
    kimi_reap,
)

Files = Mapping[str, HollowFile]

NORM = TensorSpec("model.norm.weight", "BF16", (64,))
SMALL: dict[str, int] = {"layers": 4, "experts": 4}
SMALL_GGUF: dict[str, int] = {**SMALL, "tokens": 50, "parts": 2}

BUILDS: dict[str, Callable[[], Files]] = {
    "official": lambda: kimi_k31_pro(**SMALL),
    "gguf": lambda: kimi_gguf("MXFP4_MOE", **SMALL_GGUF),
    "gguf with a label": lambda: kimi_gguf("UD-Q8_K_XL", **SMALL_GGUF),
    "mlx": lambda: kimi_mlx(**SMALL),
    "2 bits": lambda: kimi_2bit(**SMALL),
    "reap": lambda: kimi_reap(4, layers=4, expert_counts=[4, 3, 4]),
    "unknown packing": lambda: kimi_nf12(**SMALL),
    "one tensor": lambda: {"model.safetensors": hollow_safetensors([NORM])},
}
ERROR_KEYS = {"type", "message", "file", "offset", "expected", "actual", "retryable"}
CONTRACT_KEYS = {
    *("source", "commit", "format", "family", "shard_count", "file_bytes", "parameters"),
    *("components", "experts", "error"),
}
GOOD: Files = {"model.safetensors": hollow_safetensors([NORM])}
OVERLAP = hollow_from_header(
    b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}', 6
)


def write(folder: Path, files: Files) -> Path:
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        file.write_to(folder / path)
    return folder


def row_of(*sources: Any, **options: Any) -> ki.ComparisonRow:
    (row,) = ki.compare(*sources, **options).rows
    return row


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_row_says_what_the_report_says(build: Callable[[], Files]) -> None:
    files = build()
    row, report = row_of(files), ki.inspect(files)
    for name in ("source", "commit", "format", "family", "set_name", "shard_count", "file_bytes", "tensor_bytes"):
        assert getattr(row, name) == getattr(report, name)
    for name in ("parameters", "known_parameters", "experts", "complete"):
        assert getattr(row, name) == getattr(report, name)
    assert list(row.components) == [part.component for part in report.components]
    for part in report.components:
        size = row[part.component]
        assert (size.stored_bytes, size.parameters) == (part.stored_bytes, part.parameters)
        assert size.bits_per_weight == part.bits_per_weight
        assert size.encodings == tuple(each.encoding for each in part.encodings)
    for severity in ki.Severity:
        assert row.finding_counts[severity] == sum(item.severity is severity for item in report.findings)
    assert row.error is None
    assert row.name == report.source == "<mapping>"


def test_rows_stand_in_the_order_of_the_sources() -> None:
    files = [kimi_k31_pro(layers=layers, experts=1) for layers in (2, 1, 3)]
    sizes = [row.file_bytes for row in ki.compare(*files).rows]
    assert sizes == [ki.inspect(each).file_bytes for each in files]
    assert ki.compare().rows == ()


def test_the_published_sizes() -> None:
    table = ki.compare(kimi_k31_pro(), kimi_gguf("MXFP4_MOE"), kimi_reap(4))
    official, gguf, pruned = table.rows
    assert (official.shard_count, official.file_bytes) == (96, 1_561_293_160_568)
    assert official.parameters == 2_780_110_363_392
    assert (gguf.shard_count, gguf.file_bytes) == (33, 1_508_897_280_480)
    assert pruned.file_bytes == pytest.approx(321_897_117_664, rel=1e-3)
    assert [row.experts.per_layer_min if row.experts else None for row in table.rows] == [896, 896, 179]
    assert {row.of_group(Group.EXPERTS).bits_per_weight for row in table.rows} == {4.25}
    assert official.bits_per_weight == pytest.approx(4.4926, abs=1e-4)


def test_a_group_is_the_sum_of_its_components() -> None:
    files = kimi_k31_pro(**SMALL)
    row, report = row_of(files), ki.inspect(files)
    for group in Group:
        parts = [part for part in report.components if part.group is group]
        size = row.of_group(group)
        assert size.stored_bytes == sum(part.stored_bytes for part in parts)
        assert size.parameters == sum(part.parameters or 0 for part in parts)
    assert row.of_group(Group.ATTENTION).encodings == ("bf16", "f32")
    absent = row[Component.AUDIO_TOWER]
    assert (absent.stored_bytes, absent.parameters, absent.bits_per_weight) == (0, 0, None)


def test_an_open_checkpoint_is_taken_as_it_is(kimi: Files, tmp_path: Path) -> None:
    folder = write(tmp_path, kimi)
    checkpoint = ki.open_checkpoint(folder)
    for path in folder.iterdir():
        path.unlink()
    row = row_of(checkpoint, endpoint="http://127.0.0.1:9")
    assert (row.source, row.error) == (str(folder), None)
    assert row.components == row_of(kimi).components


def test_a_shard_that_cannot_be_read_is_a_finding_of_the_row(kimi: Files) -> None:
    row = row_of({**kimi, "model-00003-of-000008.safetensors": HollowFile(b"<!doctype html><html></html>")})
    assert (row.error, row.complete) == (None, False)
    assert row.finding_counts["error"] == 1


# What cannot be read


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("nonsense", "InvalidSourceError"),
        ("./nowhere", "SourceFileNotFoundError"),
        ({"model.safetensors": OVERLAP}, "MalformedHeaderError"),
        ({"README.md": HollowFile(b"none")}, "NoCheckpointError"),
        ({"model.safetensors": HollowFile(b"<!doctype html><html></html>")}, "NotWeightsError"),
    ],
)
def test_one_that_cannot_be_read_is_a_row_with_its_error(source: Any, kind: str) -> None:
    before, bad, after = ki.compare(GOOD, source, GOOD).rows
    assert before == after == row_of(GOOD)
    assert bad.error is not None
    assert set(bad.error) == ERROR_KEYS
    assert bad.error["type"] == kind
    assert bad.source == bad.name == (source if isinstance(source, str) else "<mapping>")
    assert (bad.commit, bad.format, bad.file_bytes, bad.parameters, bad.components) == (None, None, None, None, {})
    assert (bad.experts, bad.vision, bad.complete, bad.bits_per_weight) == (None, None, None, None)
    with pytest.raises(ki.KimiInspectError) as raised:
        ki.inspect(source)
    assert type(raised.value).__name__ == kind
    assert raised.value.problem == bad.error["message"]
    json.dumps(bad.to_dict())


def test_a_repository_that_is_not_there(hub: LoopbackHub) -> None:
    missing, there = ki.compare("moonshotai/Kimi-K9", REPO, endpoint=hub.endpoint, token=TOKEN).rows
    assert missing.error is not None
    assert missing.error["type"] == "RepositoryNotFoundError"
    assert there == row_of(ki.open_checkpoint(REPO, endpoint=hub.endpoint))
    assert there.commit is not None


def test_secrets_in_an_address_are_not_repeated(hub: LoopbackHub) -> None:
    place = hub.endpoint.removeprefix("http://")
    row = row_of(f"http://me:secret@{place}/x.safetensors?signature=secret")
    assert row.error is not None
    assert "secret" not in json.dumps(row.to_dict())
    assert row.source == f"http://{place}/x.safetensors"


@pytest.mark.parametrize("source", [5, None, object()])
def test_what_is_no_source_at_all_is_an_exception_before_anything_is_read(source: Any) -> None:
    def refuse(_: ki.Progress) -> None:
        raise AssertionError("something was read")

    with pytest.raises(ki.InvalidSourceError):
        ki.compare(GOOD, source, progress=refuse)


def test_what_progress_raises_cancels() -> None:
    told: list[ki.Progress] = []

    def watch(progress: ki.Progress) -> None:
        told.append(progress)
        if progress.unit == "checkpoints" and progress.done == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        ki.compare(GOOD, GOOD, GOOD, progress=watch)
    assert [(item.phase, item.done, item.total) for item in told if item.unit == "checkpoints"] == [
        ("comparing", 0, 3),
        ("comparing", 1, 3),
    ]
    assert "headers" in {item.phase for item in told}


# Several checkpoints in one place


def test_a_repository_of_several_sets_is_a_row_for_each() -> None:
    files = danielhanchen_gguf(**SMALL_GGUF)
    with LoopbackHub([Repository(REPO, files), Repository("x/y", GOOD)]) as hub:
        many, one = ki.compare(REPO, endpoint=hub.endpoint), ki.compare("x/y", endpoint=hub.endpoint)
        looks = [served for served in hub.log if "/api/models/moonshotai" in served.target]
        assert len(looks) == LOOKS
        for row in many.rows:
            report = ki.inspect(row.name, endpoint=hub.endpoint)
            assert (row.file_bytes, row.parameters, row.commit) == (
                report.file_bytes,
                report.parameters,
                report.commit,
            )
    assert [row.name for row in many.rows] == [f"{REPO}:UD-Q4_K_XL", f"{REPO}:UD-Q8_K_XL"]
    assert [row.set_name for row in many.rows] == ["UD-Q4_K_XL", "UD-Q8_K_XL"]
    assert {row.source for row in many.rows} == {REPO}
    assert [row.name for row in one.rows] == ["x/y"]


@pytest.mark.parametrize("form", ["{repo}@main", "hf://{repo}", "{endpoint}/{repo}", "{endpoint}/{repo}/tree/main"])
def test_every_form_of_a_repository_is_parted_into_its_sets(form: str) -> None:
    with LoopbackHub([Repository(REPO, danielhanchen_gguf(**SMALL_GGUF))]) as hub:
        rows = ki.compare(form.format(repo=REPO, endpoint=hub.endpoint), endpoint=hub.endpoint).rows
    assert [(row.set_name, row.error) for row in rows] == [("UD-Q4_K_XL", None), ("UD-Q8_K_XL", None)]


@pytest.mark.parametrize("form", [".", "./", "{folder}", "{folder}/"])
def test_a_folder_of_several_sets_is_a_row_for_each(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, devquasar_gguf(**SMALL_GGUF))
    monkeypatch.chdir(tmp_path)
    source = form.format(folder=tmp_path)
    for each in (source, Path(source)):
        rows = ki.compare(GOOD, each, GOOD).rows
        assert [(row.set_name, row.error) for row in rows] == [
            ("model", None),
            ("MXFP4_MOE", None),
            ("Q2_K", None),
            ("model", None),
        ]


def test_a_set_that_cannot_be_read_stops_no_other() -> None:
    def text(data: bytes = b"") -> HollowFile:
        good = hollow_gguf([GgufTensor("output_norm.weight", "F32", (8,))], {"general.architecture": "llama"})
        return HollowFile(data) if data else good

    files = {"x-Q4_K_M.gguf": text(), "x-Q5_K_M.gguf": text(b"GGUF"), "x-Q8_0.gguf": text()}
    rows = ki.compare(files).rows
    assert [(row.name, row.set_name) for row in rows] == [
        (f"<mapping>:{name}", name) for name in ("Q4_K_M", "Q5_K_M", "Q8_0")
    ]
    assert [row.error and row.error["type"] for row in rows] == [None, "TruncatedError", None]


def test_a_set_that_is_named_or_a_file_is_one_row(tmp_path: Path) -> None:
    folder = write(tmp_path, devquasar_gguf(**SMALL_GGUF))
    assert row_of(f"{folder}:Q2_K").name == f"{folder}:Q2_K"
    path = next(path for path in sorted(folder.iterdir()) if "Q2_K" in path.name)
    assert row_of(path).name == row_of(path).source == str(path)
    assert row_of(folder, files="*Q2_K*").set_name == "Q2_K"


def test_the_default_set_is_one_row_and_is_called_by_its_name_where_there_are_others() -> None:
    row = row_of({**GOOD, "other.safetensors": GOOD["model.safetensors"]})
    assert row.name == "<mapping>:model"


# Side files


def test_a_side_file_is_told_and_counted_only_on_request() -> None:
    files = {**kimi_gguf("MXFP4_MOE", **SMALL_GGUF), "mmproj-BF16.gguf": kimi_mmproj("BF16")}
    plain, counted = row_of(files), row_of(files, companions=True)
    assert plain.vision == counted.vision == "side file"
    assert counted.file_bytes == (plain.file_bytes or 0) + files["mmproj-BF16.gguf"].size
    assert Component.VISION_TOWER in counted.components
    assert Component.VISION_TOWER not in plain.components
    assert row_of(kimi_gguf("MXFP4_MOE", **SMALL_GGUF)).vision is None
    assert row_of(kimi_k31_pro(**SMALL)).vision == "inside"


def test_a_draft_head_is_told() -> None:
    draft = [TensorSpec("model.layers.1.eh_proj.weight", "BF16", (4, 8)), NORM]
    assert row_of({"model.safetensors": hollow_safetensors([NORM])}).draft is None
    beside = {"model.safetensors": hollow_safetensors([NORM]), "mtp.safetensors": hollow_safetensors(draft[:1])}
    assert row_of(beside).draft == "side file"
    assert row_of({"model.safetensors": hollow_safetensors([TensorSpec("mtp.fc.weight", "BF16", (8,))])}).draft == (
        "inside"
    )


# Memory


def test_one_checkpoint_at_a_time_is_held() -> None:
    def held() -> set[int]:
        gc.collect()
        return {id(item) for item in gc.get_objects() if type(item) is Checkpoint}

    before, most = held(), 0

    def watch(progress: ki.Progress) -> None:
        nonlocal most
        if progress.unit == "checkpoints":
            most = max(most, len(held() - before))

    ki.compare(GOOD, {"model.safetensors": OVERLAP}, devquasar_gguf(**SMALL_GGUF), GOOD, GOOD, progress=watch)
    assert most == 0


# JSON


@pytest.fixture(scope="module")
def table() -> ki.Comparison:
    return ki.compare(kimi_k31_pro(**SMALL), "nonsense", kimi_nf12(**SMALL), devquasar_gguf(**SMALL_GGUF), GOOD)


def test_json_and_back(table: ki.Comparison) -> None:
    assert ki.Comparison.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    assert pickle.loads(pickle.dumps(table)) == table  # noqa: S301
    assert hash(table) == hash(ki.Comparison.from_dict(table.to_dict()))


def test_the_keys_of_the_json_form(table: ki.Comparison) -> None:
    document = table.to_dict()
    assert set(document) == {"schema", "rows"}
    assert document["schema"] == "kimi-inspect/compare/1"
    more = {"name", "set_name", "complete", "tensor_bytes", "known_parameters", "vision", "draft", "finding_counts"}
    for row in document["rows"]:
        assert set(row) == CONTRACT_KEYS | more
    official, unread = document["rows"][:2]
    assert set(official["experts"]) == {"layers", "per_layer_min", "per_layer_max", "declared"}
    experts = official["components"]["routed_experts"]
    assert set(experts) == {"stored_bytes", "parameters", "bits_per_weight", "encodings"}
    assert (experts["bits_per_weight"], experts["encodings"]) == (4.25, ["mxfp4"])
    assert set(official["finding_counts"]) == {"error", "warning", "info"}
    assert set(unread["error"]) == ERROR_KEYS


def test_a_reader_passes_over_what_it_does_not_know(table: ki.Comparison) -> None:
    document = json.loads(json.dumps(table.to_dict()))
    document["new"] = 1
    for row in document["rows"]:
        row["new"] = 1
        for size in row["components"].values():
            size["new"] = 1
    document["rows"][0]["experts"]["new"] = 1
    assert ki.Comparison.from_dict(document) == table


def test_a_component_of_a_newer_version_is_kept_and_in_no_group(table: ki.Comparison) -> None:
    document = table.to_dict()
    document["rows"][0]["components"]["quantum_attention"] = {"stored_bytes": 8, "parameters": 4}
    row = ki.Comparison.from_dict(document).rows[0]
    assert row["quantum_attention"] == ComponentSize(stored_bytes=8, parameters=4)
    assert [row.of_group(group) for group in Group] == [table.rows[0].of_group(group) for group in Group]


def test_the_keys_of_the_contract_are_enough(table: ki.Comparison) -> None:
    document = table.to_dict()
    rows = [{key: value for key, value in row.items() if key in CONTRACT_KEYS} for row in document["rows"]]
    read = ki.Comparison.from_dict({**document, "rows": rows})
    assert [row.file_bytes for row in read.rows] == [row.file_bytes for row in table.rows]
    assert [row.components for row in read.rows] == [row.components for row in table.rows]
    assert [row.name for row in read.rows] == [row.source for row in table.rows]


@pytest.mark.parametrize("schema", ["kimi-inspect/compare/2", "kimi-inspect/report/1", None])
def test_another_schema_is_refused(table: ki.Comparison, schema: str | None) -> None:
    with pytest.raises(ValueError, match="kimi-inspect/compare/1"):
        ki.Comparison.from_dict({**table.to_dict(), "schema": schema})
