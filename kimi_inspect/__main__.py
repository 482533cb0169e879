"""`python -m kimi_inspect` is `kimi-inspect`."""

from __future__ import annotations

import sys

from kimi_inspect.cli import main

sys.exit(main())
