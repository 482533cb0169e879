"""Damage planted in small checkpoints, one at a time and in pairs: an audit without a reference names just that.

Each is planted twice: in a repository whose index, or number of tensors, is older than the damage, and in one where
these were written anew. What a missing shard may hold cannot be judged; then less is said, as each row tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations
from pathlib import Path

import pytest

from kimi_inspect import Finding, Severity, open_checkpoint
from kimi_inspect.testing import (
    BUILDS,
    DPHN_ID,
    HollowFile,
    LoopbackHub,
    Repository,
    damage,
    kimi_gguf,
    kimi_k31_pro,
    kimi_mlx,
)

Files = dict[str, HollowFile]
Plant = Callable[..., Files]

OFFICIAL_LAYER = "language_model.model.layers.{}."
EXPERT = OFFICIAL_LAYER + "block_sparse_moe.experts.{}.{}.weight_packed"
STACK = "model.layers.{}.block_sparse_moe.switch_mlp.{}_proj.weight"


@dataclass(frozen=True)
class Damage:
    """What is planted and what has to be said of it.

    Attributes:
        plant: takes the files, and whether the index is written anew.
        codes: said where the index is older than the damage; no other code above info.
        anew: said where it was written anew, if that is less.
        beside: said where a shard is missing too; None for the same.
    """

    plant: Plant
    codes: frozenset[str]
    anew: frozenset[str] | None = None
    beside: frozenset[str] | None = None

    def said(self, *, with_index: bool) -> frozenset[str]:
        return self.anew if with_index and self.anew is not None else self.codes


def said(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABSENT, NOTHING = said("index-tensor-absent"), said("")


def cut(number: int) -> Plant:
    return lambda files, **_: damage.cut_shard(files, number, 1000)


def planted(function: Callable[..., Files], *arguments: object) -> Plant:
    return lambda files, **options: function(files, *arguments, **options)


@dataclass(frozen=True)
class Format:
    """A small sound checkpoint, and the damages that are planted in it, in this order."""

    make: Callable[[], Files]
    damages: Mapping[str, Damage]


@cache
def sound(name: str) -> Files:
    return FORMATS[name].make()


OFFICIAL = {
    "another model": Damage(
        planted(damage.other_model),
        said("architecture-mismatch"),
        beside=said("index-tensor-absent unindexed-tensors"),
    ),
    "tensor": Damage(
        planted(damage.drop_tensor, OFFICIAL_LAYER.format(1) + "input_layernorm.weight"),
        said("tensor-missing"),
        beside=ABSENT,
    ),
    "scale": Damage(planted(damage.drop_scale, EXPERT.format(2, 0, "w1")), said("scale-missing")),
    "scale's shape": Damage(planted(damage.reshape_scale, EXPERT.format(2, 1, "w2")), said("scale-shape")),
    "expert": Damage(planted(damage.drop_expert, 1, 3), said("expert-missing"), beside=ABSENT),
    "router": Damage(planted(damage.shorten_router, 2), said("expert-count-disagrees"), beside=NOTHING),
    # With an index that was written after it, nothing is wrong.
    "renumbered": Damage(planted(damage.renumber, 6, 7), said("index-stale"), anew=NOTHING),
    "shard": Damage(planted(damage.drop_shard, 5), said("shard-missing"), anew=said("layer-missing")),
    "cut": Damage(cut(4), said("truncated")),
}
MLX = {
    "another model": Damage(
        planted(damage.other_model),
        said("architecture-mismatch"),
        beside=said("index-tensor-absent unindexed-tensors index-stale"),
    ),
    "tensor": Damage(
        planted(damage.drop_tensor, "model.layers.1.input_layernorm.weight"), said("tensor-missing"), beside=ABSENT
    ),
    "last norm": Damage(planted(damage.drop_tensor, "model.norm.weight"), said("tensor-missing"), beside=ABSENT),
    "scale": Damage(planted(damage.drop_scale, STACK.format(3, "gate")), said("scale-missing")),
    "scale's shape": Damage(planted(damage.reshape_scale, STACK.format(3, "down")), said("scale-shape")),
    # Its stack has one fewer, but no name is gone.
    "expert": Damage(planted(damage.drop_expert, 1, 3), said("expert-missing"), beside=NOTHING),
    "router": Damage(planted(damage.shorten_router, 2), said("expert-count-disagrees"), beside=NOTHING),
    "renumbered": Damage(planted(damage.renumber, 2, 3), said("index-stale"), anew=NOTHING),
    "shard": Damage(planted(damage.drop_shard, 18), said("shard-missing"), anew=said("component-missing")),
    "cut": Damage(cut(20), said("truncated")),
}
GGUF = {
    "another model": Damage(planted(damage.other_model), said("architecture-mismatch"), beside=NOTHING),
    "tensor": Damage(planted(damage.drop_tensor, "blk.2.attn_norm.weight"), said("tensor-missing"), beside=NOTHING),
    "last norm": Damage(planted(damage.drop_tensor, "output_norm.weight"), said("tensor-missing"), beside=NOTHING),
    # A model without a head uses its embeddings: only the reference tells that this one had one.
    "head": Damage(planted(damage.drop_tensor, "output.weight"), said("tensor-total-wrong"), NOTHING, NOTHING),
    "expert": Damage(planted(damage.drop_expert, 1, 3), said("expert-missing"), beside=NOTHING),
    "router": Damage(planted(damage.shorten_router, 2), said("expert-count-disagrees"), beside=NOTHING),
    "renumbered": Damage(planted(damage.renumber, 3, 4), said("shard-order")),
    "shard": Damage(planted(damage.drop_shard, 2), said("shard-missing")),
    "cut": Damage(cut(4), said("truncated")),
}
FORMATS = {
    "official": Format(partial(kimi_k31_pro, layers=5, experts=4), OFFICIAL),
    "mlx": Format(partial(kimi_mlx, layers=5, experts=4), MLX),
    "gguf": Format(partial(kimi_gguf, "MXFP4_MOE", layers=5, experts=4, tokens=64, parts=4), GGUF),
}
EACH = [(name, one) for name, form in FORMATS.items() for one in form.damages]
TENSORS = {"tensor", "last norm", "head", "scale", "scale's shape", "expert", "router"}
"""What cannot be planted in another model, which has none of these tensors."""


PAIRS = [
    (name, first, second)
    for name, form in FORMATS.items()
    for first, second in combinations(form.damages, 2)
    if first != "another model" or second not in TENSORS
]


def on_disk(files: Files, folder: Path) -> tuple[Finding, ...]:
    for path, file in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        file.write_to(folder / path)
    return open_checkpoint(folder).findings


def codes(findings: tuple[Finding, ...]) -> list[str]:
    return sorted(item.code for item in findings if item.severity is not Severity.INFO)


@pytest.mark.parametrize("name", FORMATS)
def test_of_a_sound_one_nothing_is_said(name: str, tmp_path: Path) -> None:
    assert codes(on_disk(sound(name), tmp_path)) == []


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize(("name", "one"), EACH)
def test_a_damage_is_one_finding_of_its_code(name: str, one: str, tmp_path: Path, *, with_index: bool) -> None:
    planted_one = FORMATS[name].damages[one]
    found = on_disk(planted_one.plant(sound(name), with_index=with_index), tmp_path)
    assert codes(found) == sorted(planted_one.said(with_index=with_index))


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize(("name", "first", "second"), PAIRS)
def test_of_two_damages_both_are_told(name: str, first: str, second: str, tmp_path: Path, *, with_index: bool) -> None:
    one, other = (FORMATS[name].damages[which] for which in (first, second))
    files = other.plant(one.plant(sound(name), with_index=with_index), with_index=with_index)
    expected = one.said(with_index=with_index) | other.said(with_index=with_index)
    if "shard-missing" in expected:
        (rest,) = {one, other} - {FORMATS[name].damages["shard"]}
        expected = said("shard-missing") | (rest.codes if rest.beside is None else rest.beside)
    if "architecture-mismatch" in expected:  # what config and index promise is of the model that is not there
        expected -= said("index-stale layer-missing component-missing")
    assert set(codes(on_disk(files, tmp_path))) == expected


@pytest.mark.parametrize(("name", "one"), EACH)
def test_the_same_on_the_hub(name: str, one: str) -> None:
    planted_one = FORMATS[name].damages[one]
    files = planted_one.plant(sound(name), with_index=False)
    with LoopbackHub([Repository("acme/x", files)]) as hub:
        found = open_checkpoint("acme/x", endpoint=hub.endpoint, token=False, check_index=True).findings
    assert codes(found) == sorted(planted_one.codes)


@pytest.mark.parametrize("name", sorted(BUILDS))
@pytest.mark.parametrize("layers", [2, 6, 9])
def test_nothing_is_said_of_builds_of_others(name: str, layers: int) -> None:
    found = open_checkpoint(BUILDS[name](layers=layers, experts=4)).findings
    assert codes(found) == (["unexpected-tensor"] if name == DPHN_ID else [])
