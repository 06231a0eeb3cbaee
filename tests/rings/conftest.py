"""Rings that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ring_cases import COLUMNS, LIMIT

from headrace.rings import Ring
from headrace.rings.book import Overflow
from headrace.rings.ring import Terms


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ring"


@pytest.fixture
def rings(folder: Path) -> Iterator[Any]:
    made: list[Ring] = []

    def make(capacity: int, overflow: Overflow = Overflow.BLOCK, **given: Any) -> Ring:
        columns, limit = given.pop("columns", COLUMNS), given.pop("text_limit", 1 << 20)
        # No window ends, and no reader is dropped, because a test is slow.
        terms = Terms(capacity, given.pop("timeout", LIMIT), overflow, given.pop("patience", LIMIT))
        made.append(Ring.create(folder, "s", columns, terms, text_limit=limit))
        return made[-1]

    yield make
    for ring in made:
        if ring.folder.exists():
            ring.destroy()
