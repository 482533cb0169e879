"""Repositories on ModelScope: the same numbers as from the Hub, a listing that is never cut, a token that stays."""

from __future__ import annotations

import itertools
import json
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts import file_store
from contracts.checks import CONFIG, REPO, SHARD, answering, check_numbers, check_secret, check_sums, moved, weights
from contracts.file_store import FileStoreContract
from huggingface_hub import constants
from huggingface_hub.utils import get_session
from hypothesis import given, settings
from hypothesis import strategies as st

import kimi_inspect as ki
from kimi_inspect import open_checkpoint, read_ranges
from kimi_inspect.errors import (
    AuthenticationError,
    InvalidSourceError,
    KimiInspectError,
    NoCheckpointError,
    OfflineError,
    RangeNotSupportedError,
    RateLimitedError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SourceFileNotFoundError,
    TransportError,
    UnsafePathError,
)
from kimi_inspect.http_status import MAX_SKIP
from kimi_inspect.locating import locate
from kimi_inspect.modelscope import ModelScopeRepository
from kimi_inspect.opening import list_sets
from kimi_inspect.sources import FileStore
from kimi_inspect.testing import (
    Fault,
    Files,
    HollowFile,
    LoopbackHub,
    LoopbackModelScope,
    Repository,
    Served,
    TensorSpec,
    faults,
    hollow_safetensors,
    kimi_k31_pro,
)
from kimi_inspect.testing.modelscope import LISTED_AT_MOST
from kimi_inspect.testing.wire import Answer, bytes_body

SOURCE = f"ms://{REPO}"
TOKEN = "ms-WordThatNobodyElseMayHear"
COOKIE = f"m_session_id={TOKEN}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BRANCHES = ("v1", "refs/pr/1", "a#b%2F")
SHARD_2 = "model-00002-of-000007.safetensors"
USUAL = 1 + (CONFIG - 1)
"""Requests before a shard is read: the listing, and config.json, which the site sends itself."""

Entries = list[dict[str, Any]]


@pytest.fixture(scope="module")
def kimi() -> dict[str, HollowFile]:
    return kimi_k31_pro(layers=4, experts=4)


@pytest.fixture
def site(kimi: dict[str, HollowFile]) -> Iterator[LoopbackModelScope]:
    """A ModelScope that holds the small Kimi, public, at some branches and a commit, and knows one good token."""
    with LoopbackModelScope({REPO: kimi}, tokens=[TOKEN], revisions=[COMMIT, *BRANCHES]) as site:
        yield site


@pytest.fixture
def closed(kimi: dict[str, HollowFile]) -> Iterator[LoopbackModelScope]:
    """The same, private."""
    with LoopbackModelScope({REPO: kimi}, tokens=[TOKEN], private=[REPO]) as site:
        yield site


def told(change: Callable[[dict[str, Any]], Any]) -> Fault:
    """Change what an answer of the API says."""

    def changed(answer: Answer) -> Answer:
        return replace(answer, body=bytes_body(json.dumps(change(json.loads(answer.body.read()))).encode()))

    return Fault("told", lambda exchange: changed(exchange.answer), lambda answer: answer.kind == "tree")


def relisted(change: Callable[[Entries], Any]) -> Fault:
    """Change the entries of a listing."""
    return told(lambda said: {**said, "Data": {"Files": change(said["Data"]["Files"])}})


def changed(path: str, **values: Any) -> Fault:
    """Change what is listed of one file."""
    return relisted(lambda entries: [entry | values if entry["Path"] == path else entry for entry in entries])


def heard_by(log: Collection[Served], origin: str) -> set[tuple[str | None, str | None]]:
    """Return the credentials that one side has heard: the header and the cookie."""
    return {(one.authorization, one.cookie) for one in log if one.origin == origin}


def check_token(site: LoopbackModelScope, token: str | None = TOKEN) -> None:
    """See that the site got the token with every request, both ways, and the store never did."""
    assert heard_by(site.log, "site") == {(f"Bearer {token}", f"m_session_id={token}") if token else (None, None)}
    assert heard_by(site.log, "store") <= {(None, None)}


def listings(site: LoopbackModelScope) -> list[str]:
    return [one.target for one in site.log if "/repo/files" in one.target]


class TestFileStore(FileStoreContract):
    @pytest.fixture
    def make(self) -> Iterator[file_store.Make]:
        with ExitStack() as servers:

            def make(files: Mapping[str, bytes]) -> FileStore:
                site = servers.enter_context(LoopbackModelScope({"acme/tiny": files}))
                return ModelScopeRepository("acme/tiny", endpoint=site.endpoint)

            yield make


class TestTheSameAsTheHub:
    def test_the_report(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        with LoopbackHub([Repository(REPO, kimi)]) as hub:
            there = ki.inspect(REPO, endpoint=hub.endpoint).to_dict()
        here = ki.inspect(SOURCE, endpoint=site.endpoint).to_dict()
        assert (here["source"], here["commit"], here["findings"]) == (SOURCE, None, [])
        for own in ("source", "commit", "traffic"):
            del here[own], there[own]
        for report, base in ((here, f"{site.endpoint}/models/"), (there, f"{hub.endpoint}/")):
            for file in report["files"]:
                assert (
                    re.sub("[0-9a-f]{40}|master", "REV", file.pop("url")) == f"{base}{REPO}/resolve/REV/{file['path']}"
                )
        assert here == there

    def test_the_checkpoint(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        with LoopbackHub([Repository(REPO, kimi)]) as hub:
            there = open_checkpoint(REPO, endpoint=hub.endpoint)
        here = open_checkpoint(SOURCE, endpoint=site.endpoint)
        check_numbers(here, kimi)
        assert list(here.tensors) == list(there.tensors)
        for what in ("config", "metadata", "family", "set_name", "findings", "complete", "companions"):
            assert getattr(here, what) == getattr(there, what)
        assert [shard.sha256 for shard in here.shards] == [shard.sha256 for shard in there.shards]

    def test_what_it_costs(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert len(site.log) == checkpoint.traffic.requests == USUAL + SHARD * len(weights(kimi))
        assert {one.status for one in site.log} == {200, 302, 206}

    def test_its_index_is_compared(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint, check_index=True)
        assert checkpoint.findings == ()
        assert [one.status for one in site.log if "index.json" in one.target] == [200]
        without = {**kimi, "model.safetensors.index.json": HollowFile(b'{"weight_map": {"x": "y.safetensors"}}')}
        with LoopbackModelScope({REPO: without}) as other:
            assert open_checkpoint(SOURCE, endpoint=other.endpoint, check_index=True).findings

    def test_headers_are_kept(
        self,
        site: LoopbackModelScope,
        kimi: dict[str, HollowFile],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        monkeypatch.setattr("kimi_inspect.opening.cache_folder", lambda: tmp_path)
        open_checkpoint(SOURCE, endpoint=site.endpoint)
        site.clear_log()
        check_numbers(open_checkpoint(SOURCE, endpoint=site.endpoint), kimi)
        assert len(site.log) == USUAL

    def test_a_set_of_several(self) -> None:
        one, two = (hollow_safetensors([TensorSpec(name, "U8", (4,))]) for name in ("one.weight", "two.weight"))
        with LoopbackModelScope({"a/b": {"x/model.safetensors": one, "y/model.safetensors": two}}) as site:
            names = [found.name for found in list_sets("ms://a/b", endpoint=site.endpoint).sets]
            opened = [open_checkpoint(f"ms://a/b:{name}", endpoint=site.endpoint) for name in names]
        assert [checkpoint.tensors[0].name for checkpoint in opened] == ["one.weight", "two.weight"]


class TestForms:
    @pytest.mark.parametrize(
        ("source", "name", "set_name", "commit"),
        [
            ("ms://a/b", "ms://a/b", None, None),
            ("MS://a/b", "ms://a/b", None, None),
            ("ms://a/b@v1", "ms://a/b@v1", None, None),
            ("ms://a/b@refs/pr/1", "ms://a/b@refs/pr/1", None, None),
            (f"ms://a/b@{COMMIT}", f"ms://a/b@{COMMIT}", None, COMMIT),
            (f"ms://a/b@{COMMIT[:8]}", f"ms://a/b@{COMMIT[:8]}", None, None),
            ("ms://a/b:UD-Q4_K_XL", "ms://a/b", "UD-Q4_K_XL", None),
            ("ms://a/b@v1:sub/model", "ms://a/b@v1", "sub/model", None),
            ("ms://AI-ModelScope/x_1.5-b", "ms://AI-ModelScope/x_1.5-b", None, None),
        ],
    )
    def test_of_a_source(self, source: str, name: str, set_name: str | None, commit: str | None) -> None:
        location = locate(source)
        assert isinstance(location.store, ModelScopeRepository)
        assert (location.store.source, location.set_name, location.store.commit) == (name, set_name, commit)
        assert location.store.origin == "https://modelscope.cn"

    @pytest.mark.parametrize(
        "source",
        [
            *("ms://", "ms://a", "ms://a/b/c", "ms://a/b@", "ms://a/b:", "ms://a/b@x y", "ms:///b", "ms://a/.."),
            *("ms://./b", "ms://a/b?x", "ms://a/b#x", "ms://a%2F../b", "ms://a\\b/c", "ms://user:pass@a/b"),
            *("ms://a/b@..", "ms://a/b@x/../y", "ms://a/b@/x", "ms://a/b@x?y", "ms://a/b@x\\y", "ms://a/b@x~1"),
        ],
    )
    def test_of_none(self, source: str) -> None:
        with pytest.raises(InvalidSourceError) as caught:
            locate(source)
        assert "pass" not in str(caught.value)

    def test_the_advice_names_it(self) -> None:
        with pytest.raises(InvalidSourceError, match="ms://"):
            locate("nothing")

    @pytest.mark.parametrize("source", ["ms://a/b@v1", "ms://a/b"])
    def test_a_revision_beside_it(self, source: str) -> None:
        assert locate(source, revision="v1").store.source == "ms://a/b@v1"

    @pytest.mark.parametrize(("revision", "words"), [("v1", "two revisions"), ("v2\n", "such characters")])
    def test_a_revision_that_cannot_be(self, revision: str, words: str) -> None:
        with pytest.raises(InvalidSourceError, match=words):
            locate("ms://a/b@v2" if revision == "v1" else "ms://a/b", revision=revision)

    @pytest.mark.parametrize("endpoint", ["modelscope.cn", "ftp://x", "http://[::1", "https://user:word@x.example"])
    def test_an_endpoint_that_is_none(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", endpoint)
        with pytest.raises(InvalidSourceError, match="MODELSCOPE_ENDPOINT") as caught:
            locate("ms://a/b")
        assert "word@" not in f"{caught.value}"

    def test_the_endpoint_of_the_environment_and_the_one_given(
        self, site: LoopbackModelScope, kimi: dict[str, HollowFile], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", site.endpoint + "/")
        check_numbers(open_checkpoint(SOURCE), kimi)
        assert locate(SOURCE).store.origin == site.endpoint
        assert locate(SOURCE, endpoint="https://www.modelscope.ai").store.origin == "https://www.modelscope.ai"

    def test_offline(self, site: LoopbackModelScope, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(OfflineError, match=r"nothing of ModelScope.*HF_HUB_OFFLINE") as caught:
            open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert caught.value.file == SOURCE
        assert site.log == ()


class TestRevision:
    def test_a_commit(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        checkpoint = open_checkpoint(f"{SOURCE}@{COMMIT}", endpoint=site.endpoint)
        check_numbers(checkpoint, kimi)
        assert (checkpoint.commit, checkpoint.source) == (COMMIT, f"{SOURCE}@{COMMIT}")
        assert all(COMMIT in one.target for one in site.log if one.origin == "site")

    @pytest.mark.parametrize("revision", BRANCHES)
    def test_a_branch(self, site: LoopbackModelScope, kimi: dict[str, HollowFile], revision: str) -> None:
        checkpoint = open_checkpoint(SOURCE, revision=revision, endpoint=site.endpoint)
        check_numbers(checkpoint, kimi)
        assert (checkpoint.commit, checkpoint.source, checkpoint.findings) == (None, f"{SOURCE}@{revision}", ())

    @pytest.mark.parametrize("revision", ["main", "zzz", "v+1", "f" * 40])
    def test_one_that_there_is_not(self, site: LoopbackModelScope, revision: str) -> None:
        with pytest.raises(RevisionNotFoundError) as caught:
            open_checkpoint(SOURCE, revision=revision, endpoint=site.endpoint)
        assert caught.value.file == f"{SOURCE}@{revision}"
        assert len(site.log) == 1

    @pytest.mark.parametrize("files", [None, []])
    def test_an_empty_listing_is_no_empty_repository(self, site: LoopbackModelScope, files: list[Any] | None) -> None:
        site.play(relisted(lambda _: files))
        with pytest.raises(RevisionNotFoundError, match="master"):
            open_checkpoint(SOURCE, endpoint=site.endpoint)

    def test_a_repository_without_weights(self) -> None:
        with LoopbackModelScope({"a/b": {"README.md": b"x"}}) as site, pytest.raises(NoCheckpointError):
            open_checkpoint("ms://a/b", endpoint=site.endpoint)


def spread(count: int, folder: str = "") -> dict[str, bytes]:
    return {f"{folder}{number:04}.txt": b"" for number in range(count)}


class TestTheCap:
    def listed(self, site: LoopbackModelScope) -> list[str]:
        return [file.path for file in ModelScopeRepository("a/b", endpoint=site.endpoint).list_files()]

    def test_below_it_one_listing_tells_all(self) -> None:
        files = spread(LISTED_AT_MOST - 2, "x/")  # and the folder itself
        with LoopbackModelScope({"a/b": files}) as site:
            assert self.listed(site) == sorted(files)
            assert len(site.log) == 1

    @pytest.mark.parametrize("more", [0, 1, 500])
    def test_from_it_on_folders_are_walked(self, more: int) -> None:
        files = spread(10) | spread(1500, "x/") | spread(LISTED_AT_MOST - 1512 + more, "y y/")
        with LoopbackModelScope({"a/b": files}) as site:
            assert self.listed(site) == sorted(files)
            roots = [re.search("Recursive=(True|False)(?:&Root=(.*))?", target) for target in listings(site)]
        assert {found.groups() for found in roots if found} == {
            ("True", None),
            ("False", None),
            ("True", "x"),
            ("True", "y+y"),
        }

    def test_a_folder_at_the_cap_is_walked_deeper(self) -> None:
        files = spread(2000, "x/y/z/") | spread(2000, "x/y/") | spread(2000, "x/") | spread(5, "w/")
        with LoopbackModelScope({"a/b": files}) as site:
            assert self.listed(site) == sorted(files)

    @pytest.mark.parametrize("folder", ["", "x/", "x/y/"])
    def test_a_folder_that_no_listing_holds(self, folder: str) -> None:
        files = spread(LISTED_AT_MOST, folder) | spread(5, "w/")
        with LoopbackModelScope({"a/b": files}) as site, pytest.raises(TransportError, match="missed") as caught:
            self.listed(site)
        assert not caught.value.retryable
        assert f"'{folder.rstrip('/') or '.'}'" in str(caught.value)

    def test_weights_behind_it(self, kimi: dict[str, HollowFile]) -> None:
        files: Files = {**spread(2000, "a/"), **spread(1500, "b/"), **kimi}
        with LoopbackModelScope({REPO: files}) as site:
            check_numbers(open_checkpoint(SOURCE, endpoint=site.endpoint), kimi)
            assert len(listings(site)) == 4

    @pytest.mark.parametrize(
        "change",
        [
            lambda _: None,
            lambda entries: [{**entry, "Path": entry["Name"]} for entry in entries],
            lambda entries: [{**entry, "Path": f"xx/{entry['Name']}"} for entry in entries],
        ],
        ids=["empty", "of the root", "of a neighbour"],
    )
    def test_a_folder_whose_listing_is_of_another(self, change: Callable[[Entries], Any]) -> None:
        with LoopbackModelScope({"a/b": spread(2000, "x/") | spread(2000, "y/")}) as site:
            site.play(relisted(change), path="Root=x")
            with pytest.raises(TransportError, match="listing"):
                self.listed(site)

    def test_folders_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def deeper(exchange: faults.Exchange) -> Answer:
            query = exchange.request.query
            root = query.get("Root", [""])[0]
            path = f"{root}/x".lstrip("/")
            folder = {"Path": path, "Type": "tree"}
            entries = [folder] if query["Recursive"] == ["False"] else [folder, {**folder, "Path": f"{path}/x"}]
            listing = {"Code": 200, "Success": True, "Data": {"Files": entries}}
            return replace(exchange.answer, body=bytes_body(json.dumps(listing).encode()))

        monkeypatch.setattr("kimi_inspect.modelscope.MAX_LISTED", 2)
        monkeypatch.setattr("kimi_inspect.modelscope.MAX_FOLDERS", 7)
        with LoopbackModelScope({"a/b": {"x": b""}}) as site:
            site.play(Fault("deeper", deeper, lambda answer: answer.kind == "tree"), times=None)
            with pytest.raises(TransportError, match="no end"):
                self.listed(site)
            assert len(site.log) == 2 * 7


folders = st.lists(st.sampled_from(["d", "e", "d e"]), max_size=3).map(
    lambda parts: "".join(f"{part}/" for part in parts)
)
paths = st.builds("{}{}".format, folders, st.sampled_from(["0", "1", "2", "é"]))


@settings(deadline=None, max_examples=40)
@given(st.sets(paths, min_size=1, max_size=30), st.integers(2, 12))
def test_a_listing_is_whole_or_refused(tree: set[str], cap: int) -> None:
    """Whatever the tree and the cap: all files are told, or some folder has too many entries of its own."""
    entries = tree | {path[:at] for path in tree for at, char in enumerate(path) if char == "/"}
    own = [path.rpartition("/")[0] for path in entries]
    too_full = any(own.count(folder) >= cap for folder in own)
    with (
        pytest.MonkeyPatch.context() as patch,
        LoopbackModelScope({"a/b": dict.fromkeys(tree, b"")}, listed_at_most=cap) as site,
    ):
        patch.setattr("kimi_inspect.modelscope.MAX_LISTED", cap)
        store = ModelScopeRepository("a/b", endpoint=site.endpoint)
        if too_full:
            with pytest.raises(TransportError, match="missed"):
                store.list_files()
        else:
            assert [file.path for file in store.list_files()] == sorted(tree)


class TestDigests:
    def test_every_file_has_one(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        listed = ModelScopeRepository(REPO, endpoint=site.endpoint).list_files()
        assert {file.path: (file.size, file.sha256) for file in listed} == {
            path: (file.size, file.sha256) for path, file in kimi.items()
        }

    @pytest.mark.parametrize(
        ("digest", "read"),
        [("AB" * 32, "ab" * 32), ("ab" * 31, None), ("ab" * 33, None), ("xy" * 32, None), ("", None), (None, None)],
    )
    def test_forms(self, site: LoopbackModelScope, digest: str | None, read: str | None) -> None:
        site.play(changed(SHARD_2, Sha256=digest))
        listed = ModelScopeRepository(REPO, endpoint=site.endpoint).list_files()
        assert [file.sha256 for file in listed if file.path == SHARD_2] == [read]

    def test_no_digest_at_all(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        site.play(relisted(lambda entries: [{k: v for k, v in entry.items() if k != "Sha256"} for entry in entries]))
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        check_numbers(checkpoint, kimi)
        assert {shard.sha256 for shard in checkpoint.shards} == {None}

    def test_a_shard_that_has_changed_since(self, site: LoopbackModelScope) -> None:
        site.play(changed(SHARD_2, Sha256="ab" * 32))
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert [(finding.code, finding.file) for finding in checkpoint.findings] == [("shard-unreadable", SHARD_2)]
        check_sums(checkpoint)

    def test_a_config_that_has_changed_since(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        site.play(answering(lambda answer: replace(answer, body=bytes_body(b"{}"))), path="config.json")
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert [finding.code for finding in checkpoint.findings] == ["config-unreadable"]
        assert checkpoint.config is None
        check_numbers(checkpoint, kimi)


class TestToken:
    @pytest.fixture(autouse=True)
    def tokens_of_the_hub(self, clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let tokens of the Hub lie about, which are not for ModelScope."""
        clean_environment.mkdir(parents=True, exist_ok=True)
        Path(constants.HF_TOKEN_PATH).write_text("hf_saved")
        monkeypatch.setenv("HF_TOKEN", "hf_set")

    @pytest.mark.parametrize(
        ("token", "variable", "heard"),
        [
            (None, None, None),
            (None, "", None),
            (None, "ms-set", "ms-set"),
            (None, "ms-set\n", "ms-set"),
            (True, "ms-set", "ms-set"),
            (False, "ms-set", None),
            ("ms-given", None, "ms-given"),
            ("ms-given", "ms-set", "ms-given"),
        ],
    )
    def test_which(
        self,
        site: LoopbackModelScope,
        monkeypatch: pytest.MonkeyPatch,
        token: str | bool | None,
        variable: str | None,
        heard: str | None,
    ) -> None:
        if variable is not None:
            monkeypatch.setenv("MODELSCOPE_API_TOKEN", variable)
        open_checkpoint(SOURCE, endpoint=site.endpoint, token=token)
        check_token(site, heard)

    @pytest.mark.parametrize("variable", [None, "", " "])
    def test_one_is_wanted_and_none_is_set(self, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
        if variable is not None:
            monkeypatch.setenv("MODELSCOPE_API_TOKEN", variable)
        with pytest.raises(AuthenticationError, match="MODELSCOPE_API_TOKEN"):
            locate(SOURCE, token=True)

    @pytest.mark.parametrize("end", ["\n", "\0", "\u00e9", " x", "; x=y", ",", '"'])
    def test_one_that_no_header_or_cookie_can_hold(self, site: LoopbackModelScope, end: str) -> None:
        with pytest.raises(AuthenticationError) as caught:
            open_checkpoint(SOURCE, endpoint=site.endpoint, token=TOKEN + end)
        check_secret(caught.value, TOKEN)
        assert site.log == ()

    def test_the_hub_never_hears_it(self, kimi: dict[str, HollowFile], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MODELSCOPE_API_TOKEN", TOKEN)
        with LoopbackHub([Repository(REPO, kimi)], tokens=["hf_set"]) as hub:
            open_checkpoint(REPO, endpoint=hub.endpoint)
        assert {one.authorization for one in hub.log if one.origin == "hub"} == {"Bearer hf_set"}

    @pytest.mark.parametrize("fault", [None, faults.unavailable(), faults.rate_limited(retry_after=1)])
    def test_it_opens_what_is_private(
        self, closed: LoopbackModelScope, kimi: dict[str, HollowFile], pauses: list[float], fault: Fault | None
    ) -> None:
        if fault:
            closed.play(fault, times=3)
        checkpoint = open_checkpoint(SOURCE, endpoint=closed.endpoint, token=TOKEN)
        check_numbers(checkpoint, kimi)
        check_token(closed)
        check_secret(checkpoint, TOKEN)
        assert len(pauses) == (3 if fault else 0)

    @pytest.mark.parametrize("token", [None, "ms-other"])
    def test_nothing_else_does(self, closed: LoopbackModelScope, token: str | None) -> None:
        with pytest.raises(RepositoryNotFoundError, match="token of ModelScope's") as caught:
            open_checkpoint(SOURCE, endpoint=closed.endpoint, token=token)
        assert len(closed.log) == 1
        check_secret(caught.value, token or "hf_set")

    @pytest.mark.parametrize("how", ["header", "cookie"])
    def test_either_way_of_sending_it_would_do(
        self, closed: LoopbackModelScope, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hold the double that these tests rest on: it takes the token from one as well as from the other."""
        headers = {"authorization": f"Bearer {TOKEN}"} if how == "header" else {"cookie": f"a=b; {COOKIE}"}
        monkeypatch.setattr(
            "kimi_inspect.transport.Transport._credentials",
            lambda _, url: headers if url.startswith(closed.endpoint) else {},
        )
        assert open_checkpoint(SOURCE, endpoint=closed.endpoint).complete

    def test_a_cookie_that_the_site_sets_goes_nowhere(
        self, site: LoopbackModelScope, kimi: dict[str, HollowFile]
    ) -> None:
        site.play(faults.with_header("Set-Cookie", f"{COOKIE}; Path=/"), times=None, origin="site")
        try:
            check_numbers(open_checkpoint(SOURCE, endpoint=site.endpoint, token=TOKEN), kimi)
            check_token(site)
            site.clear_log()
            check_numbers(open_checkpoint(SOURCE, endpoint=site.endpoint, token=False), kimi)
            check_token(site, None)
        finally:
            get_session().cookies.clear()

    def test_a_site_that_sends_everybody_on(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        with LoopbackModelScope({}) as first:
            first.play(faults.redirected(site.endpoint), times=None)
            check_numbers(open_checkpoint(SOURCE, endpoint=first.endpoint, token=TOKEN), kimi)
            check_token(first)
        check_token(site, None)

    @pytest.mark.parametrize(
        "said",
        [
            {"Code": 500, "Success": False, "Message": f"bad token {TOKEN}"},
            {"Code": TOKEN, "Success": False},
            {"Data": TOKEN},
            TOKEN,
        ],
        ids=itertools.count(),
    )
    def test_an_answer_that_repeats_it_is_not_shown(self, site: LoopbackModelScope, said: Any) -> None:
        site.play(told(lambda _: said))
        with pytest.raises(TransportError) as caught:
            open_checkpoint(SOURCE, endpoint=site.endpoint, token=TOKEN)
        check_secret(caught.value, TOKEN)

    def test_no_log_holds_it(
        self,
        closed: LoopbackModelScope,
        kimi: dict[str, HollowFile],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        # The client library then logs each request with all its headers, and would propagate to this handler.
        monkeypatch.setattr(constants, "HF_DEBUG", True)
        monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
        caplog.set_level(logging.DEBUG)
        caplog.set_level(logging.DEBUG, logger="huggingface_hub")
        check_numbers(open_checkpoint(SOURCE, endpoint=closed.endpoint, token=TOKEN), kimi)
        assert "curl" in caplog.text
        assert TOKEN not in caplog.text

    @pytest.mark.parametrize(
        ("endpoint", "token", "warns"),
        [("http://mirror.example", "ms-given", True), ("http://mirror.example", False, False), (None, "ms-x", False)],
    )
    def test_it_does_not_go_in_clear_text_unsaid(self, endpoint: str | None, token: str | bool, warns: bool) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ModelScopeRepository(REPO, endpoint=endpoint, token=token)
        assert ["clear text" in str(warning.message) for warning in caught] == [True] * warns


class TestBytes:
    def ranges(self, checkpoint: ki.Checkpoint) -> list[tuple[str, int, int]]:
        return [(shard.path, 0, 8) for shard in checkpoint.shards] + [(SHARD_2, 8, 24)]

    @pytest.mark.parametrize("how", ["argument", "variable"])
    def test_of_a_private_repository(
        self, closed: LoopbackModelScope, kimi: dict[str, HollowFile], monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_set")
        if how == "variable":
            monkeypatch.setenv("MODELSCOPE_API_TOKEN", TOKEN)
        token = TOKEN if how == "argument" else None
        checkpoint = open_checkpoint(SOURCE, endpoint=closed.endpoint, token=token)
        closed.clear_log()
        wanted = self.ranges(checkpoint)
        data = read_ranges(checkpoint, wanted, token=token)
        assert data == [kimi[path].read(begin, end) for path, begin, end in wanted]
        check_token(closed)

    @pytest.mark.parametrize("token", [None, False])
    def test_without_the_token(self, closed: LoopbackModelScope, token: bool | None) -> None:
        checkpoint = open_checkpoint(SOURCE, endpoint=closed.endpoint, token=TOKEN)
        closed.clear_log()
        with pytest.raises(SourceFileNotFoundError):
            read_ranges(checkpoint, [(SHARD_2, 0, 8)], token=token)
        check_token(closed, None)

    def test_at_a_commit_no_token_of_the_hub_is_sent(
        self, site: LoopbackModelScope, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_set")
        checkpoint = open_checkpoint(f"{SOURCE}@{COMMIT}", endpoint=site.endpoint)
        assert len(read_ranges(checkpoint, [(SHARD_2, 0, 8)])[0]) == 8
        check_token(site, None)

    def test_a_file_that_is_another_by_now(self, site: LoopbackModelScope) -> None:
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        site.play(faults.with_header("X-Linked-ETag", "ab" * 32), path=SHARD_2, origin="site")
        with pytest.raises(TransportError, match="another SHA-256"):
            read_ranges(checkpoint, [(SHARD_2, 0, 8)])


class TestFilesThatComeWhole:
    @pytest.fixture
    def whole(self, kimi: dict[str, HollowFile]) -> Iterator[LoopbackModelScope]:
        with LoopbackModelScope({REPO: kimi}, in_git=list(kimi)) as site:
            yield site

    def test_the_front_is_read(self, whole: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        checkpoint = open_checkpoint(SOURCE, endpoint=whole.endpoint)
        check_numbers(checkpoint, kimi)
        assert {one.status for one in whole.log} == {200}
        assert len(whole.log) == USUAL + len(weights(kimi))
        assert checkpoint.traffic.bytes_read < 16 * len(kimi) * (1 << 20)

    def test_what_lies_far_behind_is_not(self, whole: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        checkpoint = open_checkpoint(SOURCE, endpoint=whole.endpoint)
        assert read_ranges(checkpoint, [(SHARD_2, 4, 40)]) == [kimi[SHARD_2].read(4, 40)]
        with pytest.raises(RangeNotSupportedError, match="whole files"):
            read_ranges(checkpoint, [(SHARD_2, MAX_SKIP + 1, MAX_SKIP + 9)])

    def test_a_store_that_ignores_ranges(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        site.play(faults.ignore_range(), times=None, origin="store")
        check_numbers(open_checkpoint(SOURCE, endpoint=site.endpoint), kimi)


PASSING = {
    "limited": faults.rate_limited(retry_after=1),
    "unavailable": faults.unavailable(),
    "cut": faults.cut_connection(),
    "cut short": faults.short_body(),
    "another part": faults.shifted_content_range(),
}


class TestDamage:
    @pytest.mark.parametrize("fault", PASSING.values(), ids=list(PASSING))
    def test_what_passes(
        self, site: LoopbackModelScope, kimi: dict[str, HollowFile], pauses: list[float], fault: Fault
    ) -> None:
        site.play(fault)
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        found = {finding.code for finding in checkpoint.findings}
        if fault.name == "shifted_content_range":
            assert found == {"shard-unreadable"}  # no second try would do better
        else:
            check_numbers(checkpoint, kimi)
            assert (found, len(pauses)) == (set(), 1)

    def test_a_limit_that_outlasts_us(self, site: LoopbackModelScope) -> None:
        site.play(faults.rate_limited(retry_after=3600), path="/repo/files")
        with pytest.raises(RateLimitedError) as caught:
            open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert caught.value.retry_after == 3600

    def test_an_address_that_expires(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        source = locate(SOURCE, endpoint=site.endpoint).store
        file = next(file for file in source.list_files() if file.path == SHARD_2)
        opened = source.open(file)
        site.clear_log()
        assert opened.read(0, 8) == kimi[SHARD_2].read(0, 8)
        site.play(faults.expired_signature())
        assert opened.read(8, 16) == kimi[SHARD_2].read(8, 16)
        assert [(one.origin, one.status) for one in site.log] == [
            *(("site", 302), ("store", 206)),
            *(("store", 403), ("site", 302), ("store", 206)),
        ]
        assert checkpoint.complete

    @pytest.mark.parametrize(
        ("status", "body", "kind"),
        [
            (404, {"Code": 10010205001, "Success": False}, RepositoryNotFoundError),
            (200, {"Code": 10010205001, "Success": False}, RepositoryNotFoundError),
            (200, {"Code": 10010205001}, RepositoryNotFoundError),
            (404, {"Code": 10010200001, "Success": False}, RepositoryNotFoundError),
            (404, {"Code": 7, "Success": False}, RepositoryNotFoundError),
            (404, {}, RepositoryNotFoundError),
            (404, "<!DOCTYPE html>", RepositoryNotFoundError),
            (404, {"Code": 10990101004, "Success": False}, RevisionNotFoundError),
            (200, {"Code": 10990101004, "Success": False}, RevisionNotFoundError),
            (200, {"Code": 500, "Success": False}, TransportError),
            (200, {"Code": 200, "Success": False, "Data": {"Files": []}}, TransportError),
            (200, {"Code": [1], "Success": False}, TransportError),
            (200, {"Code": True, "Success": True, "Data": {"Files": []}}, TransportError),
            (401, {"Code": 401, "Success": False}, AuthenticationError),
            (403, {"Code": 403, "Success": False}, AuthenticationError),
            (400, {"Code": 400, "Success": False}, TransportError),
        ],
        ids=itertools.count(),
    )
    def test_refusals(self, site: LoopbackModelScope, status: int, body: Any, kind: type[KimiInspectError]) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        site.play(answering(lambda _: Answer(status, (("Content-Type", "text/html"),), bytes_body(data))), times=None)
        with pytest.raises(KimiInspectError) as caught:
            open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert type(caught.value) is kind
        assert caught.value.file == SOURCE
        assert len(site.log) == 1

    def test_no_repository(self, site: LoopbackModelScope) -> None:
        with pytest.raises(RepositoryNotFoundError, match="check the name"):
            open_checkpoint("ms://acme/none", endpoint=site.endpoint)

    @pytest.mark.parametrize(
        "change",
        [
            lambda _: "x",
            lambda _: {"a": 1},
            lambda _: [None],
            lambda _: ["x"],
            lambda _: [{}],
            lambda entries: [{**entries[0], "Size": None}],
            lambda entries: [{**entries[0], "Size": -1}],
            lambda entries: [{**entries[0], "Size": True}],
            lambda entries: [{**entries[0], "Size": "5"}],
            lambda entries: [{**entries[0], "Size": 5.0}],
            lambda entries: [{**entries[0], "Size": (1 << 60) + 1}],
            lambda entries: [{**entries[0], "Path": 5}],
            lambda entries: [{**entries[0], "Type": "commit"}],
            lambda entries: [{**entries[0], "Type": ["blob"]}],
            lambda entries: [{key: entries[0][key] for key in entries[0] if key != "Type"}],
            lambda entries: [{key: entries[0][key] for key in entries[0] if key != "Path"}],
        ],
        ids=itertools.count(),
    )
    def test_what_is_no_listing(self, site: LoopbackModelScope, change: Callable[[Entries], Any]) -> None:
        site.play(relisted(change))
        with pytest.raises(TransportError, match="listing") as caught:
            open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert caught.value.file == SOURCE
        assert len(site.log) == 1

    @pytest.mark.parametrize("said", [None, [], 7, {}, {"Data": None}, {"Data": {}}, {"Data": []}])
    def test_what_is_no_answer(self, site: LoopbackModelScope, said: Any) -> None:
        site.play(told(lambda _: said))
        with pytest.raises(TransportError, match="listing"):
            open_checkpoint(SOURCE, endpoint=site.endpoint)

    @pytest.mark.parametrize("kind", ["blob", "tree"])
    @pytest.mark.parametrize(
        "path", ["../x.safetensors", "a/../../x", "/etc/x", "a//b", "a/./b", "", "..", "a\\b", "a\0b", "a/"]
    )
    def test_paths_that_leave_the_repository(self, site: LoopbackModelScope, path: str, kind: str) -> None:
        site.play(relisted(lambda entries: [*entries, {**entries[0], "Path": path, "Type": kind}]))
        with pytest.raises(UnsafePathError):
            open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert len(site.log) == 1

    def test_names_that_an_address_has_to_quote(self) -> None:
        shard = hollow_safetensors([TensorSpec("a.weight", "U8", (4,))])
        files: Files = {"ü %2F?#&=+ x/model.safetensors": shard}
        with LoopbackModelScope({"a/b": files}) as site:
            checkpoint = open_checkpoint("ms://a/b", endpoint=site.endpoint)
        assert [shard.path for shard in checkpoint.shards] == list(files)
        assert checkpoint.complete

    def test_a_file_listed_twice_is_one_file(self, site: LoopbackModelScope, kimi: dict[str, HollowFile]) -> None:
        site.play(relisted(lambda entries: [*entries, *entries[-3:]]))
        check_numbers(open_checkpoint(SOURCE, endpoint=site.endpoint), kimi)

    @pytest.mark.parametrize("by", [1, -1, 10**12])
    def test_a_size_that_is_not_the_files(self, site: LoopbackModelScope, kimi: dict[str, HollowFile], by: int) -> None:
        site.play(changed(SHARD_2, Size=kimi[SHARD_2].size + by))
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        check_numbers(checkpoint, kimi)
        assert [(one.code, one.file) for one in checkpoint.findings] == [("size-differs-from-listing", SHARD_2)]

    def test_a_listed_file_that_is_gone(self, site: LoopbackModelScope) -> None:
        site.play(relisted(lambda entries: [*entries, {**entries[-1], "Path": "model-x.safetensors"}]))
        with pytest.raises(SourceFileNotFoundError, match="model-x"):
            open_checkpoint(f"{SOURCE}:model-x", endpoint=site.endpoint)

    def test_redirected_to_nowhere(self, site: LoopbackModelScope) -> None:
        site.play(moved("file:///etc/passwd"), path=SHARD_2)
        checkpoint = open_checkpoint(SOURCE, endpoint=site.endpoint)
        assert [finding.code for finding in checkpoint.findings] == ["shard-unreadable"]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("verb", ["audit", "compare"])
def test_a_token_serves_one_site_of_two(verb: str, monkeypatch: pytest.MonkeyPatch, *, reverse: bool) -> None:
    """A token of the Hub's goes to the Hub alone, whichever source comes first; one of ModelScope's to its site."""
    files = kimi_k31_pro(layers=2, experts=2)
    for token, hears in (("hf_secret", "hub"), ("ms-secret", "modelscope")):
        with (
            LoopbackHub([Repository("a/b", files)], tokens=["hf_secret"]) as hub,
            LoopbackModelScope({"a/b": files}) as scope,
        ):
            monkeypatch.setenv("MODELSCOPE_ENDPOINT", scope.endpoint)
            sources = ["ms://a/b", "a/b"] if reverse or hears == "modelscope" else ["a/b", "ms://a/b"]
            getattr(ki, verb)(*sources, token=token, endpoint=hub.endpoint)
            heard = {
                site: {one.authorization for one in place.log} for site, place in (("hub", hub), ("modelscope", scope))
            }
        assert f"Bearer {token}" in heard[hears]
        (other,) = {"hub", "modelscope"} - {hears}
        assert heard[other] == {None}


def test_a_token_of_the_hubs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackModelScope({"a/b": kimi_k31_pro(layers=2, experts=2)}) as scope:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", scope.endpoint)
        with pytest.raises(ki.AuthenticationError, match="the Hub's"):
            ki.open_checkpoint("ms://a/b", token="hf_secret")
        assert not scope.log
