"""Audits of small stand-ins against the official model: verdicts, findings, and what they rest on."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import kimi_inspect as ki
from kimi_inspect import Component, Severity
from kimi_inspect.testing import (
    DANIELHANCHEN_GGUF_ID,
    DEVQUASAR_GGUF_ID,
    DPHN_ID,
    INFERENCERLABS_ID,
    KIMI_K3_ID,
    KIMI_K31_PRO_ID,
    PIPENETWORK_IDS,
    UNSLOTH_ID,
    VLLM_PROJECT_ID,
    HollowFile,
    LoopbackHub,
    LoopbackModelScope,
    Repository,
    damage,
    danielhanchen_gguf,
    devquasar_gguf,
    faults,
    kimi_2bit,
    kimi_k3,
    kimi_k31_pro,
    kimi_mlx,
    kimi_nf12,
    kimi_pruned,
    kimi_reap,
)

Files = dict[str, HollowFile]
SMALL: dict[str, int] = {"layers": 5, "experts": 8}
PARTS: dict[str, int] = {"tokens": 64, "parts": 4}
MXFP4_MOE, Q2_K = f"{DEVQUASAR_GGUF_ID}:MXFP4_MOE", f"{DEVQUASAR_GGUF_ID}:Q2_K"
RENAMED, SWAPPED, TWO_BIT = "someone/renamed", "someone/swapped", "someone/two-bit"


def renamed(files: Files) -> Files:
    return {path.replace("model-", "weights-"): file for path, file in files.items() if ".index." not in path}


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    official = kimi_k31_pro(**SMALL)
    shelves: dict[str, Files] = {
        KIMI_K31_PRO_ID: official,
        UNSLOTH_ID: kimi_k31_pro(**SMALL),
        RENAMED: renamed(official),
        SWAPPED: damage.swap_shard(official, 2, kimi_k3(**SMALL)),
        KIMI_K3_ID: kimi_k3(**SMALL),
        INFERENCERLABS_ID: kimi_mlx(**SMALL),
        TWO_BIT: kimi_2bit(**SMALL),
        PIPENETWORK_IDS[4]: kimi_reap(4, layers=5, experts=3),
        DPHN_ID: kimi_nf12(**SMALL),
        VLLM_PROJECT_ID: kimi_pruned(layers=5, experts=2),
        DEVQUASAR_GGUF_ID: devquasar_gguf(**SMALL, **PARTS),
        DANIELHANCHEN_GGUF_ID: danielhanchen_gguf(**SMALL, **PARTS),
    }
    with LoopbackHub([Repository(repo_id=name, files=files) for name, files in shelves.items()]) as hub:
        yield hub


@pytest.fixture
def here(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return {"endpoint": hub.endpoint, "token": False}


def codes(audit: ki.Audit, *, above_info: bool = True) -> list[str]:
    return [item.code for item in audit.findings if (item.severity is not Severity.INFO) is above_info]


def headers_read(hub: LoopbackHub, before: int) -> int:
    return sum(".safetensors" in one.target or ".gguf" in one.target for one in hub.log[before:])


@pytest.mark.parametrize(
    ("candidate", "companions", "verdict", "above_info"),
    [
        (KIMI_K31_PRO_ID, False, "identical", []),
        (UNSLOTH_ID, False, "identical", []),
        (RENAMED, False, "identical", []),
        (INFERENCERLABS_ID, False, "faithful", []),
        (TWO_BIT, False, "requantized", []),
        (PIPENETWORK_IDS[4], False, "reduced", ["label-disagrees", "experts-pruned"]),
        (VLLM_PROJECT_ID, False, "reduced", ["experts-pruned"]),
        (DPHN_ID, False, "requantized", ["unexpected-tensor"]),
        (KIMI_K3_ID, False, "different-model", ["architecture-mismatch", "component-missing"]),
        (SWAPPED, False, "different-model", []),
        (MXFP4_MOE, False, "reduced", ["component-missing"]),
        (MXFP4_MOE, True, "requantized", []),
        (Q2_K, True, "requantized", []),
        (f"{DANIELHANCHEN_GGUF_ID}:UD-Q4_K_XL", True, "requantized", ["label-disagrees"]),
    ],
)
def test_the_builds_against_the_official_model(
    candidate: str, companions: bool, verdict: str, above_info: list[str], here: dict[str, Any]
) -> None:
    audit = ki.audit(candidate, KIMI_K31_PRO_ID, companions=companions, **here)
    assert audit.verdict == verdict
    assert codes(audit) == above_info
    assert audit.against == KIMI_K31_PRO_ID


@pytest.mark.parametrize(
    "candidate", [KIMI_K31_PRO_ID, KIMI_K3_ID, INFERENCERLABS_ID, TWO_BIT, PIPENETWORK_IDS[4], MXFP4_MOE, Q2_K]
)
def test_each_alone_is_consistent_and_against_itself_the_same(candidate: str, here: dict[str, Any]) -> None:
    alone = ki.audit(candidate, companions=True, **here)
    assert (alone.verdict, codes(alone), alone.against, alone.identity) == ("consistent", [], None, None)
    opened = ki.open_checkpoint(candidate, **here)
    against_itself = ki.audit(opened, candidate, **here)
    assert (against_itself.verdict, codes(against_itself)) == ("identical", [])
    assert against_itself.report is not None
    assert not against_itself.requantizations
    kept = sum(item.stored_bytes for item in against_itself.kept)
    assert kept == against_itself.report.tensor_bytes


def test_equal_digests_decide_with_no_header_read(hub: LoopbackHub, here: dict[str, Any]) -> None:
    before = len(hub.log)
    audit = ki.audit(UNSLOTH_ID, KIMI_K31_PRO_ID, **here)
    assert audit.report is None
    assert audit.traffic.requests == len(hub.log) - before == 4
    assert headers_read(hub, before) == 0
    assert (audit.identical_shards, audit.shard_count) == (8, 8)
    assert audit.identity is not None
    assert (audit.identity.relation, audit.identity.renamed) == ("identical", ())


def test_renamed_files_are_the_same_files(here: dict[str, Any]) -> None:
    audit = ki.audit(RENAMED, KIMI_K31_PRO_ID, **here)
    assert audit.identity is not None
    assert len(audit.identity.renamed) == audit.identical_shards == 8
    assert ("weights-00003-of-000008.safetensors", "model-00003-of-000008.safetensors") in audit.identity.renamed


def test_renamed_files_under_the_old_index_do_not_load() -> None:
    files = damage.renumber(kimi_k31_pro(**SMALL), 2, 3)
    with LoopbackHub(
        [Repository(repo_id="a/b", files=files), Repository(repo_id="c/d", files=kimi_k31_pro(**SMALL))]
    ) as own:
        audit = ki.audit("a/b", "c/d", endpoint=own.endpoint, token=False)
    assert audit.verdict == "damaged"
    assert codes(audit) == ["index-stale"]


def test_a_swapped_layer_shows_by_its_digest_alone(here: dict[str, Any]) -> None:
    audit = ki.audit(SWAPPED, KIMI_K31_PRO_ID, **here)
    differing = next(item for item in audit.findings if item.code == "shard-differs")
    assert differing.file == "model-00002-of-000008.safetensors"
    assert "the same header" in differing.message
    assert (audit.identical_shards, audit.shard_count) == (7, 8)
    assert audit.identity is not None
    assert audit.identity.relation == "overlapping"
    assert not audit.requantizations


def test_a_part_of_the_files_is_a_subset(here: dict[str, Any]) -> None:
    audit = ki.audit(KIMI_K31_PRO_ID, KIMI_K31_PRO_ID, files="model-0000[12]-*", **here)
    assert audit.identity is not None
    assert (audit.identity.relation, len(audit.identity.missing)) == ("subset", 6)
    assert codes(audit) == []
    other_way = ki.audit(KIMI_K31_PRO_ID, ki.open_checkpoint(KIMI_K31_PRO_ID, files="model-0000[12]-*", **here), **here)
    assert other_way.identity is not None
    assert other_way.identity.relation == "superset"


def test_experts_keep_their_bytes_in_gguf_and_attention_does_not(here: dict[str, Any]) -> None:
    audit = ki.audit(MXFP4_MOE, KIMI_K31_PRO_ID, companions=True, **here)
    kept = {item.component: item for item in audit.kept}
    changed = {(item.component, item.after): item for item in audit.requantizations}
    experts = kept[Component.ROUTED_EXPERTS]
    assert (experts.encoding, experts.layers) == ("mxfp4", (1, 2, 3, 4))
    assert experts.stored_bytes == ki.inspect(KIMI_K31_PRO_ID, **here)[Component.ROUTED_EXPERTS].stored_bytes
    attention = changed[Component.KDA_ATTENTION, "q8_0"]
    assert (attention.before, attention.bits_before, attention.bits_after) == ("bf16", 16.0, 8.5)
    assert attention.layers == (0, 1, 2, 4)
    assert changed[Component.ROUTER, "f32"].lossless
    assert not attention.lossless


@pytest.mark.parametrize(("after", "bits"), [("q2_k", 8 * 84 / 256), ("q3_k", 8 * 110 / 256)])
def test_bits_of_requantized_experts_are_those_of_the_blocks(after: str, bits: float, here: dict[str, Any]) -> None:
    audit = ki.audit(Q2_K, KIMI_K31_PRO_ID, **here)
    experts = [item for item in audit.requantizations if item.component is Component.ROUTED_EXPERTS]
    found = next(item for item in experts if item.after == after)
    assert (found.before, found.bits_before, found.bits_after) == ("mxfp4", 4.25, bits)
    assert sum(item.parameters or 0 for item in experts) == 4 * 8 * 3 * 3072 * 3584


def test_what_is_packed_in_an_unknown_way_is_said_to_be(here: dict[str, Any]) -> None:
    audit = ki.audit(DPHN_ID, KIMI_K31_PRO_ID, **here)
    assert {item.after for item in audit.requantizations} == {"unknown:u8"}
    assert {item.bits_after for item in audit.requantizations} == {None}
    assert [item.encoding for item in audit.kept if item.component is Component.ROUTED_EXPERTS] == ["mxfp4"]


def test_pruning_says_how_many_of_how_many(here: dict[str, Any]) -> None:
    audit = ki.audit(PIPENETWORK_IDS[4], KIMI_K31_PRO_ID, **here)
    pruned = next(item for item in audit.findings if item.code == "experts-pruned")
    assert (pruned.expected, pruned.actual, pruned.count) == (8, 3, 4)
    assert pruned.examples[0] == "layer 1: 3 of 8"


def test_the_official_model_against_a_conversion_of_it(here: dict[str, Any]) -> None:
    audit = ki.audit(KIMI_K31_PRO_ID, MXFP4_MOE, **here)
    assert (audit.verdict, codes(audit)) == ("requantized", [])
    assert {item.code for item in audit.findings} == {"component-requantized", "extra-component"}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("official")
    for path, file in kimi_k31_pro(**SMALL).items():
        file.write_to(folder / path)
    return folder


def manifest_of(files: Mapping[str, HollowFile], *, digests: bool = True) -> dict[str, Any]:
    def entry(path: str, file: HollowFile) -> dict[str, Any]:
        weights = path.endswith(".safetensors")
        length = 8 + int.from_bytes(file.head[:8], "little")
        return {
            "path": path,
            "bytes": file.size,
            "sha256": file.sha256 if digests else None,
            "git_sha1": None,
            "header_sha256": hashlib.sha256(file.head[:length]).hexdigest() if weights else None,
        }

    listed = [entry(path, file) for path, file in files.items()]
    return {
        "schema": "kimi-inspect/manifest/1",
        "source": "x/y",
        "commit": None,
        "created": "2026-11-30",
        "files": listed,
    }


def test_against_a_manifest(hub: LoopbackHub, here: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "kimi.json"
    path.write_text(json.dumps(manifest_of(kimi_k31_pro(**SMALL))))
    before = len(hub.log)
    same = ki.audit(UNSLOTH_ID, path, **here)
    assert (same.verdict, same.against, headers_read(hub, before)) == ("identical", "x/y", 0)
    swapped = ki.audit(SWAPPED, str(path), **here)
    assert (swapped.verdict, swapped.identical_shards) == ("different-model", 7)
    pruned = ki.audit(VLLM_PROJECT_ID, path, **here)
    assert pruned.verdict == "different-model"
    assert "shard-differs" in codes(pruned, above_info=False)
    chosen = ki.audit(UNSLOTH_ID, path, files="model-0000[12]-*", **here)
    assert (chosen.verdict, codes(chosen)) == ("identical", [])


def test_a_folder_against_a_manifest_is_held_by_its_headers(official: Path) -> None:
    files = kimi_k31_pro(**SMALL)
    same = ki.audit(official, ki.Manifest.from_dict(manifest_of(files)))
    assert (same.verdict, same.identity, codes(same)) == ("faithful", None, [])
    other = manifest_of(damage.drop_tensor(files, "language_model.model.layers.1.input_layernorm.weight"))
    differs = ki.audit(official, ki.Manifest.from_dict(other))
    assert differs.verdict == "different-model"
    assert [item.code for item in differs.findings] == ["shard-differs"]
    unknown = manifest_of(files) | {"files": [file | {"header_sha256": None} for file in manifest_of(files)["files"]]}
    assert ki.audit(official, ki.Manifest.from_dict(unknown)).verdict == "consistent"


def test_a_folder_that_lacks_a_file_of_a_manifest(tmp_path: Path) -> None:
    files = kimi_k31_pro(**SMALL)
    for path, file in files.items():
        if "00008-of" not in path:
            file.write_to(tmp_path / path)
    audit = ki.audit(tmp_path, ki.Manifest.from_dict(manifest_of(files)))
    assert (audit.verdict, codes(audit)) == ("damaged", ["shard-missing"])
    alone = {"model.safetensors": files["model-00001-of-000008.safetensors"]}
    other = ki.audit(alone, ki.Manifest.from_dict(manifest_of(files)))
    assert (other.verdict, codes(other)) == ("different-model", ["shard-missing"])


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "kimi-inspect/manifest/2"},
        {"files": None},
        {"files": [{"path": "../x", "bytes": 1}]},
        {"files": [{"path": "x", "bytes": -1}]},
        {"files": [{"path": "x", "bytes": 1, "sha256": "short"}]},
        {"files": [{"path": "x", "bytes": 1}, {"path": "x", "bytes": 1}]},
        {"files": ["x"]},
    ],
)
def test_a_manifest_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ki.KimiInspectError):
        ki.Manifest.from_dict(manifest_of({}) | change)


def config_of(files: Mapping[str, HollowFile]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(files["config.json"].head)
    return config


def test_against_a_config_alone(here: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of(kimi_k31_pro(**SMALL))))
    for against in (path, tmp_path):
        pruned = ki.audit(PIPENETWORK_IDS[4], against, **here)
        assert (pruned.verdict, "experts-pruned" in codes(pruned)) == ("reduced", True)
        whole = ki.audit(INFERENCERLABS_ID, against, **here)
        assert (whole.verdict, codes(whole)) == ("consistent", [])
    quant = ki.audit(MXFP4_MOE, path, companions=True, **here)
    assert (quant.verdict, codes(quant)) == ("consistent", [])
    other = ki.audit(KIMI_K3_ID, path, **here)
    assert (other.verdict, codes(other)) == ("different-model", ["architecture-mismatch"])


def test_a_reference_that_is_none_is_refused(official: Path, tmp_path: Path) -> None:
    with pytest.raises(ki.NoCheckpointError):
        ki.audit(official, tmp_path)
    other = tmp_path / "x.json"
    for text in ("[]", "{", '{"a": 1}', '{"weight_map": {}}', json.dumps(manifest_of({"README.md": HollowFile(b"x")}))):
        other.write_text(text)
        with pytest.raises(ki.InvalidSourceError):
            ki.audit(official, other)


def test_the_hub_against_modelscope(hub: LoopbackHub, here: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackModelScope({"moonshotai/Kimi-K3.1-Pro": kimi_k31_pro(**SMALL)}) as scope:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", scope.endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        before = len(hub.log)
        audit = ki.audit(UNSLOTH_ID, "ms://moonshotai/Kimi-K3.1-Pro", **here)
        back = ki.audit("ms://moonshotai/Kimi-K3.1-Pro", UNSLOTH_ID, token=False)
    assert audit.verdict == back.verdict == "identical"
    assert headers_read(hub, before) == 0


def test_equal_weights_under_another_config_are_told() -> None:
    files = kimi_k31_pro(**SMALL)
    config = config_of(files)
    config["text_config"]["rope_theta"] = 1
    changed = {**files, "config.json": HollowFile(json.dumps(config).encode())}
    with LoopbackHub([Repository(repo_id="a/b", files=changed), Repository(repo_id="c/d", files=files)]) as own:
        audit = ki.audit("a/b", "c/d", endpoint=own.endpoint, token=False)
    assert audit.verdict == "identical"
    assert [item.code for item in audit.findings] == ["identical", "config-differs"]


def test_a_configs_digests_of_two_kinds_are_not_compared(here: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackModelScope({"a/b": kimi_k31_pro(**SMALL)}) as scope:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", scope.endpoint)
        audit = ki.audit(UNSLOTH_ID, "ms://a/b", **here)
    assert [item.code for item in audit.findings] == ["identical"]


@pytest.mark.parametrize("layers", [5, 6, 9])
def test_more_layers_than_the_reference_are_no_other_model(layers: int) -> None:
    audit = ki.audit(kimi_mlx(layers=layers, experts=4), kimi_mlx(layers=4, experts=4))
    assert (audit.verdict, codes(audit)) == ("different-model", ["parameters-differ"])


def test_part_of_a_reference_is_no_other_model(here: dict[str, Any]) -> None:
    part = ki.open_checkpoint(KIMI_K31_PRO_ID, files="model-0000[1-6]-*", **here)
    audit = ki.audit(KIMI_K31_PRO_ID, part, **here)
    assert "architecture-mismatch" not in codes(audit)


def test_json_holds_what_the_contract_says(here: dict[str, Any]) -> None:
    audit = ki.audit(MXFP4_MOE, KIMI_K31_PRO_ID, **here)
    document = json.loads(json.dumps(audit.to_dict()))
    assert document["schema"] == "kimi-inspect/audit/1"
    assert {"candidate", "against", "verdict", "findings", "identical_shards", "shard_count", "report"} <= {*document}
    assert document["report"]["schema"] == "kimi-inspect/report/1"
    assert document["verdict"] == "reduced"
    assert pickle.loads(pickle.dumps(audit)) == audit  # noqa: S301
    identical = ki.audit(UNSLOTH_ID, KIMI_K31_PRO_ID, **here).to_dict()
    assert (identical["report"], identical["verdict"]) == (None, "identical")


@pytest.mark.parametrize("make", [kimi_mlx, kimi_k31_pro])
def test_a_small_index_is_always_read(make: Any) -> None:
    files = damage.renumber(make(**SMALL))
    with LoopbackHub([Repository(repo_id="a/b", files=files)]) as own:
        audit = ki.audit("a/b", endpoint=own.endpoint, token=False)
        unasked = ki.audit("a/b", endpoint=own.endpoint, token=False, check_index=False)
    assert (audit.verdict, codes(audit), audit.unchecked_index_bytes) == ("damaged", ["index-stale"], None)
    index = next(file for path, file in files.items() if path.endswith(".index.json"))
    assert (codes(unasked), unasked.unchecked_index_bytes) == ([], index.size)


def test_a_server_that_is_busy_makes_no_verdict() -> None:
    """It is no property of the checkpoint; what is kept of the others makes the next try short."""
    with LoopbackHub([Repository(repo_id="a/b", files=kimi_k31_pro(**SMALL))]) as own:
        own.play(faults.rate_limited(retry_after=500), path="model-00003", times=None)
        with pytest.raises(ki.RateLimitedError) as caught:
            ki.audit("a/b", endpoint=own.endpoint)
        assert caught.value.retryable
        (row,) = ki.compare("a/b", endpoint=own.endpoint).rows
        assert row.error is not None
        assert row.error["retryable"]
        assert {item.code for item in ki.open_checkpoint("a/b", endpoint=own.endpoint).findings} >= {"shard-unreadable"}


def test_sets_are_named_where_there_are_several(hub: LoopbackHub) -> None:
    found = ki.audit(MXFP4_MOE, Q2_K, endpoint=hub.endpoint)
    assert (found.candidate, found.candidate_set) == (DEVQUASAR_GGUF_ID, "MXFP4_MOE")
    assert (found.against, found.against_set) == (DEVQUASAR_GGUF_ID, "Q2_K")
    found = ki.audit(UNSLOTH_ID, KIMI_K31_PRO_ID, endpoint=hub.endpoint)
    assert (found.candidate_set, found.against_set) == (None, None)
