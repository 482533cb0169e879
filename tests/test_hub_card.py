"""What the Hub says of a repository: read with the commit at no request more, checked, never trusted to be there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import attrs
import pytest
from contracts.checks import LOOKS, REPO, TOKEN, check_token, usual_requests
from hypothesis import given
from hypothesis import strategies as st
from strategies import usual

from kimi_inspect import open_checkpoint
from kimi_inspect.errors import RepositoryNotFoundError
from kimi_inspect.hub_card import MAX_ENTRIES, MAX_TEXT, MAX_TOTAL, HubCard, read_card
from kimi_inspect.remote import HubRepository
from kimi_inspect.testing import Fault, HollowFile, LoopbackHub, Repository, faults
from kimi_inspect.testing.faults import Exchange
from kimi_inspect.testing.wire import Answer, bytes_body

INFO: dict[str, Any] = {
    "safetensors": {"parameters": {"BF16": 57_000, "U8": 1_361_000}, "total": 1_418_000},
    "gguf": {"total": 2_780, "architecture": "kimi-k31", "context_length": 1_048_576},
    "cardData": {
        "license": "other",
        "license_name": "kimi-k3.1",
        "license_link": "LICENSE",
        "base_model": ["moonshotai/Kimi-K3.1-Pro"],
    },
    "tags": ["safetensors", "base_model:moonshotai/Kimi-K3.1-Pro", "base_model:quantized:moonshotai/Kimi-K3"],
}
CARD = HubCard(
    safetensors_total=1_418_000,
    safetensors_parameters=(("BF16", 57_000), ("U8", 1_361_000)),
    gguf_total=2_780,
    gguf_architecture="kimi-k31",
    license="other",
    license_name="kimi-k3.1",
    license_link="LICENSE",
    base_models=("moonshotai/Kimi-K3.1-Pro", "moonshotai/Kimi-K3"),
)


class TestReading:
    def test_all_that_is_said(self) -> None:
        assert read_card(INFO) == CARD

    @pytest.mark.parametrize("info", [None, [], "", 7, {}, {"safetensors": [], "gguf": 1, "cardData": "", "tags": {}}])
    def test_nothing_is_said(self, info: Any) -> None:
        assert read_card(info) == HubCard()

    @pytest.mark.parametrize("total", [-1, 1.5, 1e12, "7", True, None, [], MAX_TOTAL + 1])
    def test_a_total_that_is_none(self, total: Any) -> None:
        card = read_card({"safetensors": {"total": total, "parameters": {"BF16": total, "F32": 3}}})
        assert card == HubCard(safetensors_parameters=(("F32", 3),))

    @pytest.mark.parametrize("text", ["", 7, None, ["mit"], {"id": "mit"}, "x" * (MAX_TEXT + 1)])
    def test_a_text_that_is_none(self, text: Any) -> None:
        front = {"license": text, "license_name": text, "license_link": text}
        assert read_card({"cardData": front, "gguf": {"architecture": text}}) == HubCard()

    @pytest.mark.parametrize(
        ("front", "tags", "expected"),
        [
            ("a/b", [], ("a/b",)),
            (["a/b", "c/d", "a/b", 7, None, ""], [], ("a/b", "c/d")),
            (None, ["base_model:a/b", "base_model:merge:c/d", "base_model:", "license:mit", 7], ("a/b", "c/d")),
            ({"id": "a/b"}, "base_model:a/b", ()),
        ],
    )
    def test_base_models(self, front: Any, tags: Any, expected: tuple[str, ...]) -> None:
        assert read_card({"cardData": {"base_model": front}, "tags": tags}).base_models == expected

    def test_lists_that_are_too_long_are_cut(self) -> None:
        many = [f"a/{number}" for number in range(2 * MAX_ENTRIES)]
        parameters = dict.fromkeys(many, 1)
        card = read_card({"cardData": {"base_model": many}, "safetensors": {"parameters": parameters}})
        assert len(card.base_models) == len(card.safetensors_parameters) == MAX_ENTRIES


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def shaped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Answers of the form that is expected, with anything in any place."""
    leaf = inner | st.integers(0, 2**70) | st.text(max_size=5)
    parameters = st.dictionaries(st.text(max_size=5), leaf, max_size=3) | inner
    front = st.fixed_dictionaries(
        {}, optional={"license": leaf, "license_name": leaf, "base_model": leaf | st.lists(leaf, max_size=3)}
    )
    return st.fixed_dictionaries(
        {},
        optional={
            "safetensors": st.fixed_dictionaries({}, optional={"parameters": parameters, "total": leaf}) | inner,
            "gguf": st.fixed_dictionaries({}, optional={"total": leaf, "architecture": leaf}) | inner,
            "cardData": front | inner,
            "tags": st.lists(st.text(max_size=5).map("base_model:".__add__) | leaf, max_size=3) | inner,
        },
    )


@usual
@given(anything | shaped(anything))
def test_whatever_is_said_the_card_holds_only_what_it_should(info: Any) -> None:
    card = read_card(info)
    numbers = [card.safetensors_total, card.gguf_total, *(number for _, number in card.safetensors_parameters)]
    assert all(number is None or (type(number) is int and 0 <= number <= MAX_TOTAL) for number in numbers)
    texts = [card.license, card.license_name, card.license_link, card.gguf_architecture]
    names = [*card.base_models, *(name for name, _ in card.safetensors_parameters)]
    assert all(text is None or (type(text) is str and text) for text in texts)
    assert all(type(name) is str and name for name in names)
    assert len(set(card.base_models)) == len(card.base_models)
    assert hash(card) == hash(attrs.evolve(card))


@pytest.fixture
def carded(kimi: dict[str, HollowFile]) -> Iterator[LoopbackHub]:
    """A Hub that says something of the small Kimi."""
    with LoopbackHub([Repository(REPO, kimi, info=INFO)], tokens=[TOKEN]) as hub:
        yield hub


def retold(change: Callable[[Mapping[str, Any]], Any]) -> Fault:
    """Change what the Hub says of a model."""

    def changed(exchange: Exchange) -> Answer:
        info = json.loads(exchange.answer.body.read())
        return replace(exchange.answer, body=bytes_body(json.dumps(change(info)).encode()))

    return Fault("retold", changed, lambda answer: answer.kind == "info")


class TestAsking:
    def test_it_comes_with_the_commit(self, carded: LoopbackHub) -> None:
        repository = HubRepository(REPO, endpoint=carded.endpoint, token=TOKEN)
        repository.list_files()
        assert repository.card == CARD == repository.card
        assert len(carded.log) == repository.traffic.requests == LOOKS
        check_token(carded)

    def test_it_may_be_asked_for_before_the_commit(self, carded: LoopbackHub) -> None:
        repository = HubRepository(REPO, endpoint=carded.endpoint)
        assert repository.card == CARD
        repository.list_files()
        assert len(carded.log) == LOOKS

    def test_opening_costs_no_request_more(self, carded: LoopbackHub, kimi: dict[str, HollowFile]) -> None:
        open_checkpoint(REPO, endpoint=carded.endpoint)
        assert len(carded.log) == usual_requests(kimi)

    def test_of_a_pinned_commit_it_is_asked_once_and_only_when_wanted(self, carded: LoopbackHub) -> None:
        commit = HubRepository(REPO, endpoint=carded.endpoint).commit
        carded.clear_log()
        repository = HubRepository(REPO, revision=commit, endpoint=carded.endpoint)
        repository.list_files()
        assert len(carded.log) == LOOKS - 1
        assert repository.card == CARD == repository.card
        (asked,) = (one.target for one in carded.log if "/tree/" not in one.target)
        assert len(carded.log) == LOOKS
        assert asked.startswith(f"/api/models/{REPO}/revision/{commit}?expand=sha&expand=safetensors&")

    def test_a_hub_that_says_nothing(self, hub: LoopbackHub) -> None:
        assert HubRepository(REPO, endpoint=hub.endpoint).card == HubCard()

    @pytest.mark.parametrize("fault", [faults.refused("repo-missing"), retold(lambda _: []), retold(lambda _: {})])
    def test_of_a_pinned_commit_it_may_not_be_had(self, carded: LoopbackHub, fault: Fault) -> None:
        commit = HubRepository(REPO, endpoint=carded.endpoint).commit
        carded.play(fault, times=None)
        assert HubRepository(REPO, revision=commit, endpoint=carded.endpoint).card is None

    def test_what_is_said_of_another_commit_is_not_believed(self, carded: LoopbackHub) -> None:
        commit = HubRepository(REPO, endpoint=carded.endpoint).commit
        carded.play(retold(lambda info: {**info, "sha": "f" * 40}), times=None)
        assert HubRepository(REPO, revision=commit, endpoint=carded.endpoint).card is None

    def test_without_a_commit_there_is_no_repository(self, carded: LoopbackHub) -> None:
        with pytest.raises(RepositoryNotFoundError):
            _ = HubRepository("acme/none", endpoint=carded.endpoint).card
