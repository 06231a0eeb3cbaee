"""The store room: durable tuples, JSON definitions, files and epochs; nothing of SQL dialects, plans or Spark.

A database is a directory with one writing process. One commit is one epoch; readers see whole epochs.

>>> import pyarrow as pa
>>> with Store.open(None) as store:
...     store.commit(lambda tx: tx.create_relation("s1", pa.schema([("part", pa.string())])))
...     store.commit(lambda tx: tx.append("s1", pa.table({"part": ["bolt", "nut"]})))
...     with store.read() as snapshot:
...         print(snapshot.epoch, snapshot.rows("s1"), snapshot.scan("s1").column("part").to_pylist())
2 2 ['bolt', 'nut']
"""

from headrace.store.reading import Definition, Epoch, Segment, Stored
from headrace.store.snapshot import Glance, NotInMemory, Snapshot
from headrace.store.store import Store
from headrace.store.transaction import Transaction, writing

__all__ = [
    "Definition",
    "Epoch",
    "Glance",
    "NotInMemory",
    "Segment",
    "Snapshot",
    "Store",
    "Stored",
    "Transaction",
    "writing",
]
