"""What the tests of moving share: inputs in files, and a Spark process beside this one."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


class OtherProcess:
    """A Spark process that does what it is told. One that was killed is followed by another when it is needed."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        read, write = os.pipe()
        source = str(Path(headrace.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "other_process.py"), str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(write,),
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
        )
        os.close(write)
        self._answers = os.fdopen(read)

    def tell(self, do: str, **command: Any) -> None:
        if self.process.poll() is not None:
            self._start()
        assert self.process.stdin is not None
        print(json.dumps({"do": do, **command}), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        line = self._answers.readline()
        assert line, "the other process has died"
        return pickle.loads(bytes.fromhex(line))

    def ask(self, do: str, **command: Any) -> Any:
        self.tell(do, **command)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._answers.close()


@pytest.fixture(autouse=True)
def _broadcasts_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are computed again as soon, for the tests' tables are small."""
    monkeypatch.setattr("headrace.move.states._BROADCAST_SECONDS", 0.0)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file for which queries wait; whatever becomes of the test, those it leaves behind are let go."""
    found = tmp_path / "gate"
    yield found
    found.touch()


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[OtherProcess]:
    """A Spark with one core, three shuffle partitions and other settings."""
    other = OtherProcess()
    yield other
    other.kill()


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A file of numbers, as a temporary view."""
    path = str(tmp_path / "numbers.parquet")
    spark.range(0, 1_000, 1, 2).selectExpr("id AS n", "id % 5 AS k").write.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("numbers")
    yield path
    spark.catalog.dropTempView("numbers")


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """TPC-H at SF 0.01 and four small relations in files: by name, the statement that makes a view of each."""
    folder = tmp_path_factory.mktemp("move")
    _generate("tpchgen-cli", "parquet", "-s", "0.01", "--output-dir", str(folder))
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.dataset as dataset
    import pyarrow.parquet as parquet

    ids = range(2_000)
    sales = pa.table(
        {
            "id": list(ids),
            "item": [None if i % 97 == 0 else i * 7 % 23 for i in ids],
            "amount": [i * 31 % 101 for i in ids],
            "day": pa.array([i % 12 for i in ids], pa.int32()),
        }
    )
    dataset.write_dataset(
        sales,
        folder / "sales",
        format="parquet",
        partitioning=dataset.partitioning(pa.schema([("day", pa.int32())]), flavor="hive"),
    )
    days = pa.table({"day": pa.array(range(12), pa.int32()), "week": pa.array([d // 3 for d in range(12)], pa.int32())})
    parquet.write_table(days, folder / "days.parquet")
    facts = pa.table({"id": list(range(300)), "value": [i * 13 % 17 for i in range(300)]})
    csv.write_csv(facts, folder / "facts.csv")
    words = ("red fox", "brown fox jumps", "red", "lazy dog")
    (folder / "events.json").write_text(
        "".join(
            json.dumps(
                {
                    "item": i % 50 or None,
                    "size": i % 9,
                    "words": words[i % 4],
                    "at": f"2024-01-{1 + i % 28:02}T10:00:00Z",
                }
            )
            + "\n"
            for i in range(200)
        )
    )
    views = {file.stem: f"USING parquet OPTIONS (path '{file}')" for file in folder.glob("*.parquet")}
    views["sales"] = f"USING parquet OPTIONS (path '{folder}/sales')"
    views["facts"] = f"(id INT, value INT) USING csv OPTIONS (path '{folder}/facts.csv', header 'true')"
    views["events"] = (
        f"(item INT, size INT, words STRING, at TIMESTAMP) USING json OPTIONS (path '{folder}/events.json')"
    )
    return _views(views)


@pytest.fixture(scope="session")
def tpcds_inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """TPC-DS at SF 0.01: by name, the statement that makes a view of each table."""
    folder = tmp_path_factory.mktemp("tpcds")
    _generate("tpcgen-cli", "tpcds", "parquet", "-s", "0.01", "--output-dir", str(folder))
    return _views({file.stem: f"USING parquet OPTIONS (path '{file}')" for file in folder.glob("*.parquet")})


def _generate(program: str, *arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name(program)), *arguments], check=True, capture_output=True)


def _views(sources: dict[str, str]) -> dict[str, str]:
    return {name: f"CREATE OR REPLACE TEMPORARY VIEW {name} {text};" for name, text in sources.items()}
