"""``db.apply_changes``: a table is what its log says, in whatever pieces and order the log arrives."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace import Database
from headrace.errors import HeadraceError
from headrace.statement.apply import Applied
from headrace.table import rows as tables
from headrace.table import sequences

Change = dict[str, Any]


@pytest.fixture
def db() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
        yield db


def rows(db: Database, table: str = "t") -> list[tuple[Any, ...]]:
    return sorted(db.sql(f"SELECT * FROM {table}").rows(), key=str)


def applied(db: Database, changes: Any, **how: Any) -> Applied:
    found = db.apply_changes("t", changes, **{"op_column": "op", "sequence_by": "lsn", **how})
    assert isinstance(found, Applied)
    return found


def change(op: str, id: int | None, lsn: int, a: int | None = None, b: str | None = None) -> Change:
    return {"op": op, "id": id, "a": a, "b": b, "lsn": lsn}


# Any order, any cutting, any replay: the table is what the log says


@st.composite
def logs(draw: st.DrawFn) -> list[Change]:
    """A log as the source wrote it: each change has a sequence of its own."""
    ops = draw(st.lists(st.sampled_from("IUUDDT"), max_size=14))
    found = []
    for lsn, op in enumerate(ops):
        if op == "T" and draw(st.integers(0, 2)):
            op = "U"
        id = None if op == "T" else draw(st.integers(0, 3))
        found.append(change(op, id, lsn * 10, draw(st.none() | st.integers(0, 2)), draw(st.sampled_from("xy"))))
    return found


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[Change], list[list[Change] | None]]:
    """A log, and the batches it arrives in, some of it more than once; None is a restart."""
    log = draw(logs())
    again = draw(st.lists(st.sampled_from(log), max_size=4)) if log else []
    sent = draw(st.permutations([*log, *again]))
    batches: list[list[Change] | None] = []
    while sent:
        size = draw(st.integers(1, len(sent)))
        batches.append(sent[:size])
        sent = sent[size:]
        if not draw(st.integers(0, 3)):
            batches.append(None)
    return log, batches


def last_versions(log: list[Change]) -> list[tuple[Any, ...]]:
    """What a plain dict is after the log."""
    table: dict[int, tuple[Any, ...]] = {}
    for each in log:
        if each["op"] == "T":
            table.clear()
        elif each["op"] == "D":
            table.pop(each["id"], None)
        else:
            table[each["id"]] = (each["id"], each["a"], each["b"])
    return sorted(table.values(), key=str)


def all_versions(log: list[Change]) -> list[tuple[Any, ...]]:
    """What a list of versions is after the log."""
    versions: list[list[Any]] = []
    for each in log:
        for version in versions:
            if version[4] is None and each["id"] in (version[0], None):
                version[4] = each["lsn"]
        if each["op"] in "IU":
            versions.append([each["id"], each["a"], each["b"], each["lsn"], None])
    return sorted(map(tuple, versions), key=str)


@settings(max_examples=60)
@given(arrivals(), st.sampled_from([1, 2]), st.sampled_from([2, 65_536]))
def test_oracle_the_table_is_what_the_log_says(
    arrival: tuple[list[Change], list[list[Change] | None]], scd: int, tail: int
) -> None:
    log, batches = arrival
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "TAIL_ROWS", tail)  # small: rows lie in segments, and are deleted there
        patch.setattr(sequences, "_SHORT", tail)
        db = headrace.connect(Path(folder) / "db", engine="native")
        try:
            bounds = ", __START_AT BIGINT, __END_AT BIGINT" if scd == 2 else ""
            db.sql(f"CREATE TABLE t (id INT, a INT, b STRING{bounds})")
            for batch in batches:
                if batch is None:
                    db.close()
                    db = headrace.connect(Path(folder) / "db", engine="native")
                else:
                    applied(db, batch, keys=["id"], scd=scd)
            assert rows(db) == (last_versions(log) if scd == 1 else all_versions(log))
            if batches:  # all of it once more changes nothing, not even the epoch
                epoch = db.sql("SELECT max(epoch) FROM headrace.epochs").rows()
                found = applied(db, log, keys=["id"], scd=scd)
                assert (found.inserted, found.updated, found.deleted) == (0, 0, 0)
                assert db.sql("SELECT max(epoch) FROM headrace.epochs").rows() == epoch
        finally:
            db.close()


@settings(max_examples=40)
@given(arrivals())
def test_oracle_without_a_sequence_calls_and_rows_count_in_their_order(
    arrival: tuple[list[Change], list[list[Change] | None]],
) -> None:
    _, batches = arrival
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
        for batch in batches:
            if batch is not None:
                applied(db, batch, sequence_by=None, except_columns=["lsn"])
        assert rows(db) == last_versions([each for batch in batches if batch is not None for each in batch])


@settings(max_examples=40)
@given(logs(), st.data())
def test_oracle_nulls_keep_what_was_there(log: list[Change], data: st.DataObject) -> None:
    """``ignore_null_updates``, cut anywhere: NULL leaves a column as the log before it made it."""
    table: dict[int, tuple[Any, ...]] = {}
    for each in log:
        if each["op"] == "T":
            table.clear()
        elif each["op"] == "D":
            table.pop(each["id"], None)
        else:
            old = table.get(each["id"], (None, None, None))
            table[each["id"]] = (each["id"], old[1] if each["a"] is None else each["a"], each["b"])
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
        while log:
            size = data.draw(st.integers(1, len(log)))
            applied(db, log[:size], ignore_null_updates=True)
            log = log[size:]
        assert rows(db) == sorted(table.values(), key=str)


# What comes in


def test_counts_and_what_is_there_afterwards(db: Database) -> None:
    first = applied(db, [change("I", 1, 1, 1, "x"), change("I", 2, 2, 1, "y"), change("D", 3, 3), change("U", 1, 4, 2)])
    assert first == Applied("t", inserted=2, absent=1, tombstones=1) and first.upserted == 2
    assert str(first) == "2 rows inserted, 1 delete of absent rows in t"
    again = applied(db, [change("U", 1, 4, 2), change("U", 2, 5, 7), change("D", 1, 3), change("I", 3, 1, 9)])
    assert again == Applied("t", updated=1, unchanged=1, late=2, tombstones=1)
    assert rows(db) == [(1, 2, None), (2, 7, None)]
    assert applied(db, [change("U", 1, 3, 2), change("U", 1, 4, 2)]) == Applied("t", unchanged=1, late=1, tombstones=1)
    assert applied(db, [change("c", 3, 9, 1), change("d", 2, 9)]) == Applied("t", inserted=1, deleted=1, tombstones=1)


@pytest.mark.parametrize(
    "given",
    [
        pa.table({"op": ["i", "D"], "ID": [1, 2], "a": [1, 1], "lsn": pa.array([1, 2], pa.uint32())}),
        pa.table({"op": ["i", "D"], "ID": [1, 2], "a": [1, 1], "lsn": [1, 2]}).to_reader(),
        pd.DataFrame({"op": ["insert", "delete"], "id": [1, 2], "a": [1, 1], "lsn": [1, 2]}),
        pl.DataFrame({"op": ["c", "d"], "id": [1, 2], "a": [1, 1], "lsn": [1, 2]}),
        pl.LazyFrame({"op": ["r", "D"], "id": [1, 2], "a": [1, 1], "lsn": [1, 2]}),
        {"op": ["U", "D"], "id": [1, 2], "a": [1, 1], "lsn": [1, 2]},
        [{"op": "update", "id": 1, "a": 1, "lsn": 1}, {"op": "Delete", "id": 2, "lsn": 2}],
        iter([{"op": "u", "id": 1, "a": 1, "lsn": 1}, {"op": "D", "id": 2, "lsn": 2}]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_changes_come_as_db_insert_takes_rows(db: Database, given: Any) -> None:
    db.insert("t", [(2, 2, "gone")])
    assert applied(db, given) == Applied("t", inserted=1, deleted=1, tombstones=1)
    assert rows(db) == [(1, 1, None)]


@pytest.mark.parametrize("column", ["d DATE", "s STRING", "n DECIMAL(20,2)", "x DOUBLE", "w TIMESTAMP", "b BINARY"])
def test_any_plain_type_orders_changes(column: str) -> None:
    name = column.partition(" ")[0]
    values = {
        "d": [dt.date(2024, 1, 1), dt.date(2024, 1, 2)],
        "s": ["10", "9"],
        "n": [Decimal("9.99"), Decimal("10.00")],
        "x": [9.5, float("inf")],
        "w": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 1, tzinfo=dt.UTC)],
        "b": [b"a", b"b"],
    }[name]
    with headrace.connect(None, engine="native") as db:
        db.sql(f"CREATE TABLE t (id INT PRIMARY KEY, a INT, {column})")
        for value, a in [(values[1], 2), (values[0], 1)]:
            db.apply_changes("t", [{"id": 1, "a": a, name: value}], sequence_by=name)
        assert db.sql("SELECT a FROM t").rows() == [(2,)]


def test_several_columns_order_changes_and_several_are_the_key(db: Database) -> None:
    db.sql("CREATE TABLE m (x INT, y STRING, a INT, PRIMARY KEY (x, y))")
    how = {"sequence_by": ["file", "pos"]}
    db.apply_changes("m", [{"x": 1, "y": "a", "a": 2, "file": "f2", "pos": 1}], **how)
    db.apply_changes("m", [{"x": 1, "y": "a", "a": 1, "file": "f1", "pos": 9}], **how)
    db.apply_changes("m", [{"x": 1, "y": "b", "a": 1, "file": "f1", "pos": 9}], keys=["y", "x"], **how)
    assert rows(db, "m") == [(1, "a", 2), (1, "b", 1)]


def test_of_changes_alike_the_later_row_and_the_later_call_win(db: Database) -> None:
    applied(db, [change("U", 1, 5, 1), change("U", 1, 5, 2)])
    assert rows(db) == [(1, 2, None)]
    applied(db, [change("D", 1, 5)])
    assert rows(db) == []


def test_conditions_say_what_a_row_does(db: Database) -> None:
    def apply(changes: list[Change], **how: Any) -> Applied:
        return applied(db, changes, op_column=None, except_columns=["op", "kind"], **how)

    when = {"delete_when": "op = 'X' AND t.a > 0", "truncate_when": "kind LIKE 'wipe%'"}
    apply([{"id": i, "a": i, "op": None, "kind": None, "lsn": i} for i in range(3)], **when)
    found = apply(
        [
            {"id": 0, "a": 0, "op": "X", "kind": None, "lsn": 4},  # false
            {"id": 1, "a": None, "op": "X", "kind": None, "lsn": 5},  # neither true nor false
            {"id": 2, "a": 1, "op": "X", "kind": "", "lsn": 6},
        ],
        **when,
    )
    assert (found.deleted, found.upserted) == (1, 2) and rows(db) == [(0, 0, None), (1, None, None)]
    apply([{"id": None, "a": None, "op": "?", "kind": "wipe all", "lsn": 7}], **when)
    assert rows(db) == []
    # A condition comes first; the other rows do what their operation column says.
    found = applied(db, [change("X", 5, 8, 1), change("I", 6, 8, 1)], delete_when="op = 'X'")
    assert found.absent == 1 and rows(db) == [(6, 1, None)]


def test_columns_that_are_not_wanted_stay_out(db: Database) -> None:
    change = {"id": 1, "a": 1, "b": "x", "op": "I", "lsn": 1, "more": dt.time(1), "note": None}
    with pytest.raises(HeadraceError, match=r"INSERT_TYPE_MISMATCH.*column more is time64"):
        applied(db, [change])
    applied(db, [change], except_columns=["MORE", "note", "b"])
    assert rows(db) == [(1, 1, None)]
    applied(db, [{**change, "more": 1, "lsn": 2}], columns=["id", "b"])
    assert rows(db) == [(1, None, "x")]


def test_rows_changed_beside_keep_the_sequence_of_their_key(db: Database) -> None:
    applied(db, [change("I", 1, 5, 1), change("I", 2, 5, 1)])
    db.sql("UPDATE t SET a = 100 WHERE id = 1")
    db.sql("DELETE FROM t WHERE id = 2")
    db.sql("INSERT INTO t VALUES (3, 3, 'by hand')")
    assert applied(db, [change("U", 1, 4, 7), change("I", 2, 4, 7)]).late == 2
    assert rows(db) == [(1, 100, None), (3, 3, "by hand")]
    applied(db, [change("U", 1, 6, 7), change("I", 2, 6, 7), change("D", 3, 1)])
    assert rows(db) == [(1, 7, None), (2, 7, None)]


def test_a_table_begins_with_a_snapshot_once(tmp_path: Path) -> None:
    initial = [{"id": 1, "a": 1}, {"id": 2, "a": 2}, {"id": 3, "a": 3}]
    for _ in range(2):
        with headrace.connect(tmp_path / "db", engine="native") as db:
            if db.catalog.find("t") is None:
                db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
            applied(db, [change("U", 1, 0, 100), change("D", 2, 1)], initial=initial)
            assert rows(db) == [(1, 100, None), (3, 3, None)]
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
        applied(db, [change("U", 1, 5, 100), change("U", 2, 9, 9)], initial=[{**r, "lsn": 7} for r in initial])
        assert rows(db) == [(1, 1, None), (2, 9, None), (3, 3, None)]
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT, a INT, b STRING, __START_AT BIGINT, __END_AT BIGINT)")
        applied(db, [change("U", 1, 5, 100), change("D", 2, 9)], keys="id", scd=2, initial=initial)
        assert rows(db) == [
            (1, 1, None, None, 5),
            (1, 100, None, 5, None),
            (2, 2, None, None, 9),
            (3, 3, None, None, None),
        ]


def test_tombstones_are_let_go_after_their_time(db: Database) -> None:
    applied(db, [change("D", id, 5) for id in range(4)])
    assert applied(db, [change("I", 0, 4), change("I", 1, 6)], tombstones="30 days").tombstones == 3
    found = applied(db, [change("I", 9, 1, 1)], tombstones=dt.timedelta(0))
    assert found.tombstones == 0
    applied(db, [change("I", 0, 4, 1)])  # forgotten: it comes back
    assert rows(db) == [(0, 1, None), (1, None, None), (9, 1, None)]


def test_what_was_applied_goes_and_comes_with_its_table(db: Database, tmp_path: Path) -> None:
    applied(db, [change("I", 1, 5, 1), change("D", 2, 5)])
    db.export(tmp_path / "ticket")
    with headrace.open(tmp_path / "ticket", engine="native") as other:  # type: ignore[attr-defined]
        assert applied(other, [change("U", 1, 4), change("I", 2, 4)]).late == 2
    db.sql("DROP TABLE t")
    db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
    assert applied(db, [change("I", 1, 1, 1)]).inserted == 1


def test_a_materialized_view_follows(db: Database) -> None:
    db.sql("CREATE MATERIALIZED VIEW v AS SELECT b, count(*) AS n, sum(a) AS s FROM t GROUP BY b")
    applied(db, [change("I", 1, 1, 1, "x"), change("I", 2, 2, 10, "x"), change("I", 3, 3, 100, "y")])
    assert rows(db, "v") == [("x", 2, 11), ("y", 1, 100)]
    applied(db, [change("U", 1, 4, 5, "y"), change("D", 2, 5), change("U", 3, 1, 7, "late")])
    assert rows(db, "v") == [("y", 2, 105)]
    applied(db, [change("T", None, 6), change("I", 1, 7, 1, "z")])
    assert rows(db, "v") == [("z", 1, 1)]


# Debezium


def message(op: str | None, before: Change | None, after: Change | None, lsn: int) -> Change:
    return {"before": before, "after": after, "op": op, "source": {"lsn": lsn}, "ts_ms": 1}


MESSAGES = [
    message("r", None, {"id": 1, "a": 1, "b": "x"}, 1),
    message("c", None, {"id": 2, "a": None, "b": "y\n\"'"}, 2),
    message("u", {"id": 1, "a": 1, "b": "x"}, {"id": 1, "a": 5, "b": "x"}, 3),
    message("m", None, None, 4),
    message("d", {"id": 2, "a": None, "b": "y"}, None, 5),
    message(None, None, None, 0) | {"source": None, "ts_ms": None},
    message("c", None, {"id": 3, "a": 3, "b": "null"}, 6),
    message("u", None, {"id": 1, "a": 4, "b": "late"}, 2),
]


def as_text(messages: list[Change], wrap: bool) -> list[Change]:
    found: list[Change] = []
    for each in messages:
        inner = None if each["op"] is None else {k: v for k, v in each.items() if v is not None or k == "before"}
        whole = {"schema": None, "payload": inner} if wrap else inner
        found.append({"key": b"k", "value": None if whole is None else json.dumps(whole), "offset": len(found)})
    return found


@pytest.mark.parametrize("form", ["structs", "payload", "text", "wrapped", "bytes"])
def test_debezium_in_all_its_forms(db: Database, form: str) -> None:
    given: Any = MESSAGES
    if form == "payload":
        given = [{"payload": each} for each in MESSAGES]
    elif form != "structs":
        given = as_text(MESSAGES, form == "wrapped")
    if form == "bytes":
        given = pa.table({"value": pa.array([e["value"] and e["value"].encode() for e in given], pa.binary())})
    found = db.apply_changes("t", given, format="debezium")
    assert isinstance(found, Applied)
    assert (found.inserted, found.absent, found.tombstones) == (2, 1, 1)
    assert rows(db) == [(1, 5, "x"), (3, 3, "null")]
    assert str(db.apply_changes("t", given, format="debezium")).startswith("2 rows as before")
    gone = message("t", None, None, 9)
    more = [gone, message("c", None, {"id": 7, "a": 7, "b": "z"}, 10)]
    db.apply_changes("t", as_text(more, False) if "e" in form[:4] or form == "wrapped" else more, format="debezium")
    assert rows(db) == [(7, 7, "z")]


def test_debezium_is_ordered_by_what_is_named(db: Database) -> None:
    text = as_text(
        [message("c", None, {"id": 1, "a": 2, "b": "b"}, 1), message("u", None, {"id": 1, "a": 1}, 1)], False
    )
    db.apply_changes("t", text, format="debezium", sequence_by="offset")
    assert rows(db) == [(1, 1, None)]
    with headrace.connect(None, engine="native") as other:
        other.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
        other.apply_changes("t", text, format="debezium", sequence_by=["source.lsn", "a"])
        assert rows(other) == [(1, 2, "b")]


def test_debezium_text_in_the_types_of_columns(db: Database) -> None:
    db.sql(
        "CREATE TABLE d (id BIGINT PRIMARY KEY, day DATE, at TIMESTAMP, n DECIMAL(10,2), ok BOOLEAN, x DOUBLE, "
        "l ARRAY<INT>, s STRUCT<p: INT>, v VARCHAR(3))"
    )
    row = {"id": 1, "day": 19_723, "at": "2024-01-01T12:00:00.5Z", "n": "12.50", "ok": True, "x": 1e3, "v": "abc"}
    row |= {"l": [1, None], "s": {"p": 1}}
    other = {**row, "id": 2, "day": "2024-01-01", "n": 12.5, "l": None}
    text = as_text([message("c", None, row, 1), message("c", None, other, 2)], False)
    db.apply_changes("d", text, format="debezium")
    at = dt.datetime(2024, 1, 1, 12, 0, 0, 500_000, tzinfo=dt.UTC)
    first = (1, dt.date(2024, 1, 1), at, Decimal("12.50"), True, 1000.0, [1, None], {"p": 1}, "abc")
    found = rows(db, "d")
    assert found == [first, (2, *first[1:6], None, *first[7:])]
    # A number is a time if the message says of what.
    fields = [{"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"}]
    schema = {"fields": [{"field": "after", "fields": fields}]}
    counted = {**row, "id": 3, "at": 1_704_110_400_500_000}
    wrapped = {"schema": schema, "payload": message("c", None, counted, 3)}
    db.apply_changes("d", [{"value": json.dumps(wrapped)}], format="debezium")
    assert db.sql("SELECT at FROM d WHERE id = 3").rows() == [(at,)]


def test_debezium_structs_count_days(db: Database) -> None:
    db.sql("CREATE TABLE d (id INT PRIMARY KEY, day DATE)")
    db.apply_changes("d", [message("c", None, {"id": 1, "day": 19_723}, 1)], format="debezium")
    assert rows(db, "d") == [(1, dt.date(2024, 1, 1))]


# What is refused: nothing has changed then


def refused(db: Database, condition: str, changes: Any, name: str = "t", **how: Any) -> HeadraceError:
    before = db.sql("SELECT max(epoch) FROM headrace.epochs").rows()
    with pytest.raises(HeadraceError) as error:
        db.apply_changes(name, changes, **how)
    assert error.value.condition == condition, error.value
    assert error.value.hint or condition == "INSERT_BAD_VALUE"
    places = {"places for rows of t"}  # rows of a table may have got places before
    epochs = db.sql("SELECT epoch, label FROM headrace.epochs").rows()
    assert all(label in places for epoch, label in epochs if epoch > before[0][0])
    return error.value


def test_bad_changes_are_refused_by_name(db: Database) -> None:
    coded = {"op_column": "op", "sequence_by": "lsn"}
    refused(db, "APPLY_CHANGES_NULL_KEY", [change("I", 1, 1), change("U", None, 2)], **coded)
    refused(db, "APPLY_CHANGES_NULL_SEQUENCE", [{"id": 1, "lsn": 1}, {"id": 1, "lsn": None}], sequence_by="lsn")
    found = refused(db, "APPLY_CHANGES_UNKNOWN_OP", [change("I", 1, 1), change("X", 1, 2)], **coded)
    assert "row 2: op is 'X'" in str(found)
    refused(db, "APPLY_CHANGES_UNKNOWN_OP", [{"id": 1, "op": None}], op_column="op")
    refused(db, "APPLY_CHANGES_UNKNOWN_OP", [{"id": 1, "op": 2}], op_column="op")
    refused(db, "UNKNOWN_COLUMN", [{"id": 1, "more": 2}])
    refused(db, "UNRESOLVED_COLUMN", [{"id": 1}], sequence_by="lsn")
    refused(db, "UNRESOLVED_COLUMN", [{"id": 1}], op_column="op")
    refused(db, "UNRESOLVED_COLUMN", [{"a": 1}])
    refused(db, "UNRESOLVED_COLUMN", [{"id": 1}], keys=["nope"])
    refused(db, "UNRESOLVED_COLUMN", [{"id": 1}], delete_when="nope = 1")
    refused(db, "INVALID_WHERE_CONDITION", [{"id": 1}], delete_when="count(*) > 1")
    refused(db, "PARSE_SYNTAX_ERROR", [{"id": 1}], delete_when="id = 1; DROP TABLE t")
    refused(db, "APPLY_CHANGES_SEQUENCE_TYPE", [{"id": 1, "lsn": [1]}], sequence_by="lsn")
    refused(db, "INSERT_TYPE_MISMATCH", [{"id": "x"}])
    refused(db, "INSERT_BAD_VALUE", [{"id": 2**40}])
    refused(db, "INSERT_UNKNOWN_INPUT", [(1, 2, "x")])
    refused(db, "INSERT_UNKNOWN_INPUT", 17)
    refused(db, "APPLY_CHANGES_KEY_NOT_UNIQUE", [{"id": 1}], initial=[{"id": 7}, {"id": 7}])
    assert db.apply_changes("t", [], **coded) == Applied("t")
    assert rows(db) == []


def test_bad_arguments_are_refused_by_name(db: Database) -> None:
    for how in (
        {"scd": 3},
        {"scd": True},
        {"format": "maxwell"},
        {"columns": ["id"], "except_columns": ["a"]},
        {"format": "debezium", "op_column": "op"},
        {"keys": 17},
        {"tombstones": "soon"},
        {"tombstones": "-1 day"},
        {"scd": 2},
    ):
        refused(db, "USAGE", [{"id": 1}], **how)
    refused(db, "NOT_YET_SUPPORTED", [{"id": 1}], scd=2, ignore_null_updates=True)
    refused(db, "APPLY_CHANGES_NOT_A_HISTORY", [{"id": 1, "lsn": 1}], scd=2, sequence_by="lsn")
    refused(db, "TABLE_OR_VIEW_NOT_FOUND", [{"id": 1}], name="nope")
    db.sql("CREATE STREAM s (id INT)")
    refused(db, "WRONG_COMMAND_FOR_OBJECT_TYPE", [{"id": 1}], name="s")
    db.sql("CREATE TABLE k (id INT, a ARRAY<INT>)")
    refused(db, "APPLY_CHANGES_NO_KEYS", [{"id": 1}], name="k")
    refused(db, "NOT_YET_SUPPORTED", [{"id": 1, "a": [1]}], name="k", keys="a")
    refused(db, "REPEATED_COLUMN", [{"id": 1}], name="k", keys=["id", "ID"])
    db.sql("CREATE TABLE h (id INT, __START_AT INT, __END_AT BIGINT)")
    refused(db, "APPLY_CHANGES_NOT_A_HISTORY", [{"id": 1}], name="h", keys="id")
    refused(db, "APPLY_CHANGES_NOT_A_HISTORY", [{"id": 1, "lsn": 1}], name="h", keys="id", scd=2, sequence_by="lsn")


def test_a_table_that_does_not_fit_is_refused(db: Database) -> None:
    db.sql("CREATE TABLE k (id INT, a INT NOT NULL)")
    db.sql("INSERT INTO k VALUES (1, 1), (1, 2)")
    found = refused(db, "APPLY_CHANGES_KEY_NOT_UNIQUE", [{"id": 1, "a": 3}], name="k", keys="id")
    assert "2 rows with id = 1" in str(found)
    refused(db, "NULL_IN_NOT_NULL", [{"id": 2}], name="k", keys="id")
    refused(
        db, "APPLY_CHANGES_INITIAL_NOT_EMPTY", [{"id": 2, "a": 1}], name="k", keys="id", initial=[{"id": 1, "a": 1}]
    )
    applied(db, [change("I", 1, 5)])
    refused(db, "APPLY_CHANGES_KEYS_DIFFER", [change("I", 1, 6)], keys=["a"], op_column="op", sequence_by="lsn")
    refused(db, "APPLY_CHANGES_SEQUENCE_DIFFERS", [{"id": 1}])
    refused(db, "APPLY_CHANGES_SEQUENCE_TYPE", [{"id": 1, "lsn": "x"}], sequence_by="lsn")
    assert rows(db) == [(1, None, None)]


def test_bad_messages_are_refused_by_name(db: Database) -> None:
    def debezium(condition: str, *messages: Any, **how: Any) -> str:
        return str(refused(db, condition, list(messages), format="debezium", **how))

    good = message("c", None, {"id": 1, "a": 1, "b": "x"}, 1)
    for form in (lambda m: m, lambda m: as_text(m, False)):
        assert "row 2: op is 'z'" in debezium("APPLY_CHANGES_UNKNOWN_OP", *form([good, {**good, "op": "z"}]))
        assert "before is NULL" in debezium("DEBEZIUM_NO_ROW", *form([good, message("d", None, None, 2)]))
        assert "after is NULL" in debezium("DEBEZIUM_NO_ROW", *form([good, {**good, "after": None}]))
        debezium("UNRESOLVED_COLUMN", *form([good]), sequence_by="source.pos")
        debezium("APPLY_CHANGES_NULL_SEQUENCE", *form([good, {**good, "source": {"lsn": None}}]))
        debezium("UNKNOWN_COLUMN", *form([{**good, "after": {"id": 1, "more": 1}}]))
        lost = {**good, "after": {"id": 1, "b": "__debezium_unavailable_value"}}
        debezium("DEBEZIUM_VALUE_UNAVAILABLE", *form([lost]))
    debezium("DEBEZIUM_NO_ENVELOPE", {"id": 1})
    debezium("INVALID_UTF8_STRING", {"value": b"\xff"})
    debezium("APPLY_CHANGES_SEQUENCE_TYPE", *as_text([{**good, "source": {"lsn": 1.5}}], False))
    assert "row 2" in debezium("JSON_INVALID", {"value": json.dumps(good)}, {"value": "{"})
    assert "row 2" in debezium("JSON_INVALID", {"value": json.dumps(good)}, {"value": " "})
    db.sql("CREATE TABLE d (id INT PRIMARY KEY, at TIMESTAMP, n DECIMAL(9,2))")
    for values, condition in (
        ({"at": 1_704_110_400_500}, "DEBEZIUM_AMBIGUOUS"),
        ({"n": "AfQ="}, "DEBEZIUM_BAD_VALUE"),
        ({"at": "soon"}, "DEBEZIUM_BAD_VALUE"),
        ({"id": 1.5}, "DEBEZIUM_BAD_VALUE"),
    ):
        debezium(condition, *as_text([message("c", None, {"id": 1, **values}, 1)], False), name="d")
    debezium("DEBEZIUM_AMBIGUOUS", message("c", None, {"id": 1, "at": 5}, 1), name="d")


# Columns that the source does not have


@pytest.fixture
def parcels() -> Iterator[Database]:
    with headrace.connect(None, engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING NOT NULL DEFAULT 'here', c INT)")
        yield db


def test_a_column_that_changes_lack_has_its_default(parcels: Database) -> None:
    applied(parcels, [{"op": "I", "lsn": 1, "id": 1, "a": 1}, {"op": "I", "lsn": 2, "id": 2, "a": None}])
    assert rows(parcels) == [(1, 1, "here", None), (2, None, "here", None)]
    applied(parcels, [{"op": "U", "lsn": 3, "id": 1, "a": 5, "b": "there"}], except_columns=["b"])
    parcels.sql("UPDATE t SET b = 'gone' WHERE id = 2")
    assert applied(parcels, [{"op": "U", "lsn": 4, "id": 2, "a": 7}]).updated == 1
    assert rows(parcels) == [(1, 5, "here", None), (2, 7, "here", None)]  # an upsert says the whole row


@pytest.mark.parametrize("as_text", [False, True])
def test_a_column_that_messages_lack_has_its_default(parcels: Database, as_text: bool) -> None:
    def apply(*messages: dict[str, Any]) -> None:
        given = [{"value": json.dumps(m)} for m in messages] if as_text else list(messages)
        parcels.apply_changes("t", given, format="debezium")

    one, two = {"id": 1, "a": 1}, {"id": 2, "a": 2}
    apply(message("c", None, one, 1), message("c", None, two, 2), message("d", two, None, 3))
    assert rows(parcels) == [(1, 1, "here", None)]
    with pytest.raises(HeadraceError, match="NULL_IN_NOT_NULL"):  # said, and NULL
        apply(message("c", None, {**one, "b": None}, 4), message("c", None, {**two, "b": "x"}, 5))


def test_ignored_nulls_leave_what_changes_lack_as_it_is(parcels: Database) -> None:
    how = {"ignore_null_updates": True}
    applied(parcels, [{"op": "I", "lsn": 1, "id": 1, "a": 1}], **how)
    parcels.sql("UPDATE t SET b = 'there', c = 9")
    applied(parcels, [{"op": "U", "lsn": 2, "id": 1, "a": 2}, {"op": "I", "lsn": 3, "id": 2, "a": 3}], **how)
    assert rows(parcels) == [(1, 2, "there", 9), (2, 3, "here", None)]


# Many rows at once


def test_most_of_a_segment_goes_in_the_commit_itself(tmp_path: Path) -> None:
    with headrace.connect(tmp_path / "db", engine="native") as db:
        db.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b STRING)")
        db.insert("t", pa.table({"id": range(200_000), "a": range(200_000), "b": ["old"] * 200_000}))
        db.sql("DELETE FROM t WHERE id % 10 = 9")
        size = 150_000
        log = pa.table({"op": ["U"] * size, "id": range(100_000, 250_000), "a": range(size), "b": ["new"] * size})
        found = applied(db, log.append_column("lsn", [list(range(size))]))
        assert (found.inserted, found.updated) == (60_000, 90_000)
        assert db.sql("SELECT label FROM headrace.epochs ORDER BY epoch DESC LIMIT 1").rows() == [("changes of t",)]
        for _ in range(2):  # by the index, and by a scan
            assert db.sql("SELECT a, b FROM t WHERE id = 5").rows() == [(5, "old")]
            assert db.sql("SELECT a, b FROM t WHERE id = 100009").rows() == [(9, "new")]
            assert db.sql("SELECT count(*) FROM t WHERE id = 9").rows() == [(0,)]
            assert db.sql("SELECT b, count(*) FROM t GROUP BY b ORDER BY b").rows() == [("new", size), ("old", 90_000)]
            db.runtime.indexes.keep_only(())
        assert applied(db, log.append_column("lsn", [list(range(size))])).unchanged == size
        for _ in range(2):  # what is left of the segment is no file of the table yet when keys are looked at
            with pytest.raises(HeadraceError, match="PRIMARY_KEY_VIOLATION"):
                db.sql(
                    "MERGE INTO t USING (SELECT id FROM t WHERE id < 100000) AS s ON t.id = s.id AND t.id > 40000 "
                    "WHEN MATCHED THEN UPDATE SET a = 0 WHEN NOT MATCHED THEN INSERT (id, a, b) VALUES (s.id, 0, 'no')"
                )
            db.runtime.indexes.keep_only(())
        assert db.sql("SELECT b, count(*), sum(a) FROM t GROUP BY b ORDER BY b").rows() == [
            ("new", size, size * (size - 1) // 2),
            ("old", 90_000, sum(n for n in range(100_000) if n % 10 != 9)),
        ]
