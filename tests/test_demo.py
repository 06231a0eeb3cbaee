"""The demo judges itself: its exit status is 0 only if Spark's own answer is the same."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import demo
from headrace.database import Database

pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("spark")
def test_a_small_run_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run(events=20_000, seconds=1.0) == 0
    out = capsys.readouterr().out
    assert "the same" in out and "WRONG" not in out
    assert "20,000 bulk" in out


@pytest.mark.usefixtures("spark")
def test_a_lost_insert_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    insert = Database.insert

    def forgetful(self: Database, name: str, data: Any) -> int:
        return insert(self, name, data) if name != "part_usage" else len(data)

    monkeypatch.setattr(Database, "insert", forgetful)
    assert demo.run(events=20_000, seconds=0.5) == 1
    assert "WRONG" in capsys.readouterr().out
