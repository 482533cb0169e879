"""What every `FileStore` promises, whatever it lists and reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from kimi_inspect import ByteSource, Traffic
from kimi_inspect.errors import SourceFileNotFoundError, TransportError
from kimi_inspect.sources import FileStore, ListedFile

FILES: Mapping[str, bytes] = {
    "model-00001-of-00002.safetensors": b"one" * 100,
    "model-00002-of-00002.safetensors": b"two" * 50,
}

Make = Callable[[Mapping[str, bytes]], FileStore]
"""Makes a store of the given files."""


class FileStoreContract:
    """Subclasses give the fixture `make`, and say what their kind of store knows."""

    sizes_listed = True
    counts_bytes = True
    misses_files = True

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    def test_it_lists_every_file_by_path(self, make: Make) -> None:
        listing = make(dict(sorted(FILES.items(), reverse=True))).list_files()
        assert [file.path for file in listing] == sorted(FILES)
        sizes = [len(FILES[path]) if self.sizes_listed else None for path in sorted(FILES)]
        assert [file.size for file in listing] == sizes

    def test_each_file_opens(self, make: Make) -> None:
        store = make(FILES)
        for file in store.list_files():
            source = store.open(file)
            assert isinstance(source, ByteSource)
            assert source.size == len(FILES[file.path])
            assert source.read(1, 20) == FILES[file.path][1:20]

    def test_a_small_file_is_read_whole(self, make: Make) -> None:
        store = make(FILES)
        for file in store.list_files():
            size = len(FILES[file.path])
            assert store.read_small(file, size) == FILES[file.path]

    def test_a_file_above_the_limit_is_no_small_file(self, make: Make) -> None:
        store = make(FILES)
        file = store.list_files()[0]
        with pytest.raises(TransportError) as caught:
            store.read_small(file, len(FILES[file.path]) - 1)
        assert caught.value.file == file.path
        assert not caught.value.retryable

    def test_a_file_that_is_gone(self, make: Make) -> None:
        if not self.misses_files:
            return
        store = make(FILES)
        store.list_files()
        gone = ListedFile(path="gone.safetensors", size=8)
        with pytest.raises(SourceFileNotFoundError, match="gone"):
            store.open(gone).read(0, 8)
        with pytest.raises(SourceFileNotFoundError, match="gone"):
            store.read_small(gone, 8)

    def test_it_counts_what_is_read(self, make: Make) -> None:
        store = make(FILES)
        assert store.traffic == Traffic()
        store.open(store.list_files()[0]).read(0, 100)
        assert store.traffic.bytes_read >= 100 if self.counts_bytes else store.traffic == Traffic()

    def test_its_name_and_its_commit(self, make: Make) -> None:
        store = make(FILES)
        store.list_files()
        assert store.source
        assert store.commit is None or re.fullmatch("[0-9a-f]{40}", store.commit)

    def test_it_may_be_cancelled_when_nothing_is_under_way(self, make: Make) -> None:
        store = make(FILES)
        store.cancel()
        store.cancel()
