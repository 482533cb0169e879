"""Repositories on the Hub: their listing, the commit that reads are pinned to, who hears the token, what it costs."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.checks import (
    CONFIG,
    LOOKS,
    REPO,
    SHARD,
    TOKEN,
    asked_for,
    check_numbers,
    check_secret,
    check_sums,
    check_token,
    usual_requests,
    weights,
)
from huggingface_hub import constants

from kimi_inspect import open_checkpoint
from kimi_inspect.errors import AuthenticationError, InvalidSourceError, KimiInspectError, TransportError
from kimi_inspect.remote import HubRepository
from kimi_inspect.remote_file import digest_of
from kimi_inspect.testing import (
    Fault,
    HollowFile,
    LoopbackHub,
    Repository,
    TensorSpec,
    faults,
    hollow_safetensors,
)
from kimi_inspect.testing.wire import Answer, bytes_body
from kimi_inspect.transport import MAX_TRIES

Files = dict[str, HollowFile]
Entries = list[dict[str, Any]]

SHARD_2 = "model-00002-of-000008.safetensors"


def relisted(change: Callable[[Entries], Any]) -> Fault:
    """Change what a listing says."""

    def changed(answer: Answer) -> Answer:
        entries = json.loads(answer.body.read())
        return replace(answer, body=bytes_body(json.dumps(change(entries)).encode()))

    return Fault("relisted", lambda exchange: changed(exchange.answer), lambda answer: answer.kind == "tree")


def linked(links: Iterable[str]) -> Fault:
    """Let the next page of a listing be at these addresses in turn; `{}` stands for the address of this one."""
    turns = iter(links)

    def change(exchange: faults.Exchange) -> Answer:
        here = f"http://{exchange.request.headers['host']}{exchange.request.target}"
        return exchange.answer.with_header("Link", next(turns).replace("{}", here))

    return Fault("linked", change, lambda answer: answer.kind == "tree")


class TestListing:
    @pytest.mark.parametrize("page_size", [1, 5, 11, 12])
    def test_pages(self, kimi: Files, page_size: int) -> None:
        with LoopbackHub([Repository(REPO, kimi)], page_size=page_size, tokens=[TOKEN]) as hub:
            checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
            check_numbers(checkpoint, kimi)
            pages = -(-len(kimi) // page_size)
            assert len(hub.log) == checkpoint.traffic.requests == usual_requests(kimi) - 1 + pages
            assert len([one for one in hub.log if "/tree/" in one.target]) == pages
            check_token(hub)

    def test_another_origin_gets_neither_request_nor_token(self, hub: LoopbackHub) -> None:
        hub.play(faults.foreign_next_link())
        with pytest.raises(TransportError, match="another server") as caught:
            open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
        assert not caught.value.retryable
        assert [one.origin for one in hub.log] == ["hub"] * LOOKS
        check_token(hub)
        check_secret(caught.value)

    def test_a_page_that_is_its_own_next(self, hub: LoopbackHub) -> None:
        hub.play(faults.endless_next_link(), times=None)
        with pytest.raises(TransportError, match="no end"):
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert len(hub.log) == LOOKS

    def test_pages_in_a_circle(self, hub: LoopbackHub) -> None:
        commit = HubRepository(REPO, endpoint=hub.endpoint).commit
        hub.clear_log()
        page = f'<{hub.endpoint}/api/models/{REPO}/tree/{commit}?limit={{}}>; rel="next"'
        hub.play(linked(itertools.cycle([page.format(1), page.format(2), page.format(3)])), times=None)
        with pytest.raises(TransportError, match="no end"):
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert len(hub.log) == LOOKS + 3

    def test_pages_without_end(self, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kimi_inspect.remote.MAX_PAGES", 5)
        hub.play(linked(f'<{{}}&again={number}>; rel="next"' for number in itertools.count()), times=None)
        with pytest.raises(TransportError, match="no end") as caught:
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert not caught.value.retryable
        assert len(hub.log) == LOOKS - 1 + 5

    @pytest.mark.parametrize(
        "form",
        [
            '{}; rel="next"',
            "{}; rel=next",
            '{} ;rel="next"',
            '<x>; rel="y", {}; rel="next"',
            '{}; rel="next", <x>; rel="y"',
            '{}; title="two"; rel="next"',
        ],
    )
    def test_forms_of_a_link(self, kimi: Files, form: str) -> None:
        def change(answer: Answer) -> Answer:
            link = re.match("<[^>]*>", answer.header("link") or "")
            return answer.with_header("Link", form.format(link[0])) if link else answer

        with LoopbackHub([Repository(REPO, kimi)], page_size=5) as hub:
            hub.play(Fault("form", lambda exchange: change(exchange.answer), lambda _: True), times=None)
            check_numbers(open_checkpoint(REPO, endpoint=hub.endpoint), kimi)

    @pytest.mark.parametrize("link", ["nonsense", "", '<{}>; rel="prev"', '<{}>; rel="nextish"', '<{}>; rev="next"'])
    def test_links_to_no_next_page(self, hub: LoopbackHub, kimi: Files, link: str) -> None:
        hub.play(linked([link]))
        check_numbers(open_checkpoint(REPO, endpoint=hub.endpoint), kimi)
        assert len(hub.log) == usual_requests(kimi)

    @pytest.mark.parametrize("link", ["http://[::1", "http://127.0.0.1:port/", "http://127.0.0.1:99999/", "file:///x"])
    def test_links_to_nowhere(self, hub: LoopbackHub, link: str) -> None:
        hub.play(linked([f'<{link}>; rel="next"']))
        with pytest.raises(TransportError):
            open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
        assert len(hub.log) == LOOKS

    @pytest.mark.parametrize(
        "change",
        [
            lambda _: None,
            lambda _: {"error": "no"},
            lambda _: [None],
            lambda _: ["x"],
            lambda _: [{}],
            lambda entries: [{**entries[0], "size": None}],
            lambda entries: [{**entries[0], "size": -1}],
            lambda entries: [{**entries[0], "size": True}],
            lambda entries: [{**entries[0], "size": "5"}],
            lambda entries: [{**entries[0], "size": 5.0}],
            lambda entries: [{**entries[0], "path": 5}],
            lambda entries: [{key: entries[0][key] for key in entries[0] if key != "path"}],
            lambda entries: [{**entries[-1], "lfs": [1]}],
            lambda entries: [{**entries[-1], "lfs": {"size": 1}}],
        ],
        ids=itertools.count(),
    )
    def test_what_is_no_listing(self, hub: LoopbackHub, change: Callable[[Entries], Any]) -> None:
        hub.play(relisted(change), times=None)
        with pytest.raises(TransportError, match="listing") as caught:
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert caught.value.file == REPO
        assert len(hub.log) == LOOKS

    @pytest.mark.parametrize("path", ["?expand=sha", "/tree/"])
    def test_a_web_page_for_an_answer(self, hub: LoopbackHub, path: str) -> None:
        page = Answer(200, (("Content-Type", "text/html"),), bytes_body(b"<!DOCTYPE html><html>"))
        hub.play(Fault("page", lambda _: page, lambda _: True), path=path, times=None)
        with pytest.raises(TransportError, match="JSON"):
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert len(hub.log) <= LOOKS

    @pytest.mark.parametrize("told", [b"{}", b"[]", b'{"sha": null}', b'{"sha": "main"}', b'{"sha": 7}', b"7"])
    def test_no_commit(self, hub: LoopbackHub, told: bytes) -> None:
        hub.play(Fault("told", lambda _: Answer(200, (), bytes_body(told)), lambda _: True))
        with pytest.raises(TransportError, match="commit"):
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert len(hub.log) == 1

    def test_a_file_that_is_listed_twice_is_one_file(self, hub: LoopbackHub, kimi: Files) -> None:
        # As when a page begins where the last one did not end.
        hub.play(relisted(lambda entries: [*entries, *entries[-3:]]))
        check_numbers(open_checkpoint(REPO, endpoint=hub.endpoint), kimi)

    def test_unknown_keys_are_passed_over(self, hub: LoopbackHub, kimi: Files) -> None:
        hub.play(relisted(lambda entries: [{**entry, "new": {"x": 1}} for entry in entries]))
        check_numbers(open_checkpoint(REPO, endpoint=hub.endpoint), kimi)


class TestListedSize:
    @pytest.mark.parametrize("by", [1, -1, 10**12, -1_325_149_295, -1_325_149_000])
    def test_another_than_the_files(self, hub: LoopbackHub, kimi: Files, by: int) -> None:
        hub.play(faults.wrong_listed_size(SHARD_2, by=by))
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        check_numbers(checkpoint, kimi)
        (finding,) = checkpoint.findings
        assert (finding.code, finding.severity, finding.file) == ("size-differs-from-listing", "error", SHARD_2)
        size = kimi[SHARD_2].size
        assert (finding.expected, finding.actual) == (size + by, size)
        assert len(asked_for(hub.log, SHARD_2)) <= 4

    @pytest.mark.parametrize("listed", [2_000, 5_000_000_000])
    def test_of_a_file_that_is_cut_inside_its_header(self, kimi: Files, listed: int) -> None:
        files = {**kimi, SHARD_2: kimi[SHARD_2].resized(2_000)}
        with LoopbackHub([Repository(REPO, files)]) as hub:
            hub.play(faults.wrong_listed_size(SHARD_2, by=listed - 2_000))
            checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        codes = {finding.code for finding in checkpoint.findings}
        assert codes == {"shard-unreadable"} | ({"size-differs-from-listing"} if listed != 2_000 else set())
        (shard,) = (shard for shard in checkpoint.shards if shard.path == SHARD_2)
        assert shard.unread_bytes == shard.file_bytes == 2_000
        check_sums(checkpoint)


class TestCommit:
    def test_a_branch_that_moves(self, hub: LoopbackHub, kimi: Files) -> None:
        commit = HubRepository(REPO, endpoint=hub.endpoint).commit
        hub.clear_log()
        other: Files = {"model.safetensors": hollow_safetensors([TensorSpec("a.weight", "U8", (4,))])}
        hub.play(faults.moved_branch(other))
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        check_numbers(checkpoint, kimi)
        assert (checkpoint.commit, checkpoint.findings) == (commit, ())
        assert len(hub.log) == usual_requests(kimi)
        assert all(commit in one.target for one in hub.log if "/tree/" in one.target or "/resolve" in one.target)
        later = open_checkpoint(REPO, endpoint=hub.endpoint)
        assert later.commit != commit
        check_numbers(later, other)

    def test_a_commit_is_not_asked_for(self, hub: LoopbackHub, kimi: Files) -> None:
        commit = HubRepository(REPO, endpoint=hub.endpoint).commit
        hub.clear_log()
        checkpoint = open_checkpoint(f"{REPO}@{commit}", endpoint=hub.endpoint)
        check_numbers(checkpoint, kimi)
        assert checkpoint.commit == commit
        assert len(hub.log) == usual_requests(kimi) - 1

    @pytest.mark.parametrize("revision", ["main", "v1", "refs/pr/1", "short"])
    def test_a_revision(self, kimi: Files, revision: str) -> None:
        with LoopbackHub([Repository(REPO, kimi, tags=("v1", "refs/pr/1"))]) as hub:
            commit = HubRepository(REPO, endpoint=hub.endpoint).commit
            name = commit[:8] if revision == "short" else revision
            checkpoint = open_checkpoint(f"{REPO}@{name}", endpoint=hub.endpoint)
        assert (checkpoint.commit, checkpoint.source) == (commit, f"{REPO}@{name}")
        check_numbers(checkpoint, kimi)

    def test_a_config_of_another_commit_is_not_believed(self, hub: LoopbackHub, kimi: Files) -> None:
        hub.play(faults.wrong_commit(), path="config.json")
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        assert [finding.code for finding in checkpoint.findings] == ["config-unreadable"]
        assert checkpoint.config is None
        check_numbers(checkpoint, kimi)

    def test_addresses_are_pinned_and_unsigned(self, hub: LoopbackHub) -> None:
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        for shard in checkpoint.shards:
            assert shard.url == f"{hub.endpoint}/{REPO}/resolve/{checkpoint.commit}/{shard.path}"


class TestDigests:
    def test_a_stranger_to_a_gated_repository_sees_none(self, kimi: Files) -> None:
        with LoopbackHub([Repository(REPO, kimi, gated=True)], tokens=[TOKEN]) as hub:
            strange = HubRepository(REPO, endpoint=hub.endpoint).list_files()
            known = HubRepository(REPO, endpoint=hub.endpoint, token=TOKEN).list_files()
        assert {file.sha256 for file in strange} == {None}
        assert {file.path: file.sha256 for file in known if file.sha256} == {
            path: file.sha256 for path, file in weights(kimi).items()
        }
        assert [(file.path, file.size) for file in strange] == [(file.path, file.size) for file in known]

    def test_a_masked_one_is_no_mismatch(self, hub: LoopbackHub, kimi: Files) -> None:
        def mask(entries: Entries) -> Entries:
            return [
                {**entry, "lfs": {**entry["lfs"], "oid": "*" * 64}} if "lfs" in entry else entry for entry in entries
            ]

        hub.play(relisted(mask))
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        check_numbers(checkpoint, kimi)
        assert {shard.sha256 for shard in checkpoint.shards} == {None}
        assert checkpoint.findings == ()

    @pytest.mark.parametrize(
        ("etag", "digest"),
        [
            (f'"{"a" * 64}"', "a" * 64),
            (f'W/"{"a" * 64}"', "a" * 64),
            ("a" * 64, "a" * 64),
            (f'"{"a" * 40}"', None),
            (f'"{"A" * 64}"', None),
            (f'"{"a" * 64}-1"', None),
            (f'"{"*" * 64}"', None),
            ("", None),
            (None, None),
        ],
    )
    def test_in_an_etag(self, hub: LoopbackHub, kimi: Files, etag: str | None, digest: str | None) -> None:
        assert digest_of(etag) == digest
        hub.play(faults.with_header("X-Linked-ETag", etag), path=SHARD_2, origin="hub")
        checkpoint = open_checkpoint(REPO, endpoint=hub.endpoint)
        if digest is None:
            check_numbers(checkpoint, kimi)
        else:
            assert [finding.code for finding in checkpoint.findings] == ["shard-unreadable"]


class TestWhereAnswersCome:
    def test_a_renamed_repository(self, kimi: Files) -> None:
        with LoopbackHub([Repository(REPO, kimi, renamed_from="old/Name")], tokens=[TOKEN]) as hub:
            checkpoint = open_checkpoint("old/Name", endpoint=hub.endpoint, token=TOKEN)
            check_numbers(checkpoint, kimi)
            assert checkpoint.findings == ()
            # One hop more for each thing asked of the Hub.
            expected = 2 * LOOKS + (CONFIG + 1) + len(weights(kimi)) * (SHARD + 1)
            assert len(hub.log) == checkpoint.traffic.requests == expected
            check_token(hub)

    def test_a_mirror_that_sends_everybody_on(self, hub: LoopbackHub, kimi: Files) -> None:
        with LoopbackHub(tokens=[TOKEN]) as mirror:
            mirror.play(faults.redirected(hub.endpoint), times=None)
            checkpoint = open_checkpoint(REPO, endpoint=mirror.endpoint, token=TOKEN)
            check_numbers(checkpoint, kimi)
            assert checkpoint.traffic.requests == len(mirror.log) + len(hub.log)
            assert len(hub.log) == usual_requests(kimi)
            check_token(mirror)
        # The token was the mirror's to hear, and nobody else's.
        assert {one.authorization for one in hub.log} == {None}

    @pytest.mark.usefixtures("pauses")
    def test_the_hub_sends_to_another_origin(self, hub: LoopbackHub) -> None:
        hub.play(faults.redirected(hub.cdn_origin), times=None, origin="hub")
        with pytest.raises(KimiInspectError) as caught:
            open_checkpoint(REPO, endpoint=hub.endpoint, token=TOKEN)
        assert {(one.origin, one.authorization) for one in hub.log} == {("hub", f"Bearer {TOKEN}"), ("cdn", None)}
        check_secret(caught.value)


class TestWhichToken:
    @pytest.fixture
    def saved(self, clean_environment: Path) -> str:
        clean_environment.mkdir(parents=True, exist_ok=True)
        Path(constants.HF_TOKEN_PATH).write_text("hf_saved")
        return "hf_saved"

    def heard(self, token: str | bool | None) -> str | None:
        with LoopbackHub([Repository(REPO, {})], tokens=["hf_saved", "hf_set", "hf_given"]) as hub:
            assert HubRepository(REPO, endpoint=hub.endpoint, token=token).list_files() == ()
            (heard,) = {one.authorization for one in hub.log}
        return heard

    @pytest.mark.parametrize(("token", "heard"), [(None, "hf_saved"), (True, "hf_saved"), (False, None)])
    def test_the_saved_one(self, saved: str, token: bool | None, heard: str | None) -> None:
        assert saved
        assert self.heard(token) == (heard and f"Bearer {heard}")

    @pytest.mark.parametrize("token", [None, False, "hf_given"])
    def test_none_is_saved(self, token: str | bool | None) -> None:
        assert self.heard(token) == (f"Bearer {token}" if isinstance(token, str) else None)

    def test_one_is_wanted_and_none_is_saved(self) -> None:
        with pytest.raises(AuthenticationError, match="hf auth login"):
            HubRepository(REPO, token=True)

    def test_the_variable_and_the_argument_come_first(self, saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert saved
        monkeypatch.setenv("HF_TOKEN", "hf_set")
        assert self.heard(None) == "Bearer hf_set"
        assert self.heard("hf_given") == "Bearer hf_given"

    def test_the_saved_one_only_on_request(self, saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
        assert saved
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        assert self.heard(None) is None
        assert self.heard(token=True) == "Bearer hf_saved"

    @pytest.mark.parametrize("end", ["\n", "\0", "\u00e9", "\ud800", " x"])
    def test_one_that_no_header_can_hold_is_not_shown(
        self, hub: LoopbackHub, pauses: list[float], caplog: pytest.LogCaptureFixture, end: str
    ) -> None:
        with pytest.raises(KimiInspectError) as caught:
            open_checkpoint("acme/none", endpoint=hub.endpoint, token=TOKEN + end)
        check_secret(caught.value)
        assert TOKEN not in caplog.text
        assert len(hub.log) + len(pauses) <= MAX_TRIES

    @pytest.mark.parametrize(
        ("endpoint", "token", "warns"),
        [
            ("http://mirror.example", "hf_given", True),
            ("http://192.0.2.1:8080/x", "hf_given", True),
            ("http://mirror.example", False, False),
            ("https://mirror.example", "hf_given", False),
            ("http://127.0.0.1:8080", "hf_given", False),
            ("http://localhost", "hf_given", False),
            ("http://[::1]:80", "hf_given", False),
        ],
    )
    def test_it_does_not_go_in_clear_text_unsaid(self, endpoint: str, token: str | bool, warns: bool) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            HubRepository(REPO, endpoint=endpoint, token=token)
        said = [str(warning.message) for warning in caught]
        assert len(said) == warns
        assert all("clear text" in text and "https" in text for text in said)
        assert not [text for text in said if "hf_given" in text]

    def test_an_endpoint_holds_no_password(self) -> None:
        with pytest.raises(InvalidSourceError, match="HF_ENDPOINT") as caught:
            HubRepository(REPO, endpoint="https://user:word@mirror.example")
        assert "word@" not in f"{caught.value} {caught.value!r} {vars(caught.value)}"
