"""What every `ByteSource` promises, whatever it reads from."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kimi_inspect import ByteSource

DATA = bytes(range(256)) * 40

Make = Callable[[bytes], ByteSource]
"""Makes a source of the given bytes."""


class ByteSourceContract:
    """Subclasses give the fixture `make`."""

    @pytest.fixture
    def make(self) -> Make:
        raise NotImplementedError

    def test_it_is_one(self, make: Make) -> None:
        assert isinstance(make(DATA), ByteSource)

    @pytest.mark.parametrize("length", [0, 1, 8, len(DATA)])
    def test_size(self, make: Make, length: int) -> None:
        source = make(DATA[:length])
        assert source.size == length
        assert source.size == length

    @pytest.mark.parametrize(
        ("begin", "end"), [(0, 1), (0, len(DATA)), (1, 2), (255, 257), (len(DATA) - 1, len(DATA)), (7, 7)]
    )
    def test_exactly_the_bytes_asked_for(self, make: Make, begin: int, end: int) -> None:
        assert make(DATA).read(begin, end) == DATA[begin:end]

    def test_reads_do_not_disturb_each_other(self, make: Make) -> None:
        source = make(DATA)
        assert source.size == len(DATA)
        for begin, end in [(100, 200), (0, 50), (5000, len(DATA)), (0, 50), (40, 5010)]:
            assert source.read(begin, end) == DATA[begin:end]

    def test_the_size_may_be_asked_after_a_read(self, make: Make) -> None:
        source = make(DATA)
        assert source.read(3, 5) == DATA[3:5]
        assert source.size == len(DATA)

    def test_from_many_threads(self, make: Make) -> None:
        source = make(DATA)
        ranges = [(at, at + 300) for at in range(0, 9600, 300)]
        with ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(lambda part: source.read(*part), ranges))
        assert parts == [DATA[begin:end] for begin, end in ranges]
