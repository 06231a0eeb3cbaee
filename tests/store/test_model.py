"""The store against a plain dict: any sequence of commits, failures and reopenings gives the same answers."""

from __future__ import annotations

import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.errors import CatalogError, StoreError
from headrace.store import Store, Transaction

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
NAMES = st.sampled_from(["t", "T", "ü", 'a"b', "select", "x y"])
ROWS = st.lists(st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text(max_size=3)), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, st.integers()),
        st.tuples(st.just("drop"), NAMES),
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("append"), NAMES, ROWS),
        st.tuples(st.just("replace"), NAMES, ROWS, st.booleans()),
        st.tuples(st.just("forget"), NAMES),
        st.tuples(st.just("segment"), NAMES, ROWS),
        st.tuples(st.just("unsegment"), NAMES),
        st.tuples(st.just("record"), st.sampled_from(["a", "b"]), st.integers(0, 6)),
    ),
    max_size=5,
)
Step = tuple[Any, ...]


def table(rows: list[tuple[Any, Any]]) -> pa.Table:
    return pa.table([[n for n, _ in rows], [s for _, s in rows]], schema=SCHEMA)


class Model:
    """What the store must answer, as dicts and lists."""

    def __init__(self) -> None:
        self.epoch = 0
        self.definitions: dict[str, tuple[str, int, int]] = {}
        self.relations: dict[str, list[Any]] = {}
        self.segments: dict[str, list[list[Any]]] = {}
        self.sequences: set[tuple[str, int]] = set()
        self.changes: dict[str, int] = {}

    def apply(self, step: Step) -> bool:
        """Do one step of the epoch being made; ``False`` where the store must refuse it."""
        kind, name, *rest = step
        key = name.lower()
        changed = True
        if kind == "put" and key not in self.definitions:
            self.definitions[key] = (name, rest[0], self.epoch)
            key = ""
        elif kind == "drop" and key in self.definitions:
            del self.definitions[key]
            key = ""
        elif kind == "create" and key not in self.relations:
            self.relations[key] = []
        elif kind == "append" and key in self.relations:
            self.relations[key] = self.relations[key] + rest[0]
            changed = bool(rest[0])
        elif kind == "replace" and key in self.relations:
            self.relations[key] = list(rest[0])
            changed = rest[1]
        elif kind == "forget" and key in self.relations:
            del self.relations[key]
            self.segments.pop(key, None)
        elif kind == "segment":
            self.segments.setdefault(key, []).append(rest[0])
        elif kind == "unsegment":
            changed = bool(self.segments.pop(key, None))
        elif kind == "record":
            self.sequences.add((name, rest[0]))
            return True
        else:
            return False
        if changed:
            self.changes[key] = self.epoch
        return True


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="headrace-test-"))
        self.store = Store.open(self.place / "db")
        self.model = Model()
        self.bare = self.as_batches = False
        """In turns: with and without a table of its own; into it or beside it."""

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.place)

    @rule(steps=STEPS, fate=st.sampled_from(["commit", "commit", "commit", "fail", "unchanged"]))
    def commit(self, steps: list[Step], fate: str) -> None:
        model = deepcopy(self.model)
        model.epoch += 1
        files: list[Path] = []

        def work(tx: Transaction) -> None:
            assert tx.epoch == model.epoch
            for step in steps:
                if step[0] == "record":
                    assert tx.record(*step[1:]) == ((step[1], step[2]) not in model.sequences)
                before = deepcopy(model)
                if model.apply(step):
                    self.perform(tx, step, files)
                else:
                    # A refusal of the store's own leaves the transaction usable: the rest must still count.
                    with pytest.raises((CatalogError, StoreError)):
                        self.perform(tx, step, files)
                    model.__dict__.update(before.__dict__)
            if fate == "fail":
                raise KeyError("on purpose")
            if fate == "unchanged":
                tx.unchanged()

        if fate == "fail":
            with pytest.raises(KeyError, match="on purpose"):
                self.store.commit(work)
        else:
            self.store.commit(work, label=fate)
        if fate == "commit":
            self.model = model
        else:
            for file in files:
                self.store.discard(file)

    def perform(self, tx: Transaction, step: Step, files: list[Path]) -> None:
        match step:
            case ("put", name, body):
                tx.put(name, "view", {"body": body})
            case ("drop", name):
                tx.drop(name)
            case ("create", name):
                tx.create_relation(name, SCHEMA, bare=self.bare)
                self.bare = not self.bare
            case ("append", name, rows):
                if self.as_batches:
                    tx.append_batches({name: table(rows)})
                else:
                    tx.append(name, table(rows))
                self.as_batches = not self.as_batches
            case ("replace", name, rows, altered):
                tx.replace(name, table(rows), altered=altered)
            case ("forget", name):
                tx.drop_relation(name)
            case ("segment", name, rows):
                file = self.store.new_segment(name)
                pq.write_table(table(rows), file)
                files.append(file)
                tx.add_segment(name, file, len(rows))
            case ("unsegment", name):
                tx.remove_segments(name)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.place / "db")

    @invariant()
    def agrees(self) -> None:
        model = self.model
        with self.store.read() as snapshot:
            assert snapshot.epoch == model.epoch
            assert {(d.name, d.body["body"], d.epoch) for d in snapshot.definitions()} == set(
                model.definitions.values()
            )
            assert snapshot.relations() == sorted(model.relations)
            for relation, rows in model.relations.items():
                found = snapshot.scan(relation).to_pylist()
                assert sorted(((r["n"], r["s"]) for r in found), key=repr) == sorted(rows, key=repr)
                assert snapshot.rows(relation) == len(rows)
            for relation in ("t", "ü", 'a"b', "select", "x y"):
                assert snapshot.last_change(relation) == model.changes.get(relation, 0)
                manifest = snapshot.manifest(relation)
                assert sorted(s.rows for s in manifest) == sorted(map(len, model.segments.get(relation, [])))
                assert all(pq.read_metadata(s.path).num_rows == s.rows for s in manifest)
            assert snapshot.catalog_epoch == model.changes.get("", 0)
            files = sum(map(len, model.segments.values()))
        assert len(list((self.place / "db" / "segments").iterdir())) == files or self.waits(files)

    def waits(self, files: int) -> bool:
        # Files are deleted after the commit has answered; an empty commit returns only when that is done.
        self.store.commit(lambda tx: tx.unchanged())
        return len(list((self.place / "db" / "segments").iterdir())) == files


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(
    max_examples=20, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
