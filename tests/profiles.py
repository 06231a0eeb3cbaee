"""How much a test tries: little by default, much in a soak."""

from __future__ import annotations

import os

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"


def examples(n: int) -> int:
    """How many examples a test that costs Spark jobs runs: few by default, many in a soak."""
    return n * 20 if SOAK else n
