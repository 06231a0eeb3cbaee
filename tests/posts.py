"""A stream of posts and a table of users, for tests that query the stream itself."""

from __future__ import annotations

import threading
from typing import Any

from headrace.database import Database

POSTS = "uid INT, username STRING, score INT, content STRING"
USERS = "id INT, name STRING, rate DOUBLE, region STRING"
USER_ROWS = [(1, "ann", 2.0, "DE"), (2, "bob", 3.0, "DE"), (3, "cleo", 1.0, "FR"), (4, None, None, "DE")]


def posts(start: int, count: int) -> list[tuple[Any, ...]]:
    return [
        (None if n % 13 == 0 else 1 + n % 5, f"user{n % 7}", n * 37 % 1009, None if n % 11 == 0 else f"text {n} " * 3)
        for n in range(start, start + count)
    ]


def fill(db: Database, options: str = "WITH (capacity = 1000, timeout = '2 hours')") -> None:
    db.sql(f"CREATE STREAM posts ({POSTS}) {options}")
    db.sql(f"CREATE TABLE users ({USERS})")
    db.insert("users", USER_ROWS)


def inserting(db: Database, chunks: list[list[tuple[Any, ...]]]) -> threading.Thread:
    thread = threading.Thread(target=lambda: [db.insert("posts", chunk) for chunk in chunks])
    thread.start()
    return thread
