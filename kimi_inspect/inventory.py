"""Sets of tensor names too large to write out: templates and the numbers that fill them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, product
from math import prod
from typing import Any, TypeVar

from attrs import frozen

__all__ = ["Inventory", "Template", "Unsaid", "said"]

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
    if type(value) is not kind:
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
    def numbers(self) -> list[Sequence[int]]:
        """What may stand in each place, in the order of the places."""
        return [getattr(self, place) for place in _PLACE.findall(self.text)]

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
        self._allowed = [frozenset(numbers) for numbers in template.numbers]

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
            self._matchers.setdefault(_shape("0".join(template.parts)), []).append(_Matcher(template))

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
        return any(matcher.matches(name) for matcher in self._matchers.get(_shape(name), ()))

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as of any set that is compared by what is in it

    def __repr__(self) -> str:
        return f"<Inventory of {len(self):,} tensors>"


def _shape(name: str) -> str:
    return re.sub("[0-9]+", "0", name)
