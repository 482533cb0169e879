"""The damages of `test_damage_alone` again, held against the sound checkpoint: each is named, and nothing else is.

Against a reference of the same layout it is known what a missing shard held, so that what the others lack is told too.
"""

from __future__ import annotations

import pytest
from test_damage_alone import EACH, FORMATS, PAIRS, Files, codes, said, sound

from kimi_inspect import Audit, Severity, Verdict, audit
from kimi_inspect.testing import LoopbackHub, Repository, damage, kimi_k3, kimi_k31_pro

AGAINST = {"head": "component-missing"}
"""What a reference tells that the checkpoint does not by itself."""

BESIDE_A_MISSING_SHARD = {
    "another model": "architecture-mismatch",
    "tensor": "tensor-missing",
    "last norm": "tensor-missing",
    "expert": "expert-count-disagrees",
    "router": "expert-count-disagrees",
}
"""What is told of the other damage then; of those that are not here, what is told anyway."""

IN_THE_MISSING_SHARD = {("gguf", "head"), ("gguf", "last norm")}


def expected(name: str, *which: str, with_index: bool) -> frozenset[str]:
    damages = FORMATS[name].damages
    codes: frozenset[str] = frozenset()
    unread = "shard" in which and "shard-missing" in damages["shard"].said(with_index=with_index)
    for one in which:
        told = damages[one].said(with_index=with_index)
        if unread and (name, one) in IN_THE_MISSING_SHARD:
            told = said("")
        elif unread and one in BESIDE_A_MISSING_SHARD:
            told = said(BESIDE_A_MISSING_SHARD[one])
        elif one in AGAINST:
            told = said(AGAINST[one])
        codes |= told
    if "architecture-mismatch" in codes:  # what config and index promise is of the model that is not there
        codes -= said("index-stale layer-missing component-missing")
    return codes


def judged(name: str, files: Files) -> Audit:
    return audit(files, sound(name))


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize(("name", "one"), EACH)
def test_a_damage_is_one_finding(name: str, one: str, *, with_index: bool) -> None:
    found = judged(name, FORMATS[name].damages[one].plant(sound(name), with_index=with_index))
    told = expected(name, one, with_index=with_index)
    assert codes(found.findings) == sorted(told)
    # Renamed files with an index of their own are what they were; a head shows by the reference alone.
    verdict = Verdict.DAMAGED if told else Verdict.FAITHFUL
    assert found.verdict is (Verdict.REDUCED if one == "head" and with_index else verdict)


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize(("name", "first", "second"), PAIRS)
def test_of_two_damages_both_are_told(name: str, first: str, second: str, *, with_index: bool) -> None:
    one, other = (FORMATS[name].damages[which] for which in (first, second))
    files = other.plant(one.plant(sound(name), with_index=with_index), with_index=with_index)
    assert set(codes(judged(name, files).findings)) == expected(name, first, second, with_index=with_index)


@pytest.mark.parametrize("name", FORMATS)
def test_of_a_sound_one_nothing_is_said(name: str) -> None:
    found = judged(name, dict(sound(name)))
    assert (found.verdict, found.findings) == ("faithful", ())


@pytest.mark.parametrize("number", range(1, 10))
def test_a_shard_of_kimi_k3_shows_by_its_digest_and_by_a_header_with_an_indexer(number: int) -> None:
    official, older = kimi_k31_pro(layers=9, experts=4), kimi_k3(layers=9, experts=4)
    shelves = {"a/official": official, "a/swapped": damage.swap_shard(official, number, older)}
    with LoopbackHub([Repository(name, files) for name, files in shelves.items()]) as hub:
        found = audit("a/swapped", "a/official", endpoint=hub.endpoint, token=False)
    path = f"model-{number:05d}-of-000012.safetensors"
    (differs,) = (item for item in found.findings if item.code == "shard-differs")
    assert (differs.severity, differs.file, found.identical_shards) == (Severity.INFO, path, 11)
    has_indexer = number in (4, 8)
    assert codes(found.findings) == (["tensor-missing"] if has_indexer else [])
    assert found.verdict == ("damaged" if has_indexer else "different-model")
    missing = [item for item in found.findings if item.code == "tensor-missing"]
    assert all("indexer" in name and f".{number - 1}." in name for item in missing for name in item.examples)
