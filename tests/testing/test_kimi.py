from __future__ import annotations

import gc
import json
import re
import struct
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors import safe_open

from kimi_inspect.testing import HollowFile, hollow_checkpoint, kimi_config, kimi_k3, kimi_k31_pro, kimi_tensors
from kimi_inspect.testing.kimi import Model

Files = dict[str, HollowFile]


class Row(NamedTuple):
    path: str
    name: str
    dtype: str
    shape: list[int]
    stored_bytes: int


@pytest.fixture(scope="module")
def k31() -> Files:
    return kimi_k31_pro()


@pytest.fixture(scope="module")
def k31_rows(k31: Files) -> list[Row]:
    gc.disable()  # half a million rows that all stay: looking for garbage among them takes longer than making them
    try:
        return rows(k31)
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def k3() -> Files:
    return kimi_k3()


def shards(files: Files) -> dict[str, HollowFile]:
    return {path: file for path, file in files.items() if path.endswith(".safetensors")}


def rows(files: Files) -> list[Row]:
    """Read all headers with nothing but json; the data must follow without a gap."""
    every = []
    for path, file in shards(files).items():
        (length,) = struct.unpack("<Q", file.head[:8])
        assert 8 + length == len(file.head)
        position = 0
        for name, entry in json.loads(file.head[8:]).items():
            begin, end = entry["data_offsets"]
            assert begin == position
            position = end
            every.append(Row(path, name, entry["dtype"], entry["shape"], end - begin))
        assert 8 + length + position == file.size
    return every


def payload(files: Files) -> int:
    return sum(file.size - len(file.head) for file in shards(files).values())


def test_published_totals_of_k31_pro(k31: Files, k31_rows: list[Row]) -> None:
    assert len(shards(k31)) == 96
    assert sum(file.size for file in shards(k31).values()) == 1_561_293_160_568
    assert sum(len(file.head) for file in shards(k31).values()) == 75_783_288
    assert payload(k31) == 1_561_217_377_280
    assert len(k31_rows) == 497_340


def test_published_totals_of_k3(k3: Files) -> None:
    assert sum(file.size for file in shards(k3).values()) == 1_560_936_091_448
    assert payload(k3) == 1_560_860_324_864
    assert sum(file.head.count(b'"dtype"') for file in shards(k3).values()) == 497_220


def test_published_sizes_of_single_k3_shards(k3: Files) -> None:
    by_number = {int(path[6:11]): file for path, file in shards(k3).items()}
    assert len(by_number[2].head) - 8 == 818_696
    assert {number: by_number[number].size for number in (2, 93, 95, 96)} == {
        2: 16_990_911_504,
        93: 16_567_507_176,
        95: 92_289_328,
        96: 802_448_352,
    }


def test_bytes_by_dtype_of_k31_pro(k31_rows: list[Row]) -> None:
    stored: Counter[str] = Counter()
    for row in k31_rows:
        stored[row.dtype + (" packed" if row.name.endswith("weight_packed") else "")] += row.stored_bytes
    assert stored == {
        "BF16": 114_716_821_504,
        "F32": 4 * 11_122_432,
        "U8 packed": 1_361_370_415_104,
        "U8": 85_085_650_944,
    }


def test_layers_by_kind_of_attention(k31_rows: list[Row]) -> None:
    indexed = {int(row.name.split(".")[3]) for row in k31_rows if row.name.endswith("indexer.wk.weight")}
    recurrent = {int(row.name.split(".")[3]) for row in k31_rows if row.name.endswith("self_attn.A_log")}
    assert indexed == {*range(3, 92, 4), 92}
    assert recurrent == set(range(93)) - indexed


def test_data_order_is_by_shard_dtype_and_name(k31_rows: list[Row]) -> None:
    assert k31_rows == sorted(
        k31_rows, key=lambda row: (row.path, ["F32", "BF16", "U8"].index(row.dtype), row.name.encode())
    )


def test_the_index_agrees_with_the_shards(k31: Files, k31_rows: list[Row]) -> None:
    index = json.loads(k31["model.safetensors.index.json"].read())
    assert index["weight_map"] == {row.name: row.path for row in k31_rows}
    assert index["metadata"] == {"total_size": payload(k31)}


def test_the_reference_reader_accepts_a_shard(k31: Files, tmp_path: Path) -> None:
    path = tmp_path / "model-00005-of-000096.safetensors"
    k31[path.name].write_to(path)
    assert path.stat().st_size == k31[path.name].size
    assert path.stat().st_blocks * 512 < 2_000_000
    with safe_open(path, framework="numpy") as reader:
        assert len(list(reader.keys())) == 5_404
        assert reader.get_slice("language_model.model.layers.4.self_attn.A_log").get_shape() == [128]


@pytest.mark.parametrize("model", ["kimi-k3.1-pro", "kimi-k3"])
@pytest.mark.parametrize(("layers", "experts"), [(1, 896), (5, 4), (12, 11)])
def test_the_quick_layout_is_the_slow_one(model: Model, layers: int, experts: int) -> None:
    quick = {"kimi-k3.1-pro": kimi_k31_pro, "kimi-k3": kimi_k3}[model](layers=layers, experts=experts)
    config = kimi_config(model, layers=layers, experts=experts)
    slow = hollow_checkpoint(kimi_tensors(config), config)
    assert {path: (file.size, file.head) for path, file in quick.items()} == {
        path: (file.size, file.head) for path, file in slow.items()
    }


def test_a_small_kimi_agrees_with_its_config(k31_rows: list[Row]) -> None:
    files = kimi_k31_pro(layers=5, experts=4)
    config = json.loads(files["config.json"].read())["text_config"]
    assert (config["num_hidden_layers"], config["num_experts"], config["num_experts_per_token"]) == (5, 4, 4)
    assert config["linear_attn_config"]["full_attn_layers"] == [4]
    assert config["linear_attn_config"]["kda_layers"] == [1, 2, 3, 5]
    assert list(shards(files))[-1] == "model-00008-of-000008.safetensors"
    whole = {row.name: row.shape for row in k31_rows}
    for row in rows(files):
        is_router = re.search(r"block_sparse_moe\.gate\.", row.name)
        assert row.shape == ([4, *whole[row.name][1:]] if is_router else whole[row.name])


@pytest.mark.parametrize(("layers", "experts"), [(0, 1), (94, 1), (1, 0), (1, 897)])
def test_more_than_there_is_is_refused(layers: int, experts: int) -> None:
    with pytest.raises(ValueError, match="1 to 93 layers and 1 to 896 experts"):
        kimi_k31_pro(layers=layers, experts=experts)
