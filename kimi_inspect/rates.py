"""Rates of a network link, as people write them: bits and bytes told apart, decimal units."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["bits_per_second", "seconds_for"]

_POWERS = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12}
_RATE = re.compile(
    r"(?P<number>[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(?P<power>[kKmMgGtT]?)"
    r"(?:(?P<bits>b(?:ps|/s)|(?i:bits?/s))|B(?:ps|/s)|(?i:bytes?/s))"
)


def bits_per_second(text: str) -> int:
    """Read a rate.

    >>> bits_per_second("1Gbps"), bits_per_second("10 Gbit/s"), bits_per_second("125MB/s")
    (1000000000, 10000000000, 1000000000)

    Raises:
        ValueError: it is none, or less than one bit a second.
    """
    match = _RATE.fullmatch(text.strip())
    rate = 0
    if match:
        rate = int(Fraction(match["number"]) * 10 ** _POWERS[match["power"].lower()] * (1 if match["bits"] else 8))
    if rate < 1:
        raise ValueError(f"expected a rate in bits such as 1Gbps, or in bytes such as 125MB/s, got {text!r}")
    return rate


def seconds_for(nbytes: int | None, rate: int) -> float | None:
    """Return how long bytes take at a rate in bits a second; None if it is not known how many there are."""
    return None if nbytes is None else nbytes * 8 / rate
