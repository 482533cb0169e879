"""The report and its JSON form."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

import kimi_inspect as ki
from kimi_inspect.report import bits_per_weight
from kimi_inspect.testing import HollowFile, TensorSpec, hollow_from_header, hollow_safetensors

BF16 = TensorSpec("model.norm.weight", "BF16", (64,))
UNKNOWN = TensorSpec("model.layers.0.block_sparse_moe.experts.0.w1.weight_packed", "U8", (4, 4))


def inspect(*shards: list[TensorSpec]) -> ki.Report:
    return ki.inspect(
        {f"model-{n:05d}-of-{len(shards):05d}.safetensors": hollow_safetensors(s) for n, s in enumerate(shards, 1)}
    )


@pytest.fixture(scope="module")
def report(kimi: dict[str, HollowFile]) -> ki.Report:
    return ki.inspect(kimi)


def test_json_and_back(report: ki.Report) -> None:
    document = json.loads(json.dumps(report.to_dict()))
    assert ki.Report.from_dict(document) == report
    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301


def test_the_keys_of_the_json_form(report: ki.Report) -> None:
    document = report.to_dict(by=())
    assert document["schema"] == "kimi-inspect/report/1"
    assert {"layers", "files", "encodings"}.isdisjoint(document)
    assert set(document) == {
        *("schema", "source", "commit", "format", "architecture", "family", "set_name", "shard_count", "complete"),
        *("file_bytes", "header_bytes", "tensor_bytes", "padding_bytes", "missing_bytes", "unread_bytes"),
        *("tensor_count", "parameters", "known_parameters", "unknown_tensors"),
        *("components", "experts", "companions", "other_sets", "findings", "traffic"),
    }
    component = document["components"][0]
    assert set(component) == {"component", "group", "tensor_count", "stored_bytes", "parameters", "encodings"}
    assert set(component["encodings"][0]) == {"encoding", "tensor_count", "stored_bytes", "scale_bytes", "parameters"}
    assert set(document["experts"]) == {"layers", "per_layer_min", "per_layer_max", "declared"}


@pytest.mark.parametrize(("by", "key"), [("layer", "layers"), ("file", "files"), ("encoding", "encodings")])
def test_a_table_that_is_asked_for_is_added(report: ki.Report, by: str, key: str) -> None:
    document = report.to_dict(by=[by])
    assert {"layers", "files", "encodings"} & set(document) == {key}
    sizes = {"layer": "stored_bytes", "file": "tensor_bytes", "encoding": "stored_bytes"}
    assert sum(row[sizes[by]] for row in document[key]) == report.tensor_bytes


def test_a_reader_passes_over_what_it_does_not_know(report: ki.Report) -> None:
    document: dict[str, Any] = json.loads(json.dumps(report.to_dict()))
    document["new"] = 1
    document["components"][0]["new"] = 1
    document["components"][0]["encodings"][0]["new"] = 1
    document["experts"]["new"] = 1
    document["files"][0]["new"] = 1
    assert ki.Report.from_dict(document) == report


def test_values_of_a_newer_version_become_the_nearest_known(report: ki.Report) -> None:
    document: dict[str, Any] = json.loads(json.dumps(report.to_dict()))
    document["components"][0]["component"] = "quantum_attention"
    document["findings"] = [{"code": "new", "severity": "fatal", "where": "there", "message": "so", "count": 1}]
    read = ki.Report.from_dict(document)
    assert read.components[0].component is ki.Component.OTHER
    assert read.findings[0].severity is ki.Severity.WARNING


@pytest.mark.parametrize("schema", ["kimi-inspect/report/2", None])
def test_another_schema_is_refused(report: ki.Report, schema: str | None) -> None:
    with pytest.raises(ValueError, match="kimi-inspect/report/1"):
        ki.Report.from_dict({**report.to_dict(), "schema": schema})


@pytest.mark.parametrize("document", [None, [], 5, {}])
def test_what_is_no_report(document: Any) -> None:
    with pytest.raises(ki.InvalidSourceError, match="no report"):
        ki.Report.from_dict(document)


@pytest.mark.parametrize(
    ("key", "value"), [("components", None), ("file_bytes", "7"), ("companions", 5), ("files", [7])]
)
def test_a_report_that_is_damaged(report: ki.Report, key: str, value: object) -> None:
    document = report.to_dict()
    with pytest.raises(ki.InvalidSourceError, match="in another form"):
        ki.Report.from_dict({**document, key: value})


def test_a_table_that_was_not_written_is_not_read_as_an_empty_one(report: ki.Report) -> None:
    read = ki.Report.from_dict(report.to_dict(by=["file"]))
    assert read.by_file() == report.by_file()
    assert read.by_encoding() == report.by_encoding()
    with pytest.raises(ki.InvalidSourceError, match="no table by layer"):
        read.by_layer()
    assert read != report
    assert ki.Report.from_dict(read.to_dict()) == read


def test_an_absent_component_is_a_row_of_zeros(report: ki.Report) -> None:
    row = report[ki.Component.AUDIO_TOWER]
    assert (row.tensor_count, row.stored_bytes, row.parameters, row.encodings) == (0, 0, 0, ())
    assert row.bits_per_weight is None
    assert row.group is ki.Group.MULTIMODAL


def test_traffic_is_left_out_of_comparison(report: ki.Report) -> None:
    other = ki.Report.from_dict({**report.to_dict(), "traffic": {"requests": 7, "bytes_read": 9}})
    assert other.traffic.requests == 7
    assert other == report
    assert ki.Report.from_dict({**report.to_dict(), "file_bytes": report.file_bytes + 1}) != report


def test_unknown_parameters_make_the_sums_unknown_and_leave_the_rest() -> None:
    report = inspect([BF16, UNKNOWN])
    assert (report.parameters, report.known_parameters, report.unknown_tensors) == (None, 64, 1)
    assert report[ki.Component.ROUTED_EXPERTS].parameters is None
    assert report[ki.Component.NORMS].parameters == 64
    assert [row.parameters for row in report.by_layer()] == [64, None]
    assert ki.Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_a_tensor_in_two_shards_counts_its_bytes_twice_and_its_parameters_once() -> None:
    report = inspect([BF16], [BF16, TensorSpec("lm_head.weight", "BF16", (3,))])
    assert (report.tensor_count, report.tensor_bytes, report.parameters) == (3, 128 + 128 + 6, 64 + 3)
    found = next(item for item in report.findings if item.code == "duplicate-tensor")
    assert (found.severity, found.tensor, found.count) == (ki.Severity.ERROR, BF16.name, 1)
    assert found.file == "model-00002-of-00002.safetensors"


def test_different_names_in_two_shards_are_no_duplicates() -> None:
    report = inspect([BF16], [TensorSpec("lm_head.weight", "BF16", (3,))])
    assert "duplicate-tensor" not in {item.code for item in report.findings}


@pytest.mark.parametrize(("other", "found"), [(0, False), (1, False), (2, True)])
def test_unclassified_bytes_are_told_beyond_a_thousandth(other: int, found: bool) -> None:
    tensors = [TensorSpec("lm_head.weight", "U8", (1000 - other,)), TensorSpec("mystery", "U8", (other,))]
    codes = [item.code for item in inspect(tensors).findings]
    assert codes == (["unclassified"] if found else [])


def test_the_census_counts_distinct_experts_a_layer() -> None:
    names = [(1, 0, "w1"), (1, 0, "w2"), (1, 7, "w1"), (3, 2, "w1")]
    tensors = [
        TensorSpec(f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}.weight", "BF16", (2,))
        for layer, expert, matrix in names
    ]
    assert inspect(tensors).experts == ki.ExpertCensus(layers=2, per_layer_min=1, per_layer_max=2, declared=None)
    assert inspect([BF16]).experts is None


@pytest.mark.parametrize(("nbytes", "parameters", "bits"), [(17, 32, 4.25), (0, 0, None), (5, None, None), (0, 4, 0.0)])
def test_bits_per_weight(nbytes: int, parameters: int | None, bits: float | None) -> None:
    assert bits_per_weight(nbytes, parameters) == bits


def test_an_empty_checkpoint() -> None:
    report = inspect([])
    assert (report.tensor_count, report.parameters, report.components, report.by_layer()) == (0, 0, (), ())
    assert report.file_bytes == report.header_bytes


LOOK_UP = """
import pickle, sys
checkpoint = pickle.load(sys.stdin.buffer)
print(all(name in checkpoint.tensors for name in checkpoint.tensors.name), len(checkpoint.tensors))
"""


def test_a_pickled_checkpoint_finds_its_tensors_in_another_process(kimi: dict[str, HollowFile]) -> None:
    checkpoint = ki.open_checkpoint(kimi)
    assert "language_model.lm_head.weight" in checkpoint.tensors
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP], input=pickle.dumps(checkpoint), stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.decode().split() == ["True", str(len(checkpoint.tensors))]


@pytest.mark.parametrize(("count", "findings"), [(0, 0), (1, 1), (10, 10), (11, 11), (500, 11)])
def test_unknown_types_are_told_one_by_one_up_to_ten(count: int, findings: int) -> None:
    entries = (f'"t{n}":{{"dtype":"X{n}","shape":[1],"data_offsets":[{n},{n + 1}]}}' for n in range(count))
    file = hollow_from_header(f"{{{','.join(entries)}}}".encode(), count)
    found = [item for item in ki.inspect({"model.safetensors": file}).findings if item.code == "unknown-type"]
    assert len(found) == findings
    assert sum(item.count for item in found) == count
