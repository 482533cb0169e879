"""What to do about a finding: advice for every error and warning, each in one short line."""

from __future__ import annotations

import pytest

from kimi_inspect import Severity
from kimi_inspect.advice import ADVICE, MILD_ADVICE
from kimi_inspect.findings import SEVERITIES

LONGEST_ADVICE = 70
"""It stands behind `  what to do: ` in a line of 80."""


def test_every_error_and_warning_has_advice_and_nothing_else_has() -> None:
    assert set(ADVICE) == {code for code, severity in SEVERITIES.items() if severity is not Severity.INFO}


def test_milder_advice_is_for_errors_that_may_be_warnings_and_is_another() -> None:
    assert all(SEVERITIES[code] is Severity.ERROR for code in MILD_ADVICE)
    assert all(advice != ADVICE[code] for code, advice in MILD_ADVICE.items())


@pytest.mark.parametrize("advice", sorted({*ADVICE.values(), *MILD_ADVICE.values()}))
def test_advice_is_one_short_line(advice: str) -> None:
    assert advice.isprintable()
    assert advice == advice.strip()
    assert 0 < len(advice) <= LONGEST_ADVICE
    assert advice[0].islower()
    assert advice[-1] not in ".!;,"
