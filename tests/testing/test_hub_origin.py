from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest
from testing.raw_client import Reply, ask

from kimi_inspect.testing import Files, HollowFile, LoopbackHub, Repository
from kimi_inspect.testing.refusals import REFUSALS, Case

COMMIT = "1" * 40
CONFIG = b'{"model_type": "tiny"}\n' * 50
WEIGHTS = HollowFile(b"weights", 6_000_000_000)
FILES: Files = {
    "config.json": CONFIG,
    "figures/a/b.png": b"png",
    "model.safetensors": WEIGHTS,
    "empty.safetensors": b"",
}


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    repositories = [
        Repository("acme/tiny", FILES, commit=COMMIT, tags=("v1.0", "refs/pr/1"), renamed_from="old-tiny"),
        Repository("acme/gated", FILES, gated="manual"),
        Repository("acme/private", FILES, private=True),
        Repository("acme/disabled", FILES, disabled=True),
        Repository("lone", FILES, info={"tags": ["x"], "safetensors": {"total": 7}}),
    ]
    with LoopbackHub(repositories, tokens=["hf_full"], unapproved_tokens=["hf_new"]) as hub:
        yield hub


def api(hub: LoopbackHub, rest: str, **headers: str) -> Reply:
    return ask(f"{hub.endpoint}/api/models/{rest}", **headers)


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    "rest", ["acme/tiny", *(f"acme/tiny/revision/{rev}" for rev in ("main", "v1.0", COMMIT, "1" * 7))]
)
def test_model_metadata(hub: LoopbackHub, rest: str) -> None:
    info = api(hub, rest).json
    assert (info["id"], info["sha"], info["gated"], info["private"]) == ("acme/tiny", COMMIT, False, False)
    assert info["siblings"] == [{"rfilename": path} for path in sorted(FILES)]


def test_model_metadata_by_name(hub: LoopbackHub) -> None:
    info = api(hub, "acme/tiny/revision/refs%2Fpr%2F1?expand=sha&expand=gated").json
    assert info == {"_id": info["_id"], "id": "acme/tiny", "sha": COMMIT, "gated": False}
    assert api(hub, "lone?expand=safetensors").json["safetensors"] == {"total": 7}


def test_model_metadata_with_blobs(hub: LoopbackHub) -> None:
    config, _, _, weights = api(hub, "acme/tiny?blobs=true").json["siblings"]
    assert config == {"rfilename": "config.json", "blobId": git_blob(CONFIG), "size": len(CONFIG)}
    assert weights["lfs"] == {"sha256": WEIGHTS.sha256, "size": WEIGHTS.size, "pointerSize": 135}


def test_every_answer_bears_the_hubs_headers(hub: LoopbackHub) -> None:
    for target, bucket in (
        ("/api/models/acme/tiny", "api"),
        ("/acme/tiny/resolve/main/x", "resolvers"),
        ("/", "pages"),
    ):
        headers = ask(hub.endpoint + target).headers
        assert re.fullmatch(rf'"{bucket}";r=\d+;t=\d+', headers["ratelimit"])
        assert re.fullmatch(rf'"fixed window";"{bucket}";q=\d+;w=300', headers["ratelimit-policy"])
        assert headers["x-request-id"].startswith("Root=1-")
        assert headers["date"].endswith(" GMT")


def test_tree(hub: LoopbackHub) -> None:
    reply = api(hub, "acme/tiny/tree/main?recursive=true&expand=false")
    assert "link" not in reply.headers
    entries = {entry["path"]: entry for entry in reply.json}
    assert list(entries) == [
        "config.json",
        "empty.safetensors",
        "figures",
        "figures/a",
        "figures/a/b.png",
        "model.safetensors",
    ]
    assert entries["figures"]["type"] == "directory"
    assert entries["config.json"]["oid"] == git_blob(CONFIG)
    assert "lfs" not in entries["config.json"]
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{WEIGHTS.sha256}\nsize {WEIGHTS.size}\n".encode()
    weights = entries["model.safetensors"]
    assert weights["oid"] == git_blob(pointer)
    assert weights["lfs"] == {"oid": WEIGHTS.sha256, "size": WEIGHTS.size, "pointerSize": len(pointer)}
    assert weights["size"] == WEIGHTS.size
    assert re.fullmatch("[0-9a-f]{64}", weights["xetHash"])


@pytest.mark.parametrize(
    ("rest", "paths"),
    [
        ("main", ["config.json", "empty.safetensors", "figures", "model.safetensors"]),
        ("main/figures", ["figures/a"]),
        ("main/figures%2Fa?recursive=true", ["figures/a/b.png"]),
    ],
)
def test_tree_of_a_folder(hub: LoopbackHub, rest: str, paths: list[str]) -> None:
    assert [entry["path"] for entry in api(hub, f"acme/tiny/tree/{rest}").json] == paths


@pytest.mark.parametrize("path", ["nowhere", "config.json"])
def test_tree_of_what_is_no_folder(hub: LoopbackHub, path: str) -> None:
    reply = api(hub, f"acme/tiny/tree/main/{path}")
    assert (reply.status, reply.headers["x-error-code"]) == (404, "EntryNotFound")


def test_tree_by_pages() -> None:
    files = {f"{number:04d}.json": b"{}" for number in range(1200)}
    with LoopbackHub([Repository("acme/many", files)]) as hub:
        url: str | None = f"{hub.endpoint}/api/models/acme/many/tree/main?recursive=true&limit=5000"
        pages = []
        while url:
            reply = ask(url)
            pages.append([entry["path"] for entry in reply.json])
            link = re.fullmatch(r'<(.*)>; rel="next"', reply.headers.get("link", ""))
            url = link[1] if link else None
            assert url is None or url.startswith(
                f"{hub.endpoint}/api/models/acme/many/tree/main?recursive=true&limit=1000&"
            )
    assert [len(page) for page in pages] == [1000, 200]
    assert [path for page in pages for path in page] == sorted(files)


def test_tree_by_small_pages(hub: LoopbackHub) -> None:
    reply = api(hub, "acme/tiny/tree/main?recursive=true&limit=2")
    assert len(reply.json) == 2
    assert "limit=2&cursor=" in reply.headers["link"]
    assert api(hub, "acme/tiny/tree/main?cursor=nonsense").status == 400


def test_references(hub: LoopbackHub) -> None:
    refs = api(hub, "acme/tiny/refs").json
    assert refs["branches"] == [{"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}]
    assert [tag["name"] for tag in refs["tags"]] == ["v1.0", "refs/pr/1"]


def test_large_file_is_a_redirect_that_carries_the_facts(hub: LoopbackHub) -> None:
    reply = ask(f"{hub.endpoint}/acme/tiny/resolve/v1.0/model.safetensors", Range="bytes=0-3")
    assert reply.status == 302
    assert reply.headers["location"].startswith(f"{hub.cdn_origin}/xet-bridge-us/")
    assert reply.headers["x-repo-commit"] == COMMIT
    assert reply.headers["x-linked-size"] == "6000000000"
    assert reply.headers["x-linked-etag"] == f'"{WEIGHTS.sha256}"'
    assert re.fullmatch("[0-9a-f]{64}", reply.headers["x-xet-hash"])
    assert reply.body.startswith(b"Found. Redirecting to http://")


def test_small_file_is_a_relative_redirect_to_the_cache(hub: LoopbackHub) -> None:
    url = f"{hub.endpoint}/acme/tiny/resolve/main/config.json"
    reply = ask(url, Range="bytes=2-5")
    assert reply.status == 307
    assert reply.headers["location"].startswith(f"/api/resolve-cache/models/acme/tiny/{COMMIT}/config.json?")
    assert reply.headers["x-linked-etag"] == f'"{git_blob(CONFIG)}"'
    cached = urljoin(url, reply.headers["location"])
    part = ask(cached, Range="bytes=2-5", Accept_Encoding="identity")
    assert (part.status, part.body) == (206, CONFIG[2:6])
    assert part.headers["content-range"] == f"bytes 2-5/{len(CONFIG)}"
    whole = ask(cached, Accept_Encoding="identity")
    assert (whole.status, whole.body, whole.headers["x-repo-commit"]) == (200, CONFIG, COMMIT)
    assert ask(cached, Accept_Encoding="identity", If_None_Match=whole.headers["etag"]).status == 304
    assert ask(cached, Range="bytes=2-5", If_Range='"other"').status == 200


def test_small_text_for_who_offers_gzip_ignores_the_range(hub: LoopbackHub) -> None:
    url = f"{hub.endpoint}/api/resolve-cache/models/acme/tiny/{COMMIT}/"
    reply = ask(url + "config.json", Range="bytes=2-5", Accept_Encoding="gzip, deflate")
    assert (reply.status, reply.headers["content-encoding"]) == (200, "gzip")
    assert "content-length" not in reply.headers
    assert reply.headers["etag"].startswith("W/")
    assert gzip.decompress(reply.body) == CONFIG
    assert ask(url + "figures/a/b.png", Range="bytes=0-1", Accept_Encoding="gzip").status == 206


def test_head_has_the_headers_of_get(hub: LoopbackHub) -> None:
    for target in (
        "/api/models/acme/tiny",
        "/acme/tiny/resolve/main/config.json",
        "/acme/tiny/resolve/main/model.safetensors",
    ):
        get, head = ask(hub.endpoint + target), ask(hub.endpoint + target, method="HEAD")
        assert (head.status, head.body, head.headers["content-length"]) == (
            get.status,
            b"",
            get.headers["content-length"],
        )


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/api/models/old-tiny", "/api/models/acme/tiny"),
        ("/api/models/ACME/Tiny/tree/main?recursive=true", "/api/models/acme/tiny/tree/main?recursive=true"),
        ("/old-tiny/resolve/main/config.json", "/acme/tiny/resolve/main/config.json"),
    ],
)
def test_a_former_id_redirects(hub: LoopbackHub, target: str, location: str) -> None:
    reply = ask(hub.endpoint + target)
    assert (reply.status, reply.headers["location"]) == (307, location)


FULL, NEW, BAD = "Bearer hf_full", "Bearer hf_new", "Bearer hf_bad"


@pytest.mark.parametrize(
    ("target", "token", "case"),
    [
        ("/api/models/acme/nothing", None, "repo-missing-anonymous"),
        ("/api/models/nothing", None, "repo-missing-anonymous"),
        ("/acme/nothing/resolve/main/x", None, "repo-missing-anonymous"),
        ("/api/models/acme/nothing", FULL, "repo-missing"),
        ("/api/models/acme/private", None, "repo-missing-anonymous"),
        ("/api/models/acme/private/tree/main", NEW, "repo-missing"),
        ("/api/models/acme/tiny", BAD, "bad-token"),
        ("/acme/gated/resolve/main/config.json", None, "gated-anonymous"),
        ("/acme/gated/resolve/main/model.safetensors", NEW, "gated-unapproved"),
        ("/api/models/acme/tiny/revision/xyz", None, "revision-missing"),
        ("/api/models/acme/tiny/tree/xyz", None, "revision-missing"),
        ("/acme/tiny/resolve/xyz/config.json", None, "revision-missing"),
        ("/acme/tiny/resolve/main/nothing", None, "entry-missing"),
        ("/api/models/acme/disabled", None, "disabled"),
        ("/acme/disabled/resolve/main/config.json", None, "disabled"),
    ],
)
def test_refusals(hub: LoopbackHub, target: str, token: str | None, case: Case) -> None:
    reply = ask(hub.endpoint + target, **({"Authorization": token} if token else {}))
    refusal = REFUSALS[case]
    message = refusal.message.format(repo="acme/gated", rev="xyz")
    assert (reply.status, reply.headers.get("x-error-code")) == (refusal.status, refusal.code)
    assert reply.headers["x-error-message"] == message
    assert (reply.json == {"error": message}) if target.startswith("/api/") else (reply.body == message.encode())
    assert ("www-authenticate" in reply.headers) == (refusal.status == 401)
    assert reply.headers.get("x-repo-commit") == (COMMIT if case == "entry-missing" else None)


@pytest.mark.parametrize(("token", "masked"), [(None, True), (NEW, True), (FULL, False)])
def test_digests_of_a_gated_repository_are_masked(hub: LoopbackHub, token: str | None, masked: bool) -> None:
    headers = {"Authorization": token} if token else {}
    assert api(hub, "acme/gated", **headers).json["gated"] == "manual"
    weights = api(hub, "acme/gated/tree/main", **headers).json[-1]
    sibling = api(hub, "acme/gated?blobs=true", **headers).json["siblings"][-1]
    for digest in (weights["lfs"]["oid"], sibling["lfs"]["sha256"]):
        assert digest == ("*" * 64 if masked else WEIGHTS.sha256)
    assert (weights["xetHash"] == "*" * 64) == masked
    assert ask(f"{hub.endpoint}/acme/gated/resolve/main/config.json", **headers).status == (
        401 if not token else 403 if masked else 307
    )


@pytest.mark.parametrize(
    "target", ["/api/agent-harnesses", "/", "/api/models/acme/tiny/nothing", "/api/models/acme/tiny/tree"]
)
def test_unknown_routes(hub: LoopbackHub, target: str) -> None:
    assert ask(hub.endpoint + target).status == 404


def test_nothing_is_written(hub: LoopbackHub) -> None:
    reply = ask(f"{hub.endpoint}/api/models/acme/tiny", method="POST")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


def test_a_push_moves_the_branch_and_nothing_else(hub: LoopbackHub) -> None:
    pushed = hub.push("acme/tiny", {"config.json": b"{}"})
    assert api(hub, "acme/tiny").json["sha"] == pushed != COMMIT
    assert api(hub, "acme/tiny/revision/v1.0").json["sha"] == COMMIT
    assert len(api(hub, f"acme/tiny/tree/{COMMIT}").json) == 4
    assert len(api(hub, "acme/tiny/tree/main").json) == 1
    with pytest.raises(KeyError):
        hub.push("acme/nothing")


def test_the_commit_is_derived_from_the_content() -> None:
    repositories = [Repository("a/1", {"x": b"x"}), Repository("a/2", {"x": b"x"}), Repository("a/3", {"x": b"y"})]
    with LoopbackHub(repositories) as hub:
        first, same, other = (api(hub, f"a/{number}").json["sha"] for number in (1, 2, 3))
    assert re.fullmatch("[0-9a-f]{40}", first)
    assert first == same != other


def test_the_log_says_what_came_and_what_went() -> None:
    pauses: list[float] = []
    with LoopbackHub([Repository("acme/tiny", FILES)], tokens=["hf_full"], latency=0.25, sleep=pauses.append) as hub:
        reply = ask(f"{hub.endpoint}/acme/tiny/resolve/main/model.safetensors", Range="bytes=0-1", Authorization=FULL)
        ask(reply.headers["location"], Range="bytes=0-1", Accept_Encoding="identity")
        first, second = hub.log
        assert (first.origin, first.method, first.target) == ("hub", "GET", "/acme/tiny/resolve/main/model.safetensors")
        assert (first.range, first.authorization, first.status, first.fault) == ("bytes=0-1", FULL, 302, None)
        assert (second.origin, second.authorization, second.accept_encoding, second.status) == (
            "cdn",
            None,
            "identity",
            206,
        )
        hub.clear_log()
        assert hub.log == ()
    assert pauses == [0.25, 0.25]
