"""A query moved after any of its stages to another Spark process, with other settings, gives the same answer (M6)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.move import ticket as tickets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_HERE = Path(__file__).parent
_CASE = re.compile(r"^-- (\w+)\n([^;]*);", re.MULTILINE)
QUERIES = {
    name: text
    for file in (_HERE.parent / "tpch.sql", _HERE / "moved.sql")
    for name, text in _CASE.findall(file.read_text(encoding="utf-8"))
}
FEW = ("pruned_twice", "reused", "united", "windowed", "anti", "crossed", "nested", "emptied")
"""Enough for every kind of operator; a soak moves all of them."""
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
THRESHOLDS = ("10MB", "-1") if SOAK else ("20KB",)
"""Up to where Spark broadcasts: joins are by hash, by merge, or change while the query runs."""


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("name", QUERIES if SOAK else FEW)
def test_differential_moved_after_every_stage(
    spark: SparkSession, inputs: dict[str, str], elsewhere: Any, tmp_path: Path, name: str, threshold: str
) -> None:
    query = QUERIES[name]
    views = " ".join(text for view, text in inputs.items() if re.search(rf"\b{view}\b", query))
    script = f"SET spark.sql.autoBroadcastJoinThreshold = {threshold}; {views} {query}"
    running = headrace.run(spark, script)
    table = running.result().arrow()
    stages = running._planned.stages()
    expected = [len(running._planned.depends) - 1, table.column_names, _rows(table.to_pylist(), query)]
    assert table.num_rows > 0 or name == "emptied"
    for cut in range(1, len(stages) + 1):
        folder = tickets.new_folder(spark, str(tmp_path / str(cut)))
        ticket = running._write(folder, stages[:cut])
        answer = elsewhere.ask("resume", ticket=ticket.address)
        assert "error" not in answer, answer
        assert answer["moved"] == len(ticket.states) > 0
        assert [expected[0], answer["columns"], _rows(answer["rows"], query)] == expected, cut


def _rows(rows: list[dict[str, Any]], query: str) -> list[str]:
    """Rows to compare: in order where the query says so."""
    found = [repr(row) for row in rows]
    return found if "ORDER BY" in query.rpartition(")")[2] or "\nORDER BY" in query else sorted(found)
