"""Tasks that Spark stops half-way and runs again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def stopped(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Gives frames whose last task Spark stops half-way, when a file "reached" is there, and runs again."""
    waiting, again, done = tmp_path / "waiting", tmp_path / "again", threading.Event()

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            if context.attemptNumber() > 0:
                again.touch()
            elif context.partitionId() == 1 and number == 2:
                waiting.write_text(str(context.taskAttemptId()))
                for _ in range(25_000):  # some minutes, if nobody stops it
                    if again.exists():
                        break
                    time.sleep(0.02)

    def stop() -> None:
        while not done.wait(0.02):
            if (tmp_path / "reached").exists() and waiting.exists() and (task := waiting.read_text()):
                spark.sparkContext._jsc.sc().killTaskAttempt(int(task), True, "half-way")
                return

    stopper = threading.Thread(target=stop)
    stopper.start()
    yield lambda frame: frame.mapInArrow(rows, frame.schema)
    done.set()
    stopper.join()
    assert again.exists(), "nothing was stopped"
