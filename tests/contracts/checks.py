"""What must hold of anything that was read, said once: right numbers, and a token that stayed where it belongs."""

from __future__ import annotations

import itertools
import pickle
import struct
import traceback
from collections.abc import Callable, Iterable, Mapping

from kimi_inspect import Checkpoint, Shard
from kimi_inspect.testing import Fault, HollowFile, LoopbackHub, Served
from kimi_inspect.testing.wire import Answer, bytes_body

REPO = "moonshotai/Kimi-K3.1-Pro"
TOKEN = "hf_WordThatNobodyElseMayHear"

LOOKS = 2
"""Requests of the API before a shard is read: the commit, and one page of the listing."""

CONFIG = 2
"""Requests for a small file: the resolver redirects to the Hub's own cache."""

SHARD = 2
"""Requests for a shard whose header comes at the first read: the resolver redirects to the CDN."""


def weights(files: Mapping[str, HollowFile]) -> dict[str, HollowFile]:
    return {path: file for path, file in sorted(files.items()) if path.endswith(".safetensors")}


def usual_requests(files: Mapping[str, HollowFile]) -> int:
    """Count the requests of a call in which nothing goes wrong."""
    return LOOKS + CONFIG + SHARD * len(weights(files))


def expected_shard(file: HollowFile) -> tuple[int, int, int]:
    """Return size, header bytes and tensors of a weight file, taken from its bytes by the format's description."""
    (length,) = struct.unpack("<Q", file.head[:8])
    return file.size, 8 + length, file.head.count(b'"dtype"')


def check_shard(shard: Shard, file: HollowFile) -> None:
    size, header, _ = expected_shard(file)
    assert (shard.file_bytes, shard.header_bytes, shard.tensor_bytes) == (size, header, size - header)
    assert (shard.padding_bytes, shard.missing_bytes, shard.unread_bytes) == (0, 0, 0)


def check_numbers(checkpoint: Checkpoint, files: Mapping[str, HollowFile]) -> None:
    """Hold a checkpoint against the files that it was read from, all of which are whole."""
    expected = weights(files)
    assert [shard.path for shard in checkpoint.shards] == list(expected)
    for shard in checkpoint.shards:
        check_shard(shard, expected[shard.path])
    assert len(checkpoint.tensors) == sum(expected_shard(file)[2] for file in expected.values())
    assert checkpoint.complete


def check_sums(checkpoint: Checkpoint) -> None:
    """Hold every shard against the identity that is always true."""
    for shard in checkpoint.shards:
        declared = shard.header_bytes + shard.tensor_bytes + shard.padding_bytes + shard.unread_bytes
        assert shard.file_bytes + shard.missing_bytes == declared


def check_token(hub: LoopbackHub, token: str = TOKEN) -> None:
    """See that the Hub's own origin got the token with every request, and no other origin ever did."""
    seen = {origin: {one.authorization for one in hub.log if one.origin == origin} for origin in ("hub", "cdn")}
    assert seen["hub"] == {f"Bearer {token}"}
    assert seen["cdn"] <= {None}


def check_secret(result: BaseException | Checkpoint, secret: str = TOKEN) -> None:
    """See that nothing a caller may print, log, store or send on holds the secret."""
    texts = [str(result), repr(result)]
    if isinstance(result, BaseException):
        texts += [repr(result.args), repr(vars(result)), "".join(traceback.format_exception(result))]
    else:
        texts += [result.source, repr(result.findings), repr(result.shards), repr(result.config), repr(result.metadata)]
    assert not [text for text in texts if secret in text]
    assert secret.encode() not in pickle.dumps(result)


def asked_for(log: Iterable[Served], path: str, origin: str | None = None) -> list[Served]:
    """Return the requests about the file whose name is in `path`."""
    return [one for one in log if path in one.target and origin in (None, one.origin)]


def answering(change: Callable[[Answer], Answer]) -> Fault:
    """Make a fault of any change of an answer."""
    return Fault("changed", lambda exchange: change(exchange.answer), lambda _: True)


def moved(*addresses: str, status: int = 302) -> Fault:
    """Redirect to these addresses in turn, over and over."""
    turns = itertools.cycle(addresses)
    return answering(lambda _: Answer(status, (("Location", next(turns)),), bytes_body(b"Found\n")))
