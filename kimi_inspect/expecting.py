"""Which tensors a config promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kimi_inspect.families import EXPECTATIONS, family_of
from kimi_inspect.inventory import Inventory, Unsaid

__all__ = ["expected_tensors"]


def expected_tensors(config: Mapping[str, Any] | None) -> Inventory | None:
    """Return the names of all tensors that a checkpoint with this config.json has.

    Returns:
        A set of names, to be compared with those that are there; None unless we know the family and the config says
        all that it must for every single name.
    """
    config = config or {}
    model_type = config.get("model_type")
    expect = EXPECTATIONS.get(family_of(model_type) or "") if isinstance(model_type, str) else None
    if expect is None:
        return None
    try:
        return Inventory(expect(config))
    except Unsaid:
        return None
