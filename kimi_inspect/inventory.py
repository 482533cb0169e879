"""Sets of tensor names too large to write out: templates and the numbers that fill them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, product, zip_longest
from math import prod
from typing import Any, TypeVar

from attrs import frozen

from kimi_inspect.facts import MAX_COUNT

__all__ = ["Inventory", "Template", "Unsaid", "said", "shape_of"]

T = TypeVar("T")

_PLACE = re.compile(r"\{(layer|block|expert)\}")


class Unsaid(Exception):  # noqa: N818
    """A config does not say what is needed; the argument names the key."""


def said(config: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return what a config says under `key`.

    Raises:
        Unsaid: nothing, or something of another type.
    """
    value = config.get(key)
    if type(value) is not kind or (isinstance(value, int) and value > MAX_COUNT):
        raise Unsaid(key)
    return value


@frozen
class Template:
    """Names alike but for their numbers: ``layers.{layer}.experts.{expert}.w1.weight`` and what may stand for each."""

    text: str
    layer: Sequence[int] = ()
    expert: Sequence[int] = ()
    block: Sequence[int] = ()

    @property
    def parts(self) -> list[str]:
        """What stands before, between and after the numbers."""
        return _PLACE.split(self.text)[::2]

    @property
    def shape(self) -> str:
        """The text with each number, whether it stands there or may be filled in, written as one 0."""
        return shape_of("0".join(self.parts))

    @property
    def places(self) -> list[Sequence[int] | str]:
        """Every number of the names from left to right: what may stand there, or the digits that have to."""
        places: list[Sequence[int] | str] = []
        for index, part in enumerate(self.parts):
            places += [self.numbers[index - 1]] if index else []
            places += re.findall("[0-9]+", part)
        return places

    def name(self, index: int) -> str:
        """Return the name at a place in the order of iteration."""
        chosen = []
        for numbers in reversed(self.numbers):
            index, at = divmod(index, len(numbers))
            chosen.append(str(numbers[at]))
        return "".join(chain.from_iterable(zip_longest(self.parts, reversed(chosen), fillvalue="")))

    @property
    def filled(self) -> list[tuple[str, Sequence[int]]]:
        """The places to fill in, in order, and what may stand in each."""
        return [(place, getattr(self, place)) for place in _PLACE.findall(self.text)]

    @property
    def numbers(self) -> list[Sequence[int]]:
        """What may stand in each place, in the order of the places."""
        return [numbers for _, numbers in self.filled]

    def __len__(self) -> int:
        return prod(map(len, self.numbers))

    def __iter__(self) -> Iterator[str]:
        parts = self.parts
        for numbers in product(*self.numbers):
            yield "".join(part + str(number) for part, number in zip(parts, numbers, strict=False)) + parts[-1]


class _Matcher:
    """A template, made ready for many look-ups."""

    def __init__(self, template: Template) -> None:
        self._pattern = re.compile(r"(0|[1-9][0-9]{0,8})".join(map(re.escape, template.parts)))
        self._allowed = [numbers if isinstance(numbers, range) else frozenset(numbers) for numbers in template.numbers]

    def matches(self, name: str) -> bool:
        found = self._pattern.fullmatch(name)
        return found is not None and all(
            int(number) in allowed for number, allowed in zip(found.groups(), self._allowed, strict=True)
        )


class Inventory(AbstractSet[str]):
    """An immutable set of names, made one by one when iterated: compare and subtract it like any set."""

    def __init__(self, templates: Iterable[Template]) -> None:
        self._templates = tuple(templates)
        self._matchers: dict[str, list[_Matcher]] = {}
        for template in self._templates:
            self._matchers.setdefault(template.shape, []).append(_Matcher(template))

    @property
    def templates(self) -> tuple[Template, ...]:
        """What the names are made from."""
        return self._templates

    @classmethod
    def _from_iterable(cls, it: Iterable[T]) -> AbstractSet[T]:
        return frozenset(it)

    def __len__(self) -> int:
        return sum(map(len, self._templates))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._templates)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        return any(matcher.matches(name) for matcher in self._matchers.get(shape_of(name), ()))

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as of any set that is compared by what is in it

    def __repr__(self) -> str:
        return f"<Inventory of {len(self):,} tensors>"


def shape_of(name: str) -> str:
    """Return a name with each number written as one 0."""
    return re.sub("[0-9]+", "0", name)
