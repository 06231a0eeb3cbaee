"""A second Spark process for tests: it resumes tickets with other settings, one JSON command a line."""

from __future__ import annotations

import json
import os
import pickle
import sys
from typing import Any


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    import headrace
    from headrace.errors import HeadraceError

    builder = SparkSession.builder.master("local[1]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.stream.error.file=/dev/null",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    held: list[Any] = []

    def do(command: dict[str, Any]) -> Any:
        match command["do"]:
            case "resume":
                running = headrace.resume(spark, command["ticket"], **command.get("options", {}))
                table = running.result().arrow()
                return {
                    "columns": table.column_names,
                    "rows": table.to_pylist(),
                    "moved": len(running._planned.scans),
                    "restarted": running.restarted and running.restarted.condition,
                }
            case "hold":  # resume, and stay in the middle of it
                held.append(headrace.resume(spark, command["ticket"]))
                return held[-1].status
            case "suspend slowly":
                running = headrace.run(spark, command["query"])
                while running.progress().finished < 1:
                    pass
                print(pickle.dumps("begun").hex(), file=answers, flush=True)
                running.suspend(command["path"], finish=command.get("finish", True))
                return "suspended"
        raise ValueError(command)

    answers = os.fdopen(int(sys.argv[1]), "w")
    for line in sys.stdin:
        try:
            answer = do(json.loads(line))
        except HeadraceError as error:
            answer = {"error": error.condition, "message": str(error)}
        print(pickle.dumps(answer).hex(), file=answers, flush=True)


if __name__ == "__main__":
    main()
