"""The process a query is moved to: tickets come in, seconds and checks of the answers go out, one JSON a line."""

from __future__ import annotations

import json
import sys
import time

import headrace
from bench.move import answer_check, start_spark


def main() -> None:
    spark = start_spark()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        table = headrace.resume(spark, json.loads(line)["ticket"]).result().arrow()
        print(json.dumps({"seconds": time.perf_counter() - began, "check": answer_check(table)}), flush=True)


if __name__ == "__main__":
    main()
