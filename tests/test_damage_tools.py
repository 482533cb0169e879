"""Planted damage, seen by the reference readers: every file can be read, and differs from the sound one as said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest
from safetensors import safe_open

from kimi_inspect.testing import (
    DTYPE_BITS,
    GgufTensor,
    HollowFile,
    damage,
    hollow_gguf,
    kimi_gguf,
    kimi_k3,
    kimi_k31_pro,
    kimi_mlx,
    kimi_reap,
    packed_model,
)
from kimi_inspect.testing.parts import indexed, take_apart

Files = Mapping[str, HollowFile]
INDEX = "model.safetensors.index.json"
OFFICIAL = "language_model.model.layers.{}.block_sparse_moe."
MLX = "model.layers.{}.block_sparse_moe."


class Seen(NamedTuple):
    """A tensor as a reference reader gives it; the shape of GGUF's is turned to have the outermost extent first."""

    path: str
    dtype: str
    shape: tuple[int, ...]


def contents(files: Files) -> dict[str, tuple[bytes, int]]:
    return {path: (file.head, file.size) for path, file in files.items()}


SOUND = {
    "safetensors": kimi_k31_pro(layers=5, experts=4),
    "mlx": kimi_mlx(layers=5, experts=4),
    "mlx-affine": kimi_reap(6, layers=5, experts=4),
    "gguf": kimi_gguf("MXFP4_MOE", layers=5, experts=4, tokens=64, parts=4),
}


BEFORE = {form: contents(files) for form, files in SOUND.items()}


def weights(files: Files) -> list[str]:
    return sorted(path for path in files if path.endswith((".safetensors", ".gguf")))


def opened_gguf(files: Files, path: str, folder: Path) -> gguf.GGUFReader:
    place = folder / f"{len(list(folder.iterdir()))}.gguf"  # the reader keeps the last one mapped
    files[path].write_to(place)
    return gguf.GGUFReader(place)


def seen(files: Files, folder: Path) -> dict[str, Seen]:
    """Read every weight file, sparse on disk, by the reader of those who made its format."""
    found: dict[str, Seen] = {}
    for path in weights(files):
        if path.endswith(".gguf"):
            reader = opened_gguf(files, path, folder)
            here = {
                one.name: Seen(path, one.tensor_type.name, tuple(map(int, reversed(one.shape))))
                for one in reader.tensors
            }
            # The reader looks at the bytes of each tensor, so all are there; after the last there is padding at most.
            end = max((int(one.data_offset + one.n_bytes) for one in reader.tensors), default=files[path].size)
            assert 0 <= files[path].size - end < 32
        else:
            files[path].write_to(folder / path)
            with safe_open(folder / path, framework="numpy") as opened:
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it has no __iter__
                here = {name: Seen(path, one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
        assert not found.keys() & here.keys()
        found |= here
    return found


def said_of_all(files: Files, folder: Path) -> Any:
    """Return the index, or how many tensors each part says that the set has."""
    if INDEX in files:
        return json.loads(files[INDEX].head)
    readers = [opened_gguf(files, path, folder) for path in weights(files)]
    return [int(reader.fields["split.tensors.count"].contents()) for reader in readers]


def true_of_all(tensors: Mapping[str, Seen], files: Files) -> Any:
    """Return what would be true, from what the reference readers see."""
    if INDEX not in files:
        return [len(tensors)] * len(weights(files))
    total = sum(DTYPE_BITS[one.dtype] * prod(one.shape) for one in tensors.values()) // 8
    return {"metadata": {"total_size": total}, "weight_map": {name: one.path for name, one in tensors.items()}}


def resized(one: Seen, *shape: int) -> Seen:
    return one._replace(shape=shape)


def fewer(tensors: Mapping[str, Seen], *names: str) -> dict[str, Seen | None]:
    """Return the tensors of those names with the outermost extent one less."""
    return {name: resized(tensors[name], tensors[name].shape[0] - 1, *tensors[name].shape[1:]) for name in names}


WEIGHT = {
    "safetensors": OFFICIAL.format(3) + "experts.2.w1.weight_packed",
    "mlx": MLX.format(3) + "switch_mlp.up_proj.weight",
    "mlx-affine": MLX.format(3) + "shared_experts.up_proj.weight",
}
SCALE = {
    "safetensors": OFFICIAL.format(3) + "experts.2.w1.weight_scale",
    "mlx": MLX.format(3) + "switch_mlp.up_proj.scales",
    "mlx-affine": MLX.format(3) + "shared_experts.up_proj.scales",
}
NORM = {"safetensors": "language_model.model.norm.weight", "mlx": "model.norm.weight", "gguf": "output_norm.weight"}
STACKS = {
    "mlx": [
        f"{MLX.format(4)}switch_mlp.{one}_proj.{word}"
        for one in ("gate", "up", "down")
        for word in ("weight", "scales")
    ],
    "gguf": [f"blk.4.ffn_{one}_exps.weight" for one in ("gate", "up", "down")],
}
ROUTERS = {
    "safetensors": [OFFICIAL.format(2) + "gate.weight"],
    "mlx": [MLX.format(2) + "gate.weight"],
    "mlx-affine": [MLX.format(2) + f"gate.{word}" for word in ("weight", "scales", "biases")],
    "gguf": ["blk.2.ffn_gate_inp.weight"],
}


@pytest.fixture(params=SOUND)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def originals_stay() -> Iterator[None]:
    """Show after every test that the files it began with are still those."""
    yield
    assert {form: contents(files) for form, files in SOUND.items()} == BEFORE


def differs(
    tool: Callable[..., dict[str, HollowFile]],
    form: str,
    folder: Path,
    change: Mapping[str, Seen | None],
    *,
    at_all: int = 1,
) -> None:
    """Show that a tool changes these tensors, None for one that goes, and `at_all` files; with and without index."""
    files = SOUND[form]
    before = seen(files, folder)
    expected = {name: one for name, one in {**before, **change}.items() if one is not None}
    damaged = tool(files)
    assert seen(damaged, folder) == expected
    assert sum(files.get(path) is not file for path, file in damaged.items()) == at_all
    assert said_of_all(damaged, folder) == said_of_all(files, folder) == true_of_all(before, files)
    told = tool(files, with_index=True)
    assert seen(told, folder) == expected
    assert said_of_all(told, folder) == true_of_all(expected, told)


def test_taking_apart_and_writing_again_changes_nothing(form: str) -> None:
    files = SOUND[form]
    again = indexed({**files, **{path: take_apart(files[path]).file() for path in weights(files)}})
    assert contents(again) == contents(files)


@pytest.mark.parametrize("form", NORM)
def test_drop_tensor(form: str, tmp_path: Path) -> None:
    differs(partial(damage.drop_tensor, name=NORM[form]), form, tmp_path, {NORM[form]: None})


@pytest.mark.parametrize("form", SCALE)
def test_drop_scale(form: str, tmp_path: Path) -> None:
    differs(partial(damage.drop_scale, name=WEIGHT[form]), form, tmp_path, {SCALE[form]: None})


@pytest.mark.parametrize("form", SCALE)
def test_reshape_scale(form: str, tmp_path: Path) -> None:
    *rows, groups = seen(SOUND[form], tmp_path)[SCALE[form]].shape
    wrong = resized(seen(SOUND[form], tmp_path)[SCALE[form]], *rows, groups + 1)
    differs(partial(damage.reshape_scale, name=WEIGHT[form]), form, tmp_path, {SCALE[form]: wrong})


@pytest.mark.parametrize(
    ("encoding", "weight", "scale"),
    [
        ("fp8-block", "weight", "weight_scale_inv"),
        ("gptq-4", "qweight", "scales"),
        ("bnb-nf4", "weight", "weight.absmax"),
        ("bnb-int8", "weight", "SCB"),
        ("compressed-int4-32", "weight_packed", "weight_scale"),
    ],
)
def test_scales_of_other_packings(encoding: str, weight: str, scale: str, tmp_path: Path) -> None:
    files = packed_model(encoding).files
    module = "model.layers.0.self_attn.q_proj."
    lost = seen(files, tmp_path).keys() - seen(damage.drop_scale(files, module + weight), tmp_path).keys()
    assert lost == {module + scale}


def test_drop_expert_with_tensors_of_its_own(tmp_path: Path) -> None:
    lost = [
        f"{OFFICIAL.format(4)}experts.1.w{number}.weight_{word}" for number in (1, 2, 3) for word in ("packed", "scale")
    ]
    differs(partial(damage.drop_expert, layer=4, expert=1), "safetensors", tmp_path, dict.fromkeys(lost))


@pytest.mark.parametrize("form", STACKS)
def test_drop_expert_of_a_stack(form: str, tmp_path: Path) -> None:
    change = fewer(seen(SOUND[form], tmp_path), *STACKS[form])
    holders = {one.path for one in change.values() if one}
    differs(partial(damage.drop_expert, layer=4, expert=1), form, tmp_path, change, at_all=len(holders))


def test_shorten_router(form: str, tmp_path: Path) -> None:
    change = fewer(seen(SOUND[form], tmp_path), *ROUTERS[form])
    differs(partial(damage.shorten_router, layer=2), form, tmp_path, change)


def test_drop_shard(form: str, tmp_path: Path) -> None:
    (path,) = (path for path in SOUND[form] if "-00003-of-" in path)
    gone = {name: None for name, one in seen(SOUND[form], tmp_path).items() if one.path == path}
    assert gone
    before = said_of_all(SOUND[form], tmp_path)
    damaged = damage.drop_shard(SOUND[form], 3)
    assert {**damaged, path: SOUND[form][path]} == SOUND[form]
    assert path not in damaged
    assert said_of_all(damaged, tmp_path) == (before if INDEX in damaged else before[1:])
    told = damage.drop_shard(SOUND[form], 3, with_index=True)
    left = seen(told, tmp_path)
    assert left == {name: one for name, one in seen(SOUND[form], tmp_path).items() if name not in gone}
    assert said_of_all(told, tmp_path) == true_of_all(left, told)


def test_cut_shard(form: str, tmp_path: Path) -> None:
    files = SOUND[form]
    (path,) = (path for path in files if "-00002-of-" in path)
    damaged = damage.cut_shard(files, 2, 1000)
    assert {**damaged, path: files[path]} == files
    assert damaged[path].size == files[path].size - 1000
    assert damaged[path].head == files[path].head
    with pytest.raises(Exception, match=r"incomplete|cannot reshape|out of bounds"):
        seen({path: damaged[path]}, tmp_path)


@pytest.mark.parametrize(("number", "lost"), [(4, 5), (2, 0)])
def test_swap_shard(number: int, lost: int, tmp_path: Path) -> None:
    """Layer 3 has full attention, whose indexer K3 lacks; layer 1 is the same in both."""
    other = kimi_k3(layers=5, experts=4)
    before = seen(SOUND["safetensors"], tmp_path)
    gone = [name for name in before if number == 4 and ".layers.3.self_attn.indexer." in name]
    assert len(gone) == lost
    differs(partial(damage.swap_shard, number=number, other_files=other), "safetensors", tmp_path, dict.fromkeys(gone))


def test_swap_part_of_another_recipe(tmp_path: Path) -> None:
    other = kimi_gguf("Q2_K", layers=5, experts=4, tokens=64, parts=4)
    damaged = damage.swap_shard(SOUND["gguf"], 4, other)
    path = weights(damaged)[3]
    assert damaged[path] is other[weights(other)[3]]
    assert {**damaged, path: SOUND["gguf"][path]} == SOUND["gguf"]
    assert "Q2_K" in {one.dtype for one in seen({path: damaged[path]}, tmp_path).values()}


@pytest.mark.parametrize("form", [name for name in SOUND if name != "gguf"])
def test_renumber(form: str, tmp_path: Path) -> None:
    one, other = (next(path for path in SOUND[form] if f"-0000{number}-of-" in path) for number in (2, 3))
    places = {one: other, other: one}
    before = seen(SOUND[form], tmp_path)
    change = {name: it._replace(path=places[it.path]) for name, it in before.items() if it.path in places}
    differs(damage.renumber, form, tmp_path, change, at_all=2)


def test_renumbered_parts_know_better(tmp_path: Path) -> None:
    damaged = damage.renumber(SOUND["gguf"], 3, 4)
    numbers = [opened_gguf(damaged, path, tmp_path).fields["split.no"].contents() for path in weights(damaged)]
    assert numbers == [0, 1, 3, 2]


def test_other_model(form: str, tmp_path: Path) -> None:
    damaged = damage.other_model(SOUND[form])
    assert {path for path, file in damaged.items() if SOUND[form].get(path) is not file} == set(weights(SOUND[form]))
    assert damaged.keys() == SOUND[form].keys()
    assert said_of_all(damaged, tmp_path) == said_of_all(SOUND[form], tmp_path)
    tensors = seen(damaged, tmp_path)
    kinds = {"safetensors": ("BF16", 1), "mlx": ("U32", 2), "mlx-affine": ("U32", 3), "gguf": ("MXFP4", 1)}
    dtype, stored = kinds[form]
    assert len(tensors) == (7 * 5 + 2) * stored + 2 * 5 + 1
    query, norm = (
        ("blk.4.attn_q", "blk.4.attn_norm")
        if form == "gguf"
        else (
            "model.layers.4.self_attn.q_proj",
            "model.layers.4.input_layernorm",
        )
    )
    assert tensors[f"{query}.weight"].dtype == dtype
    assert tensors[f"{norm}.weight"].shape == (2048,)
    told = damage.other_model(SOUND[form], with_index=True)
    assert seen(told, tmp_path) == tensors
    assert said_of_all(told, tmp_path) == true_of_all(tensors, told)


def test_metadata_of_a_gguf_part_stay(tmp_path: Path) -> None:
    """Strings, arrays of them and arrays of numbers among them."""
    path = weights(SOUND["gguf"])[0]
    before, after = (
        {key: field.contents() for key, field in opened_gguf(files, path, tmp_path).fields.items()}
        for files in (SOUND["gguf"], damage.other_model(SOUND["gguf"]))
    )
    differing = {key for key in before if before[key] != after[key]}
    assert before.keys() == after.keys()
    assert differing == {"GGUF.tensor_count"}
    assert after["general.architecture"] == "kimi-k31"
    assert len(after["tokenizer.ggml.tokens"]) == 64


@pytest.mark.parametrize("alignment", [32, 256])
def test_another_alignment_is_kept(alignment: int, tmp_path: Path) -> None:
    tensors = [GgufTensor(name, "F32", (3,)) for name in "abc"]
    files = {"x.gguf": hollow_gguf(tensors, {"general.architecture": "llama"}, alignment=alignment)}
    reader = opened_gguf(damage.drop_tensor(files, "b"), "x.gguf", tmp_path)
    assert [one.name for one in reader.tensors] == ["a", "c"]
    first, second = (int(one.data_offset) for one in reader.tensors)
    assert second - first == alignment


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (lambda files: damage.drop_tensor(files, "x"), "x: not in these files"),
        (
            lambda files: damage.drop_scale(files, "blk.4.ffn_up_exps.weight"),
            "expected a weight with a scale beside it",
        ),
        (lambda files: damage.reshape_scale(files, "x.weight"), "expected a weight with a scale beside it"),
        (lambda files: damage.drop_expert(files, 4, 4), "expert 4 in layer 4: not in these files"),
        (lambda files: damage.drop_expert(files, 0, 1), "expert 1 in layer 0: not in these files"),
        (lambda files: damage.shorten_router(files, 0), "router in layer 0: not in these files"),
        (lambda files: damage.drop_shard(files, 0), "shard 0: expected one file of that number, got 0"),
        (lambda files: damage.cut_shard(files, 2, 0), "missing_bytes: expected 1 to"),
    ],
)
def test_what_cannot_be_done_is_said(tool: Callable[[Files], object], words: str, form: str) -> None:
    with pytest.raises(ValueError, match=words):
        tool(SOUND[form])


def test_two_sets_have_two_shards_of_one_number() -> None:
    files = {**SOUND["gguf"], **kimi_gguf("Q2_K", layers=5, experts=4, tokens=64, parts=4)}
    with pytest.raises(ValueError, match="got 2"):
        damage.drop_shard(files, 2)


def test_gguf_of_another_order_is_refused() -> None:
    files = {"x.gguf": hollow_gguf([], {"general.architecture": "llama"}, byte_order=">")}
    with pytest.raises(ValueError, match="version 3, little-endian"):
        damage.drop_tensor(files, "x")
