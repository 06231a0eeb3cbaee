"""``headrace.epochs``, ``versions``, ``failures``, ``refreshes``: commits, what is kept of them, and what follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.inside.listing import LISTINGS, Asked, Listing
from headrace.table import history
from headrace.types import BIGINT, DOUBLE, STRING, TIMESTAMP, Field, arrow_schema

_EPOCHS = (
    Field("epoch", BIGINT),
    Field("time", TIMESTAMP),
    Field("label", STRING),
    Field("relations", STRING),
    Field("rows", BIGINT),
    Field("late_rows", BIGINT),
)


class _Epochs(Listing):
    """Many, so they are read as columns."""

    def read(self, asked: Asked, names: Any) -> pa.Table:
        # An epoch tells what it altered by reference; here it is whose that is that matters.
        relations = asked.runtime.catalog.relations.values()
        whose = {ref: relation for relation in relations for ref in (relation.number, *relation.owns.values())}
        known = pa.table(
            {
                "ref": pa.array([str(ref) for ref in whose], pa.string()),
                "name": pa.array([relation.name for relation in whose.values()], pa.string()),
                "late": pa.array([relation.is_kept for relation in whose.values()], pa.bool_()),
            }
        )
        found = asked.snapshot.query(
            """
            SELECT epoch, time, label, coalesce(string_agg(DISTINCT name, ', ' ORDER BY name), '') AS relations,
                (sum(rows) FILTER (NOT coalesce(late, false)))::BIGINT AS rows,
                (sum(rows) FILTER (late))::BIGINT AS late_rows
            FROM log LEFT JOIN known ON what = ref
            GROUP BY epoch, time, label ORDER BY epoch
            """,
            log=asked.snapshot.log(),
            known=known,
        )
        return found.cast(arrow_schema(_EPOCHS)).select(list(names))


def _failures(asked: Asked) -> Iterable[Any]:
    return asked.runtime.tidying.failures


_VERSIONS = (
    Field("table", STRING),
    Field("version", BIGINT),
    Field("time", TIMESTAMP),
    Field("statement", STRING),
    Field("inserted", BIGINT),
    Field("deleted", BIGINT),
)


class _Versions(Listing):
    """The versions of tables and views that keep their changes."""

    def read(self, asked: Asked, names: Any) -> pa.Table:
        found = [arrow_schema(_VERSIONS).empty_table()]
        for relation in asked.runtime.catalog.relations.values():
            if (table := history.of(relation)) is not None:
                rows = history.versions(asked.snapshot, table)
                columns = [pa.repeat(table.name, rows.num_rows), *rows.columns]
                found.append(pa.table(columns, schema=arrow_schema(_VERSIONS)))
        return pa.concat_tables(found).select(list(names))


def _refreshes(asked: Asked) -> Iterable[Any]:
    return asked.keeper.refreshes()


_REFRESHES = (
    Field("view", STRING),
    Field("epoch", BIGINT),
    Field("time", TIMESTAMP),
    Field("strategy", STRING),
    Field("trigger", STRING),
    Field("how", STRING),
    Field("changed_rows", BIGINT),
    Field("estimated_seconds", DOUBLE),
    Field("seconds", DOUBLE),
    Field("state_rows", BIGINT),
    Field("error", STRING),
)
LISTINGS["refreshes"] = Listing(_REFRESHES, _refreshes, [f.name for f in _REFRESHES])
LISTINGS["epochs"] = _Epochs(_EPOCHS, lambda asked: ())
LISTINGS["versions"] = _Versions(_VERSIONS, lambda asked: ())
LISTINGS["failures"] = Listing((Field("time", TIMESTAMP), Field("doing", STRING), Field("error", STRING)), _failures)
