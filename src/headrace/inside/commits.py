"""``headrace.epochs`` and ``headrace.failures``: what was committed, and what failed afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.inside.listing import LISTINGS, Asked, Listing
from headrace.types import BIGINT, STRING, TIMESTAMP, Field, arrow_schema

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
        relations = list(asked.runtime.catalog.relations.items())
        spelled = pa.table({"key": [k for k, _ in relations], "name": [r.name for _, r in relations]})
        # The store's names say what a relation holds ("state v s0"); here it is whose it is that matters.
        found = asked.snapshot.query(
            """
            SELECT epoch, time, label, coalesce(string_agg(DISTINCT name, ', ' ORDER BY name), '') AS relations,
                (sum(rows) FILTER (NOT late))::BIGINT AS rows, (sum(rows) FILTER (late))::BIGINT AS late_rows
            FROM (
                SELECT log.*, coalesce(names.name, whose) AS name, what LIKE 'late %' AS late
                FROM (
                    SELECT *, CASE WHEN what <> ''
                        THEN regexp_replace(what, '^(state (.*) s[0-9]+|[a-z]+ (.*))$', '\\2\\3') END AS whose
                    FROM log
                ) AS log LEFT JOIN names ON whose = key
            )
            GROUP BY epoch, time, label ORDER BY epoch
            """,
            log=asked.snapshot.log(),
            names=spelled.cast(pa.schema([("key", pa.string()), ("name", pa.string())])),
        )
        return found.cast(arrow_schema(_EPOCHS)).select(list(names))


def _failures(asked: Asked) -> Iterable[Any]:
    return asked.runtime.tidying.failures


LISTINGS["epochs"] = _Epochs(_EPOCHS, lambda asked: ())
LISTINGS["failures"] = Listing((Field("time", TIMESTAMP), Field("doing", STRING), Field("error", STRING)), _failures)
