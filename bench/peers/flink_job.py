"""Runs in Flink's own Python environment: reads requests, a JSON object a line, and answers likewise.

Knows nothing of Headrace. ``{"tables": {name: [columns, directory, watch]}, "sql": …, "answer": file}`` runs one
query to its end and writes the folded changelog as an Arrow file; ``{"tables": …, "watch": {name: sql}}``
starts one job that prints the changelog of every query for ever, as Flink's print sink does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from typing import Any

# Flink's tuning guide: mini-batches with local and global aggregation; reused objects between chained operators.
OPTIONS = {
    "pipeline.object-reuse": "true",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.size": "5000",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "table.local-time-zone": "UTC",
}


def environment(parallelism: int, latency: str, mode: str) -> Any:
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    options = Configuration()
    for name, value in OPTIONS.items():
        options.set_string(name, value)
    options.set_string("parallelism.default", str(parallelism))
    options.set_string("table.exec.mini-batch.allow-latency", latency)
    new = EnvironmentSettings.new_instance()
    new = new.in_batch_mode() if mode == "batch" else new.in_streaming_mode()
    settings = new.with_configuration(options).build()
    return TableEnvironment.create(settings)


def create(env: Any, tables: dict[str, Any]) -> None:
    for name, (columns, directory, watch) in tables.items():
        every = f", 'source.monitor-interval' = '{watch}'" if watch else ""
        env.execute_sql(f"DROP TEMPORARY TABLE IF EXISTS {name}")
        env.execute_sql(
            f"CREATE TEMPORARY TABLE {name} ({columns}) WITH ('connector' = 'filesystem', 'format' = 'csv',"
            f" 'csv.null-literal' = '', 'path' = 'file://{directory}'{every})"
        )


def run(env: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Submit the query, fold its changelog; the clock runs from submitting to the last row."""
    import pyarrow as pa

    create(env, request["tables"])
    rows: Counter[tuple[Any, ...]] = Counter()
    start = time.perf_counter()
    result = env.execute_sql(request["sql"])
    names = result.get_table_schema().get_field_names()
    with result.collect() as changes:
        for change in changes:
            rows[tuple(change)] += 1 if change.get_row_kind().value in (0, 2) else -1
    seconds = time.perf_counter() - start
    answer = [row for row, times in rows.items() for _ in range(times)]
    table = pa.table({name: [row[i] for row in answer] for i, name in enumerate(names)})
    with pa.OSFile(request["answer"], "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return {"seconds": seconds}


def watch(env: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Start one job for all the queries; lines like ``name:1> +U[3, 4]`` follow on standard output, and if the
    job ends by an error, a line ``failed> …``."""
    from pyflink.table import TableDescriptor

    create(env, request["tables"])
    statements = env.create_statement_set()
    queries = {name: env.sql_query(sql) for name, sql in request["watch"].items()}
    for name, query in queries.items():
        sink = TableDescriptor.for_connector("print").option("print-identifier", name).build()
        statements.add_insert(sink, query)
    job = statements.execute()

    def report_its_end() -> None:
        try:
            job.wait()
        except Exception as error:
            print(f"failed> {cause(str(error))}", flush=True)

    threading.Thread(target=report_its_end, daemon=True).start()
    return {"columns": {name: query.get_schema().get_field_names() for name, query in queries.items()}}


def cause(message: str) -> str:
    """The innermost cause of a Java stack trace.

    >>> cause("An error\\nCaused by: a.b.Outer: x\\n\\tat y\\nCaused by: c.Inner: no such file\\n\\tat z")
    'c.Inner: no such file'
    """
    lines = message.strip().splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0])[:300]


def main() -> None:
    parallelism, latency, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    env = environment(parallelism, latency, mode)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = watch(env, request) if "watch" in request else run(env, request)
        except Exception as error:
            reply = {"error": cause(str(error))}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
