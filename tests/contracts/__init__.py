"""What implementations of one protocol have in common, written once."""

from __future__ import annotations

import pytest

# Their assertions shall say as much as those of the tests.
pytest.register_assert_rewrite("contracts.byte_source", "contracts.checks", "contracts.file_store")
