"""State in memory equals the store's own merge: any types, any order, any cut, compacted or not, reopened or not."""

from __future__ import annotations

import datetime as dt
import math
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import headrace
from headrace.catalog import Stream
from headrace.database import Database
from headrace.engine.pipelines import Pipelines
from headrace.engine.work import Work
from headrace.errors import HeadraceError
from headrace.keep.resident import Resident, can_reside
from headrace.types import arrow_schema
from profiles import examples

AT = dt.datetime(2026, 1, 1, 1, 2, 3, 4)
VALUES: dict[str, tuple[str, list[Any]]] = {
    "b": ("BOOLEAN", [True, False]),
    "i1": ("TINYINT", [-128, 0, 1, 127]),
    "i": ("INT", [-(2**31), -1, 0, 1, 2**31 - 1]),
    "l": ("BIGINT", [-(2**63), -1, 0, 1, 2**63 - 1]),
    "f": ("FLOAT", [0.0, 1.5, math.nan, -math.inf]),
    "d": ("DOUBLE", [0.0, -0.0, 2.25, -1e300, math.nan, math.inf]),
    "n": ("DECIMAL(12,3)", [Decimal("-999999999.999"), Decimal("0.001"), Decimal(7)]),
    "w": ("DECIMAL(38,2)", [Decimal("-" + "9" * 36 + ".99"), Decimal("0.01"), Decimal(2**70)]),
    "t": ("STRING", ["", "a", "b", "ä", "a" * 40]),
    "y": ("BINARY", [b"", b"\x00", b"a"]),
    "day": ("DATE", [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2026, 2, 28)]),
    "at": ("TIMESTAMP", [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), AT.replace(tzinfo=dt.UTC)]),
    "nt": ("TIMESTAMP_NTZ", [dt.datetime(1970, 1, 1), AT]),
}
ADDED = ["count(*)", "count(i)", "sum(i)", "sum(n)", "sum(d)", "avg(f)", "avg(n)", "stddev_samp(i1)", "var_pop(i1)"]
EXTREMES = [f"{fn}({c})" for fn in ("min", "max") for c in ("b", "i1", "i", "l", "f", "d", "n", "w", "day", "at", "nt")]
VIEWS = {
    "added": (["i", *ADDED], "i"),
    "extremes": (["t", *EXTREMES, "bool_and(b)", "bool_or(b)"], "t"),
    "wide_key": ([*VALUES, "count(*)"], ", ".join(VALUES)),
    "one_group": (ADDED, ""),
    "distinct_values": (["i", "count(DISTINCT t)", "count(DISTINCT d)"], "i"),
}
rows = st.lists(st.tuples(*(st.none() | st.sampled_from(v) for _, v in VALUES.values())), max_size=12)


def define(db: Database) -> None:
    db.sql(f"CREATE STREAM s ({', '.join(f'{name} {type}' for name, (type, _) in VALUES.items())})")
    for name, (items, keys) in VIEWS.items():
        columns = ", ".join(f"{item} AS c{i}" for i, item in enumerate(items))
        db.sql(f"CREATE VIEW {name} AS SELECT {columns} FROM s" + (f" GROUP BY {keys}" if keys else ""))


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value if abs(value) > 1e-9 else 0.0:.9g}")
    return value


def answer(db: Database, view: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(plain, row)) for row in db.sql(f"SELECT * FROM {view}").rows()), key=repr)


def residents(db: Database, view: str) -> list[Resident | None]:
    return list(db.keeper.answers._residents.get(db.keeper.get(view), {}).values())


@pytest.fixture(scope="module")
def defined() -> Iterator[Database]:
    with headrace.connect() as db:
        define(db)
        yield db


def merged_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(plain, row.values())) for row in table.to_pylist()), key=repr)


@given(batches=st.lists(rows, min_size=1, max_size=5), cut=st.integers(1, 5))
@settings(max_examples=examples(20), phases=[Phase.explicit, Phase.generate])
def test_folding_is_the_stores_merge(defined: Database, batches: list[list[Any]], cut: int) -> None:
    worker, schema = defined.runtime.worker, arrow_schema(defined.catalog.get("s", Stream).columns)
    for view in map(defined.keeper.get, VIEWS):
        native = [p.native for p in view.pipelines["s"] if p.native is not None]
        by_state: dict[str, list[pa.Table]] = {p.state: [p.schema.empty_table()] for p in native}
        for batch in batches:
            table = pa.Table.from_pylist([dict(zip(VALUES, row, strict=True)) for row in batch], schema)
            work = Work((Pipelines(tuple(native)),), (), (), None, "UTC")
            for state, partials in worker.reduce(work, [table])[1].items():
                by_state[state].append(partials)
        for state in view.plan.states:
            assert can_reside(state)
            given_rows = by_state[view.by_name[state.name].ref]
            resident = Resident(state)
            for at, part in enumerate((given_rows[:cut], given_rows[cut:])):
                if part:
                    resident.fold(pa.concat_tables(part), at)
                    resident.table()
            expected = worker.query(view.by_name[state.name].merge("every_row"), every_row=pa.concat_tables(given_rows))
            assert merged_rows(resident.table()) == merged_rows(expected), (view.name, state.name)


def test_the_same_answers_with_and_without_memory(defined: Database) -> None:
    with headrace.connect(state_memory=0, compact_rows=5) as other:
        define(other)
        for turn in range(4):
            batch = [tuple(values[(turn + i) % len(values)] for _, values in VALUES.values()) for i in range(6)]
            for db in (defined, other):
                db.insert("s", [*batch, (None,) * len(VALUES)])
            for view in VIEWS:
                assert answer(defined, view) == answer(other, view), view
        for view in VIEWS:
            assert residents(defined, view) and all(residents(defined, view)), f"{view} is not in memory"
            assert not any(residents(other, view))


def test_reopened_state_is_read_anew(tmp_path: Path) -> None:
    expected = 0
    for opening in range(3):
        with headrace.connect(tmp_path / "db", compact_rows=4) as db:
            if opening == 0:
                db.sql("CREATE STREAM s (k INT, n INT)")
                db.sql("CREATE VIEW v AS SELECT k, sum(n) AS n FROM s GROUP BY k")
            for n in range(7):
                db.insert("s", [(k, n) for k in range(3)])
                expected += n
                assert db.sql("SELECT * FROM v ORDER BY k").rows() == [(k, expected) for k in range(3)]


def test_a_sum_past_38_digits_is_the_stores_to_report() -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (n DECIMAL(38,0))")
        db.sql("CREATE VIEW v AS SELECT sum(n) AS n FROM s")
        db.insert("s", [(Decimal("9" * 38),)])
        assert db.sql("SELECT * FROM v").rows() == [(Decimal("9" * 38),)]
        db.insert("s", [(Decimal(1),)])
        for _ in range(2):
            with pytest.raises(HeadraceError, match=r"OVERFLOW|OUT_OF_RANGE"):
                db.sql("SELECT * FROM v")
        assert residents(db, "v") == [None]


def test_what_does_not_fit_the_memory_stays_in_the_store() -> None:
    with headrace.connect(state_memory=20_000) as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE VIEW v AS SELECT k, count(*) AS c FROM s GROUP BY k")
        for low in (0, 10, 5_000):
            db.insert("s", [(k,) for k in range(low, low * 2 + 5)])
            assert db.sql("SELECT sum(c) FROM v").rows() == [(sum(x + 5 for x in (0, 10, 5_000) if x <= low),)]
        assert residents(db, "v") == [None]


def test_a_fold_cut_short_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE VIEW v AS SELECT k, count(*) AS c FROM s GROUP BY k")
        db.insert("s", [(1,)])
        assert db.sql("SELECT * FROM v").rows() == [(1, 1)]
        db.insert("s", [(1,)])
        whole = Resident.fold

        def cut(self: Resident, *args: Any) -> None:
            whole(self, *args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Resident, "fold", cut)
            with pytest.raises(KeyboardInterrupt):
                db.sql("SELECT * FROM v")
        assert db.sql("SELECT * FROM v").rows() == [(1, 2)]


def test_a_query_whose_snapshot_was_overtaken() -> None:
    """A reader that took its snapshot before another drained further still gets a whole answer."""
    with headrace.connect(compact_rows=50) as db:
        db.sql("CREATE STREAM s (k INT)")
        db.sql("CREATE VIEW v AS SELECT k, count(*) AS c FROM s GROUP BY k")
        db.insert("s", [(1,)])
        with db.runtime.store.read() as old:
            db.insert("s", [(1,), (2,)])
            assert db.sql("SELECT sum(c) FROM v").rows() == [(3,)]
            view = db.keeper.get("v")
            assert db.keeper.answers.rows(old, view, {}, patient=True).to_pylist() == [{"k": 1, "c": 1}]
        done = threading.Event()
        wrong: list[Any] = []

        def read() -> None:
            least = 0
            while not done.is_set():
                found = db.sql("SELECT sum(c), count(*) FROM v").rows()[0]
                if found[0] < least or found[0] % 3:
                    wrong.append(found)
                least = found[0]

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for i in range(60):
            db.insert("s", [(i,), (i + 1,), (i + 2,)])
        done.set()
        for reader in readers:
            reader.join()
        assert not wrong
        assert db.sql("SELECT sum(c) FROM v").rows() == [(183,)]


def test_a_filtered_read_leaves_the_rest_alone() -> None:
    with headrace.connect() as db:
        db.sql("CREATE STREAM s (k INT, n INT)")
        db.sql("CREATE VIEW v AS SELECT k, sum(n) AS n, count(*) AS c FROM s GROUP BY k HAVING count(*) > 1")
        for turn in range(1, 4):
            db.insert("s", [(k, n) for k in range(5) for n in (1, 2)] + [(9, 1)] * (turn == 1))
            assert db.sql("SELECT n, c FROM v WHERE k = 3").rows() == [(3 * turn, 2 * turn)]
            assert db.sql("SELECT v.n, c AS d FROM v WHERE k = 9 OR n > 100").rows() == []
            assert db.keeper.answers.evaluations == 0, "the whole view was computed"
        assert db.sql("SELECT count(*) FROM v WHERE k BETWEEN 2 AND 3").rows() == [(2,)]
        assert db.sql("SELECT sum(n) FROM v").rows() == [(45,)]
        assert db.keeper.answers.evaluations == 1
        assert db.sql("SELECT n FROM v WHERE k = 3").rows() == [(9,)]
