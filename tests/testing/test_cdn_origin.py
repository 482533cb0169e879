from __future__ import annotations

from collections.abc import Iterator

import pytest
from testing.raw_client import Reply, ask

from kimi_inspect.testing import Files, HollowFile, LoopbackHub, Repository

GIANT = HollowFile(b"giant", 6_000_000_000)
FILES: Files = {"giant.safetensors": GIANT, "small.safetensors": b"0123456789", "empty.safetensors": b""}


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub([Repository("acme/tiny", FILES)], plain_files={"a b/x.gguf": b"0123456789"}) as hub:
        yield hub


def signed(hub: LoopbackHub, path: str) -> str:
    return ask(f"{hub.endpoint}/acme/tiny/resolve/main/{path}").headers["location"]


def test_a_bounded_range_of_a_giant(hub: LoopbackHub) -> None:
    resolved = ask(f"{hub.endpoint}/acme/tiny/resolve/main/giant.safetensors")
    reply = ask(resolved.headers["location"], Range="bytes=0-9")
    assert (reply.status, reply.body) == (206, b"giant\0\0\0\0\0")
    assert reply.headers["content-range"] == "bytes 0-9/6000000000"
    assert reply.headers["content-length"] == "10"
    # The store knows the file by another hash than the resolver, and nothing of repositories.
    assert reply.headers["etag"] == f'"{resolved.headers["x-xet-hash"]}"' != resolved.headers["x-linked-etag"]
    assert not any(name.startswith(("x-repo", "x-linked", "ratelimit")) for name in reply.headers)


@pytest.mark.parametrize(
    ("path", "wanted", "status", "label"),
    [
        ("small.safetensors", "bytes=8-20", 206, "bytes 8-9/10"),
        ("small.safetensors", "bytes=10-20", 416, "bytes */10"),
        ("small.safetensors", "bytes=5-2", 200, None),
        ("small.safetensors", None, 200, None),
        ("empty.safetensors", "bytes=0-0", 416, "bytes */0"),
        ("empty.safetensors", None, 200, None),
        ("giant.safetensors", "bytes=6000000000-", 416, "bytes */6000000000"),
        ("giant.safetensors", None, 400, None),
    ],
)
def test_ranges(hub: LoopbackHub, path: str, wanted: str | None, status: int, label: str | None) -> None:
    reply = ask(signed(hub, path), **({"Range": wanted} if wanted else {}))
    assert (reply.status, reply.headers.get("content-range")) == (status, label)


def test_a_large_piece_comes_whole(hub: LoopbackHub) -> None:
    reply = ask(signed(hub, "giant.safetensors"), Range="bytes=3-2000000")
    assert reply.body == GIANT.read(3, 2_000_001)


def test_a_token_beside_the_signature_is_refused(hub: LoopbackHub) -> None:
    reply = ask(signed(hub, "small.safetensors"), Authorization="Bearer hf_x")
    assert reply.status == 400
    assert b"Only one auth mechanism allowed" in reply.body


def test_only_good_signatures_open(hub: LoopbackHub) -> None:
    url = signed(hub, "small.safetensors")
    assert ask(url).status == 200
    forged: list[Reply] = [
        ask(url.partition("?")[0]),
        ask(url.replace("&Expires=", "&Expires=9")),
        ask(url.replace("&Signature=", "&Signature=0")),
        ask(url.replace("/xet-bridge-us/", "/xet-bridge-us/0")),
    ]
    assert [reply.status for reply in forged] == [403] * 4


def test_a_signature_expires() -> None:
    with LoopbackHub([Repository("acme/tiny", FILES)], signed_for=-1) as hub:
        assert ask(signed(hub, "small.safetensors")).status == 403


def test_plain_files(hub: LoopbackHub) -> None:
    reply = ask(hub.plain_url("a b/x.gguf"), Range="bytes=2-3", Authorization="Basic x")
    assert (reply.status, reply.body, reply.headers["content-range"]) == (206, b"23", "bytes 2-3/10")
    assert ask(hub.plain_url("a b/x.gguf")).body == b"0123456789"
    assert ask(hub.plain_url("nothing")).status == 404
