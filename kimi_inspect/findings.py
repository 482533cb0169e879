"""The codes of findings, their severities, and the one place that makes a finding."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from kimi_inspect.text import printable
from kimi_inspect.values import Finding, Severity

__all__ = ["MAX_EXAMPLES", "SEVERITIES", "finding", "in_order"]

MAX_EXAMPLES = 10

SEVERITIES: dict[str, Severity] = {
    "truncated": Severity.ERROR,
    "gap": Severity.ERROR,
    "trailing-bytes": Severity.ERROR,
    "embedded-file": Severity.ERROR,
    "bad-padding": Severity.ERROR,
    "metadata-not-string": Severity.ERROR,
    "duplicate-key": Severity.ERROR,
    "shard-missing": Severity.ERROR,
    "shard-unreadable": Severity.ERROR,
    "shard-order": Severity.ERROR,
    "split-count-disagrees": Severity.ERROR,
    "tensor-total-wrong": Severity.ERROR,
    "duplicate-tensor": Severity.ERROR,
    "size-differs-from-listing": Severity.ERROR,
    "architecture-mismatch": Severity.ERROR,
    "layer-missing": Severity.ERROR,
    "component-missing": Severity.ERROR,
    "tensor-missing": Severity.ERROR,
    "expert-missing": Severity.ERROR,
    "experts-uneven": Severity.ERROR,
    "expert-count-disagrees": Severity.ERROR,
    "index-tensor-absent": Severity.ERROR,
    "index-stale": Severity.ERROR,
    "scale-missing": Severity.ERROR,
    "scale-shape": Severity.ERROR,
    "misaligned": Severity.ERROR,
    "foreign-type": Severity.ERROR,
    "name-too-long": Severity.ERROR,
    "shape-differs": Severity.ERROR,
    "parameters-differ": Severity.ERROR,
    "mtp-missing": Severity.WARNING,
    "experts-pruned": Severity.WARNING,
    "unexpected-tensor": Severity.WARNING,
    "unindexed-tensors": Severity.WARNING,
    "declared-total-wrong": Severity.WARNING,
    "label-disagrees": Severity.WARNING,
    "unknown-type": Severity.WARNING,
    "leading-space": Severity.WARNING,
    "config-unreadable": Severity.WARNING,
    "index-unreadable": Severity.WARNING,
    "packing-disagrees": Severity.WARNING,
    "duplicate-copy": Severity.INFO,
    "unclassified": Severity.INFO,
    "extra-component": Severity.INFO,
    "component-requantized": Severity.INFO,
    "config-differs": Severity.INFO,
    "shard-differs": Severity.INFO,
    "identical": Severity.INFO,
}
"""What each code means for whoever loads the checkpoint; docs/findings.md explains them."""


def finding(
    code: str,
    where: str,
    message: str,
    *,
    examples: Iterable[str] = (),
    expected: object = None,
    actual: object = None,
    file: str | None = None,
    tensor: str | None = None,
    layer: int | None = None,
    count: int = 1,
    severity: Severity | None = None,
) -> Finding:
    """Make a finding of a known code; its severity comes from the table, unless the code has a milder form too."""
    return Finding(
        code=code,
        severity=severity or SEVERITIES[code],
        where=printable(where),
        message=printable(message),
        expected=expected,
        actual=actual,
        file=file,
        tensor=tensor,
        layer=layer,
        count=count,
        examples=tuple(islice(examples, MAX_EXAMPLES)),
    )


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings gravest first, those of one severity as they came."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda item: order.index(item.severity)))
