from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from contracts import byte_source, file_store
from contracts.byte_source import ByteSourceContract
from contracts.checks import TOKEN, answering, check_secret, moved
from contracts.file_store import FileStoreContract

from kimi_inspect import ByteSource, Traffic
from kimi_inspect.addresses import origin
from kimi_inspect.errors import RangeNotSupportedError, SourceError, SourceFileNotFoundError, TransportError
from kimi_inspect.remote import HubRepository, PlainFiles
from kimi_inspect.remote_file import RemoteFile
from kimi_inspect.sources import (
    MAX_DEPTH,
    FileStore,
    ListedFile,
    LocalFile,
    LocalFolder,
    MappedFiles,
    Meter,
    read_whole,
)
from kimi_inspect.testing import LoopbackHub, Repository, faults
from kimi_inspect.testing.wire import Answer
from kimi_inspect.transport import MAX_HOPS, Transport

X = "x.safetensors"


class Bytes:
    """A source of a caller's own."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, begin: int, end: int) -> bytes:
        return self.data[begin:end]


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as servers:
        yield servers


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return folder


class TestLocalFile(ByteSourceContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> byte_source.Make:
        return lambda data: LocalFile(write(tmp_path, {X: data}) / X)


class TestFileBehindAnAddress(ByteSourceContract):
    @pytest.fixture
    def make(self, servers: ExitStack) -> byte_source.Make:
        def make(data: bytes) -> ByteSource:
            hub = servers.enter_context(LoopbackHub(plain_files={X: data}))
            return RemoteFile(Transport(), hub.plain_url(X), path=X, size=None)

        return make


class TestFileOfARepository(ByteSourceContract):
    @pytest.fixture
    def make(self, servers: ExitStack) -> byte_source.Make:
        def make(data: bytes) -> ByteSource:
            hub = servers.enter_context(LoopbackHub([Repository("acme/tiny", {X: data})]))
            store = HubRepository("acme/tiny", endpoint=hub.endpoint)
            return store.open(store.list_files()[0])

        return make


class TestOwnSource(ByteSourceContract):
    @pytest.fixture
    def make(self) -> byte_source.Make:
        return Bytes


class TestLocalFolder(FileStoreContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> file_store.Make:
        return lambda files: LocalFolder(write(tmp_path, files))


class TestMappedFiles(FileStoreContract):
    counts_bytes = False
    misses_files = False

    @pytest.fixture
    def make(self) -> file_store.Make:
        return lambda files: MappedFiles({path: Bytes(data) for path, data in files.items()})


class TestPlainFiles(FileStoreContract):
    sizes_listed = False

    @pytest.fixture
    def make(self, servers: ExitStack) -> file_store.Make:
        def make(files: Mapping[str, bytes]) -> FileStore:
            hub = servers.enter_context(LoopbackHub(plain_files=files))
            return PlainFiles(hub.plain_url(next(iter(files))))

        return make


class TestHubRepository(FileStoreContract):
    @pytest.fixture
    def make(self, servers: ExitStack) -> file_store.Make:
        def make(files: Mapping[str, bytes]) -> FileStore:
            hub = servers.enter_context(LoopbackHub([Repository("acme/tiny", files)]))
            return HubRepository("acme/tiny", endpoint=hub.endpoint)

        return make


def test_a_local_file_counts_into_the_meter_it_is_given(tmp_path: Path) -> None:
    meter = Meter()
    path = write(tmp_path, {"x": b"0123456789"}) / "x"
    LocalFile(path, meter=meter).read(2, 9)
    LocalFile(path, meter=meter).read(0, 1)
    assert meter.traffic == Traffic(requests=0, bytes_read=8)


def test_a_local_file_that_has_shrunk(tmp_path: Path) -> None:
    path = write(tmp_path, {"x": b"0123456789"}) / "x"
    source = LocalFile(path)
    assert source.size == 10
    os.truncate(path, 4)
    with pytest.raises(TransportError) as caught:
        source.read(2, 9)
    assert (caught.value.file, caught.value.expected, caught.value.actual) == (str(path), 9, 4)


def test_a_local_file_that_is_not_there(tmp_path: Path) -> None:
    source = LocalFile(tmp_path / "x")
    for use in (lambda: source.size, lambda: source.read(0, 1)):
        with pytest.raises(SourceFileNotFoundError) as caught:
            use()
        assert caught.value.file == str(tmp_path / "x")


def test_what_is_no_file_is_told_in_the_systems_words(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="directory") as caught:
        LocalFile(tmp_path).read(0, 1)
    assert not caught.value.retryable


def test_a_folder_is_searched_so_deep_and_no_deeper(tmp_path: Path) -> None:
    paths = ["/".join([*map(str, range(depth)), X]) for depth in range(MAX_DEPTH + 2)]
    write(tmp_path, dict.fromkeys(paths, b""))
    assert {file.path for file in LocalFolder(tmp_path).list_files()} == set(paths[: MAX_DEPTH + 1])


def test_hidden_folders_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {".cache/a.safetensors": b"", "b/.git/c": b"", "b/d": b"", ".hidden-file": b""})
    assert [file.path for file in LocalFolder(tmp_path).list_files()] == [".hidden-file", "b/d"]


def test_a_dangling_link_has_no_size(tmp_path: Path) -> None:
    (tmp_path / X).symlink_to(tmp_path / "nowhere")
    assert LocalFolder(tmp_path).list_files() == (ListedFile(path=X, size=None),)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceFileNotFoundError) as caught:
        LocalFolder(tmp_path / "x").list_files()
    assert caught.value.file == str(tmp_path / "x")


@pytest.mark.parametrize(("limit", "fits"), [(10, True), (9, False)])
def test_a_whole_file_up_to_a_limit(limit: int, fits: bool) -> None:
    source = Bytes(b"0123456789")
    if fits:
        assert read_whole(source, limit, "x") == b"0123456789"
        return
    with pytest.raises(TransportError) as caught:
        read_whole(source, limit, "x")
    assert caught.value.actual == 10


def test_an_empty_file_is_read_whole_without_a_read() -> None:
    class Empty(Bytes):
        def read(self, begin: int, end: int) -> bytes:
            raise AssertionError((begin, end))

    assert read_whole(Empty(b""), 10, "x") == b""


def test_a_mapping_may_change_after_it_was_given() -> None:
    files: dict[str, ByteSource] = {"a.safetensors": Bytes(b"a")}
    store = MappedFiles(files)
    files.clear()
    assert [file.path for file in store.list_files()] == ["a.safetensors"]


def test_what_the_listing_of_a_repository_says() -> None:
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    with LoopbackHub([Repository("acme/tiny", files)]) as hub:
        store = HubRepository("acme/tiny", endpoint=hub.endpoint)
        config, model = store.list_files()
        commit = store.commit
    # From the command line: printf '{}' | git hash-object --stdin; printf weights | sha256sum.
    assert config == ListedFile(
        path="config.json",
        size=2,
        blob_id="9e26dfeeb6e641a33dae4961196235bdb965b21b",
        url=f"{hub.endpoint}/acme/tiny/resolve/{commit}/config.json",
    )
    assert model == ListedFile(
        path="model.safetensors",
        size=7,
        sha256="9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c",
        url=f"{hub.endpoint}/acme/tiny/resolve/{commit}/model.safetensors",
    )


def test_a_plain_file_of_unknown_size_is_asked_once() -> None:
    with LoopbackHub(plain_files={X: b"0123456789"}) as hub:
        source = RemoteFile(Transport(), hub.plain_url(X), path="x", size=None)
        assert source.size == 10
        assert source.read(0, 10) == b"0123456789"
        assert len(hub.log) == 1


def test_a_later_part_goes_to_the_signed_address() -> None:
    with LoopbackHub([Repository("acme/tiny", {X: bytes(5000)})]) as hub:
        store = HubRepository("acme/tiny", endpoint=hub.endpoint)
        source = store.open(store.list_files()[0])
        hub.clear_log()
        source.read(0, 100)
        source.read(100, 200)
        assert [(one.origin, one.range) for one in hub.log] == [
            ("hub", "bytes=0-99"),
            ("cdn", "bytes=0-99"),
            ("cdn", "bytes=100-199"),
        ]
        assert hub.log[1].target == hub.log[2].target


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (faults.expired_signature(), 403),
        (faults.unavailable(), 503),
        (faults.shifted_content_range(), 206),
        (faults.cut_connection(), 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_signed_address_that_fails_is_asked_for_anew(fault: faults.Fault, status: int) -> None:
    with LoopbackHub([Repository("acme/tiny", {X: byte_source.DATA})]) as hub:
        store = HubRepository("acme/tiny", endpoint=hub.endpoint)
        source = store.open(store.list_files()[0])
        source.read(0, 100)
        hub.clear_log()
        hub.play(fault, origin="cdn")
        assert source.read(100, 200) == byte_source.DATA[100:200]
        assert [(one.origin, one.status) for one in hub.log] == [("cdn", status), ("hub", 302), ("cdn", 206)]


def test_a_signed_address_that_fails_for_good_is_given_up(pauses: list[float]) -> None:
    with LoopbackHub([Repository("acme/tiny", {X: byte_source.DATA})]) as hub:
        store = HubRepository("acme/tiny", endpoint=hub.endpoint)
        source = store.open(store.list_files()[0])
        source.read(0, 100)
        hub.clear_log()
        hub.play(faults.shifted_content_range(), origin="cdn", times=None)
        with pytest.raises(RangeNotSupportedError):
            source.read(100, 200)
        assert len(hub.log) == 3
    assert pauses == []


def test_the_cdn_that_asks_to_wait_at_a_later_part_is_waited_for(pauses: list[float]) -> None:
    with LoopbackHub([Repository("acme/tiny", {X: byte_source.DATA})]) as hub:
        store = HubRepository("acme/tiny", endpoint=hub.endpoint)
        source = store.open(store.list_files()[0])
        source.read(0, 100)
        hub.play(faults.rate_limited(retry_after=3), origin="cdn")
        assert source.read(100, 200) == byte_source.DATA[100:200]
    assert pauses == [3.0]


@pytest.fixture
def plain() -> Iterator[LoopbackHub]:
    with LoopbackHub(plain_files={X: byte_source.DATA}) as plain:
        yield plain


@pytest.fixture
def transport() -> Transport:
    return Transport(pause=lambda _: False)


class TestRedirects:
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_followed(self, plain: LoopbackHub, transport: Transport, status: int) -> None:
        plain.play(moved(f"/files/{X}?again", status=status))
        answer = transport.read_range(plain.plain_url(X), 5, 9, file=X)
        assert answer.data == byte_source.DATA[5:9]
        assert answer.url == plain.plain_url(X) + "?again"
        assert [(one.status, one.range) for one in plain.log] == [(status, "bytes=5-8"), (206, "bytes=5-8")]
        assert transport.traffic == Traffic(requests=2, bytes_read=len(b"Found\n") + 4)

    def test_as_many_as_there_may_be(self, plain: LoopbackHub, transport: Transport) -> None:
        plain.play(moved(*(f"/files/{X}?{number}" for number in range(MAX_HOPS))), times=MAX_HOPS - 1)
        assert transport.read_range(plain.plain_url(X), 5, 9, file=X).data == byte_source.DATA[5:9]
        assert len(plain.log) == MAX_HOPS

    def test_one_more(self, plain: LoopbackHub, transport: Transport) -> None:
        plain.play(moved(*(f"/files/{X}?{number}" for number in range(MAX_HOPS))), times=MAX_HOPS)
        with pytest.raises(TransportError, match="circle"):
            transport.read_range(plain.plain_url(X), 5, 9, file=X)
        assert len(plain.log) == MAX_HOPS

    def test_the_facts_are_those_of_the_first_answer_that_tells_them(
        self, plain: LoopbackHub, transport: Transport
    ) -> None:
        plain.play(moved(f"/files/{X}?2"))
        told = Answer(302, (("Location", f"/files/{X}?3"), ("X-Repo-Commit", "a" * 40), ("X-Linked-ETag", '"b"')))
        plain.play(answering(lambda _: told))
        plain.play(faults.with_header("X-Repo-Commit", "c" * 40))
        facts = transport.read_range(plain.plain_url(X), 5, 9, file=X).facts
        assert (facts.commit, facts.etag) == ("a" * 40, '"b"')

    def test_no_facts_from_a_plain_server(self, plain: LoopbackHub, transport: Transport) -> None:
        facts = transport.read_range(plain.plain_url(X), 5, 9, file=X).facts
        assert (facts.commit, facts.etag) == (None, None)


class TestToken:
    @pytest.fixture
    def known(self, plain: LoopbackHub) -> Transport:
        return Transport(token=TOKEN, token_origin=plain.endpoint, pause=lambda _: False)

    def test_sent_to_its_own_origin(self, plain: LoopbackHub, known: Transport) -> None:
        with pytest.raises(SourceError) as caught:
            known.read_json(f"{plain.endpoint}/api/models/acme/none", limit=100, file=X)
        assert [(one.origin, one.authorization) for one in plain.log] == [("hub", f"Bearer {TOKEN}")]
        check_secret(caught.value)

    def test_sent_to_nobody_else(self, plain: LoopbackHub, known: Transport) -> None:
        known.read_range(plain.plain_url(X), 5, 9, file=X)
        assert [(one.origin, one.authorization) for one in plain.log] == [("cdn", None)]

    def test_it_does_not_follow_a_redirect(self, plain: LoopbackHub, known: Transport) -> None:
        plain.play(moved(plain.plain_url(X)), origin="hub")
        known.read_range(f"{plain.endpoint}/{X}", 5, 9, file=X)
        assert [(one.origin, one.authorization) for one in plain.log] == [("hub", f"Bearer {TOKEN}"), ("cdn", None)]

    def test_it_comes_back_with_one(self, plain: LoopbackHub, known: Transport) -> None:
        plain.play(moved(f"{plain.endpoint}/x"), origin="cdn")
        with pytest.raises(SourceError):
            known.read_range(plain.plain_url(X), 5, 9, file=X)
        assert [(one.origin, one.authorization) for one in plain.log] == [("cdn", None), ("hub", f"Bearer {TOKEN}")]

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ("https://huggingface.co/x?y", "https://huggingface.co", True),
            ("https://HuggingFace.co/", "https://huggingface.co:443/a", True),
            ("http://huggingface.co/", "http://huggingface.co:80", True),
            ("https://user:word@huggingface.co", "https://huggingface.co", True),
            ("http://huggingface.co", "https://huggingface.co", False),
            ("https://huggingface.co:8443", "https://huggingface.co", False),
            ("https://huggingface.co.evil.org", "https://huggingface.co", False),
            ("https://evil.org/https://huggingface.co", "https://huggingface.co", False),
            ("https://huggingface.co@evil.org", "https://huggingface.co", False),
            ("https://cdn.huggingface.co", "https://huggingface.co", False),
        ],
    )
    def test_origins(self, one: str, other: str, same: bool) -> None:
        assert (origin(one) == origin(other)) is same
