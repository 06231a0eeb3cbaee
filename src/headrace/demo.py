"""The demo: a car plant that must not run out of parts (000 ch. 4, Figures 4.2 and 4.3).

Work stations report every part they use and every part they are brought, as two
streams. The continuous view ``low_stock`` says where fewer than five of a part
are left, and whom to call. A few million events are loaded from files through
Spark tasks, then live batches arrive while the view is read again and again;
at the end the same query, run by Spark as a batch over all the same events,
must give the same rows. That comparison decides the exit status.

The plant itself (:class:`Plant`) is a small seeded simulation on arrays: it
keeps the stock of each (part, station) and plays late deliveries, so that the
answer keeps changing yet stays a handful of rows.
"""

from __future__ import annotations

import logging
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.table import Table

from headrace.base.parquet_files import spark_reader, write_parquet
from headrace.base.temporary import temporary_folder
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENT_COLUMNS = "part_id INT, part STRING, station INT, worker INT"
STATION_COLUMNS = "id INT, plant STRING, location STRING, supplier STRING"
STREAMS = ("part_usage", "part_restock")
TASK_BYTES = 16 << 20

# Figure 4.2, with the counts aliased: Spark would name them count(1).
LOW_STOCK = """
WITH used AS (
  SELECT part, station, count(*) AS n FROM part_usage GROUP BY part, station
), restocked AS (
  SELECT part, station, count(*) AS n FROM part_restock GROUP BY part, station
)
SELECT r.part, s.location, s.supplier
FROM station s, used u, restocked r
WHERE s.id = u.station AND u.station = r.station AND u.part = r.part AND r.n - u.n < 5
"""

PARTS = ("Axle", "Battery", "Door", "Engine", "Gearbox", "Seat", "Wheel", "Windscreen")
STATIONS = (
    (1, "Spartanburg", "Gate 2 - EN", "+1 555 0142"),
    (2, "Spartanburg", "Gate 1 - SE", "+1 555 0117"),
    (3, "Regensburg", "Tor 2", "+49 555 3310"),
    (4, "Spartanburg", "Gate 3 - W", "+1 555 0163"),
    (5, "Spartanburg", "Gate 4 - NW", "+1 555 0188"),
    (6, "Regensburg", "Tor 1", "+49 555 3302"),
    (7, "Regensburg", "Tor 5 - Süd", "+49 555 3348"),
    (8, "Leipzig", "Halle A", "+49 555 7001"),
    (9, "Leipzig", "Halle B", "+49 555 7002"),
    (10, "Rosslyn", "Dock 1", "+27 555 210"),
    (11, "Rosslyn", "Dock 2", "+27 555 211"),
    (12, "Toluca", "Puerta 3", "+52 555 640"),
)
PARTS_AT_A_STATION = 4
BATCH_ROWS = 1_000
FULL_STOCK = 60
SECONDS_BETWEEN_CHANGES = 0.6
SHOWN = 8
Counts = NDArray[np.int64]


def station_table() -> pa.Table:
    """The static table of Figure 4.3."""
    ids, plants, locations, suppliers = zip(*STATIONS, strict=True)
    return pa.table({"id": pa.array(ids, pa.int32()), "plant": plants, "location": locations, "supplier": suppliers})


class Plant:
    """Stock by (part, station), and the events that move it.

    Deliveries come before use, so stock never runs below nothing:

    >>> plant = Plant(seed=7)
    >>> usage, restock = plant.history(20_000)
    >>> usage.num_rows + restock.num_rows == 20_000, bool((plant.stock >= 0).all())
    (True, True)
    >>> restock, usage = plant.minute()
    >>> usage.num_rows == BATCH_ROWS, bool((plant.stock >= 0).all())
    (True, True)
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        chosen = [self._rng.choice(len(PARTS), PARTS_AT_A_STATION, replace=False) for _ in STATIONS]
        self._part: Counts = np.concatenate(chosen)
        self._station: Counts = np.repeat([row[0] for row in STATIONS], PARTS_AT_A_STATION)
        self._names = pa.array(PARTS)
        self._next_id = dict.fromkeys(STREAMS, 0)
        self._late: list[int] = [int(g) for g in self._rng.choice(len(self._part), 4, replace=False)]
        self.stock: Counts = np.zeros(len(self._part), np.int64)

    def _wanted(self) -> Counts:
        """What should be on stock after the next delivery: plenty, but next to nothing where it is late."""
        wanted = self._rng.integers(FULL_STOCK // 2, FULL_STOCK, len(self.stock))
        wanted[self._late] = self._rng.integers(0, 5, len(self._late))
        return wanted

    def _events(self, stream: str, counts: Counts) -> pa.Table:
        groups = self._rng.permutation(np.repeat(np.arange(len(counts)), counts))
        first = self._next_id[stream]
        self._next_id[stream] += len(groups)
        return pa.table(
            {
                "part_id": pa.array(np.arange(first + 1, first + 1 + len(groups)), pa.int32()),
                "part": self._names.take(pa.array(self._part[groups])),
                "station": pa.array(self._station[groups], pa.int32()),
                "worker": pa.array(self._rng.integers(1, 200, len(groups)), pa.int32()),
            }
        )

    def history(self, events: int) -> tuple[pa.Table, pa.Table]:
        """(usage, restock) of all days before today, ``events`` rows in all."""
        wanted = self._wanted()
        used = self._rng.multinomial((events - int(wanted.sum())) // 2, np.full(len(wanted), 1 / len(wanted)))
        delivered = used + wanted
        delivered[np.argmax(wanted)] += events - int(used.sum() + delivered.sum())
        self.stock = delivered - used
        return self._events("part_usage", used), self._events("part_restock", delivered)

    def minute(self) -> tuple[pa.Table, pa.Table]:
        """(restock, usage) of the next minute, about ``BATCH_ROWS`` rows each."""
        used = self._rng.multinomial(BATCH_ROWS, np.full(len(self.stock), 1 / len(self.stock)))
        delivered = np.maximum(used + self._wanted() - self.stock, 0)
        self.stock = self.stock + delivered - used
        return self._events("part_restock", delivered), self._events("part_usage", used)

    def change(self) -> None:
        """A late delivery arrives, or another one is late; three to seven are at any time."""
        if len(self._late) > 3 and (len(self._late) > 6 or self._rng.random() < 0.5):
            self._late.pop(0)
        else:
            on_time = np.setdiff1d(np.arange(len(self.stock)), self._late)
            self._late.append(int(self._rng.choice(on_time)))

    def due(self) -> int:
        """How many rows ``low_stock`` must have.

        >>> import duckdb
        >>> plant, station = Plant(seed=7), station_table()
        >>> part_usage, part_restock = plant.history(20_000)
        >>> len(duckdb.sql(LOW_STOCK).fetchall()) == plant.due() > 0
        True
        """
        return int((self.stock < 5).sum())


@dataclass(slots=True)
class Gauge:
    """What the live part measures."""

    started: float = field(default_factory=time.perf_counter)
    rows: int = 0
    inserts: list[float] = field(default_factory=list)
    refreshes: list[float] = field(default_factory=list)
    since: dict[tuple[Any, ...], float] = field(default_factory=dict)
    changes: int = 0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def saw(self, answer: list[tuple[Any, ...]]) -> None:
        """Remember since when each row has been in the answer; count the rows that came or went."""
        now = time.perf_counter()
        if len(self.refreshes) > 1:  # the first answer is a start, not a change
            self.changes += len(self.since.keys() ^ set(answer))
        self.since = {row: self.since.get(row, now) for row in answer}

    def line(self) -> str:
        """The figures in less than 80 columns."""
        return (
            f"{self.rows:>9,} rows in, {self.rows / max(self.elapsed, 1e-9):>9,.0f} rows/s; "
            f"insert p50 {_ms(self.inserts)}, refresh p50 {_ms(self.refreshes)}"
        )


@contextmanager
def interrupt_later() -> Iterator[list[int]]:
    """Hold Ctrl-C back until the block is done; the list it gives is empty until then.

    A JVM whose Python leaves while it starts never ends, and native code that is
    interrupted inside a callback reports some other error. Where either can be, the
    block runs to its end and then raises.
    """
    pressed: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        pressed.append(signum)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        # Spark sets a handler of its own when it is up (it cancels jobs): that one stays.
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _ms(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.1f} ms" if seconds else "-"


def _answer(rows: pa.Table) -> list[tuple[Any, ...]]:
    """The view's rows as sorted tuples: for people, and for comparing as a multiset."""
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def write_history(plant: Plant, events: int, directory: Path, files: int = 4) -> None:
    """The plant's past as CSV files, some for each stream."""
    for stream, rows in zip(STREAMS, plant.history(events), strict=True):
        (directory / stream).mkdir(parents=True)
        step = -(-rows.num_rows // files)
        for part in range(files):
            pa_csv.write_csv(rows.slice(part * step, step), directory / stream / f"day-{part + 1}.csv")


def spark_answer(spark: SparkSession, directory: Path) -> list[tuple[Any, ...]]:
    """Figure 4.2 by Spark alone, as a batch over the same files and the live batches kept beside them."""
    for stream in STREAMS:
        past = spark_reader(spark).schema(EVENT_COLUMNS).csv(str(directory / stream), header=True)
        live = spark_reader(spark).schema(EVENT_COLUMNS).parquet(str(directory / f"{stream}.live.parquet"))
        past.union(live).createOrReplaceTempView(stream)
    spark.createDataFrame(station_table().to_pandas(), STATION_COLUMNS).createOrReplaceTempView("station")
    try:
        return _answer(cast(pa.Table, spark.sql(LOW_STOCK).toArrow()))
    finally:
        for name in (*STREAMS, "station"):
            spark.catalog.dropTempView(name)


class Screen:
    """What the demo shows: a live display on a terminal, plain lines anywhere else."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.fancy = console.is_terminal

    def say(self, text: str = "") -> None:
        self.console.print(text, highlight=False, soft_wrap=not self.fancy)

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """A spinner while something runs, then one line with the time it took."""
        start = time.perf_counter()
        if self.fancy:
            with self.console.status(f"{doing} ..."):
                yield
        else:
            self.say(f"{doing} ...")
            yield
        self.say(f"[green]✓[/] {done} [dim]({time.perf_counter() - start:.1f} s)[/]")

    @contextmanager
    def loading(self, stream: str) -> Iterator[Callable[[int, int], None]]:
        """A progress bar in bytes, or a line for each quarter."""
        if self.fancy:
            columns = (
                TextColumn(f"  {stream:<13}"),
                BarColumn(bar_width=24),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self.console) as bar:
                task = bar.add_task(stream, total=None)
                yield lambda done, total: bar.update(task, completed=done, total=total)
            return
        shown = [0]

        def quarters(done: int, total: int) -> None:
            quarter = 4 * done // max(total, 1)
            if quarter > shown[0]:
                shown[0] = quarter
                self.say(f"  {stream}: {25 * quarter} % of {total / 1e6:.0f} MB")

        yield quarters

    def board(self, gauge: Gauge, seconds: float) -> RenderableType:
        """The view's answer now, rows that just came marked, and the figures below."""
        table = Table(title="low_stock", title_justify="left", width=76, expand=False)
        table.add_column("part", width=12)
        table.add_column("location", width=16)
        table.add_column("supplier", width=16)
        table.add_column("low for", width=10, justify="right")
        now = time.perf_counter()
        rows = sorted(gauge.since.items())
        for row, since in rows[:SHOWN]:
            age = now - since
            table.add_row(*map(str, row), f"{age:.1f} s", style="bold yellow" if age < 1 else "")
        # The height stays the same, or the whole screen would jump.
        for _ in range(SHOWN - len(rows)):
            table.add_row("", "", "", "")
        more = f"... and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        left = f"{max(seconds - gauge.elapsed, 0):.0f} s to go, Ctrl-C stops" + (f"   {more}" if more else "")
        return Group(table, gauge.line(), f"[dim]{left}[/]")

    @contextmanager
    def watching(self, gauge: Gauge, seconds: float) -> Iterator[Callable[[], None]]:
        """A function to call after each refresh of the view; it draws ten times a second at most."""
        shown = [0.0]
        if self.fancy:
            with Live(self.board(gauge, seconds), console=self.console, auto_refresh=False) as live:

                def draw() -> None:
                    if gauge.elapsed - shown[0] >= 0.1:
                        shown[0] = gauge.elapsed
                        live.update(self.board(gauge, seconds), refresh=True)

                yield draw
                live.update(self.board(gauge, seconds), refresh=True)
            return

        def line() -> None:
            if gauge.elapsed - shown[0] >= 1:
                shown[0] = gauge.elapsed
                self.say(f"  {gauge.elapsed:3.0f} s: {gauge.line()}; low: {len(gauge.since)}")

        yield line


def run(events: int = 5_000_000, seconds: float = 8.0, seed: int = 42) -> int:
    """Run the demo; the exit status is 0 only if Spark's own answer was the same."""
    screen = Screen(Console(highlight=False))
    # An interrupted call to the JVM is logged with its traceback; Ctrl-C is no news here.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        with temporary_folder() as directory:
            return _run(screen, directory, events, seconds, seed)
    except KeyboardInterrupt:
        screen.say("\nStopped. Nothing is left behind.")
        return 130
    except HeadraceError as error:
        screen.say(f"[red]{error}[/]")
        return 1


def _run(screen: Screen, directory: Path, events: int, seconds: float, seed: int) -> int:
    import headrace

    screen.say("[bold]Headrace: a car plant that must not run out of parts[/]\n")
    plant = Plant(seed)
    with screen.step("Writing the plant's past events", f"{events:,} past events in CSV files"):
        write_history(plant, events, directory)
    # The demo's files are modest; send them the way large ones go.
    with headrace.connect(str(directory / "plant.hr"), task_bytes=TASK_BYTES) as db:
        for stream in STREAMS:
            db.sql(f"CREATE STREAM {stream} ({EVENT_COLUMNS})")
        db.sql(f"CREATE TABLE station ({STATION_COLUMNS}, PRIMARY KEY (id))")
        db.insert("station", station_table())
        db.sql(f"CREATE VIEW low_stock AS {LOW_STOCK}")
        screen.say("[green]✓[/] streams part_usage, part_restock; table station; continuous view low_stock")
        with interrupt_later(), screen.step("Starting Spark", "Spark started"):
            spark = db.spark
        start = time.perf_counter()
        for stream in STREAMS:
            with screen.loading(stream) as progress:
                db.copy(stream, str(directory / stream / "*.csv"), progress=progress, header=True)
        took = time.perf_counter() - start
        sizes = [sum(f.stat().st_size for f in (directory / stream).iterdir()) for stream in STREAMS]
        how = "by Spark tasks" if min(sizes) >= TASK_BYTES else "in process"
        screen.say(f"[green]✓[/] loaded {how}, {events / took:,.0f} rows/s [dim]({took:.1f} s)[/]\n")

        gauge, kept = _feed(screen, db, plant, seconds)
        start = time.perf_counter()
        answer = _answer(db.sql("SELECT * FROM low_stock").arrow())
        read = time.perf_counter() - start
        start = time.perf_counter()
        with screen.step("Spark batch, same query, same events", "the same query as a Spark batch over all events"):
            for stream in STREAMS:
                write_parquet(pa.concat_tables(kept[stream]), directory / f"{stream}.live.parquet")
            expected = spark_answer(spark, directory)
        batch = time.perf_counter() - start
    return _report(screen, events, gauge, answer, expected, read, batch, plant)


def _feed(screen: Screen, db: Any, plant: Plant, seconds: float) -> tuple[Gauge, dict[str, list[pa.Table]]]:
    """Insert live batches and read the view in turns; the batches are kept for the check."""
    kept: dict[str, list[pa.Table]] = {stream: [] for stream in STREAMS}
    gauge = Gauge()
    next_change = 0.0
    with interrupt_later() as pressed, screen.watching(gauge, seconds) as draw:
        while gauge.elapsed < seconds and not pressed:
            if gauge.elapsed >= next_change:
                plant.change()
                next_change += SECONDS_BETWEEN_CHANGES
            restock, usage = plant.minute()
            for stream, rows in (("part_restock", restock), ("part_usage", usage)):
                start = time.perf_counter()
                db.insert(stream, rows)
                gauge.inserts.append(time.perf_counter() - start)
                gauge.rows += rows.num_rows
                kept[stream].append(rows)
            start = time.perf_counter()
            answer = db.sql("SELECT * FROM low_stock").arrow()
            gauge.refreshes.append(time.perf_counter() - start)
            gauge.saw(_answer(answer))
            draw()
    return gauge, kept


def _report(
    screen: Screen,
    events: int,
    gauge: Gauge,
    answer: list[tuple[Any, ...]],
    expected: list[tuple[Any, ...]],
    read: float,
    batch: float,
    plant: Plant,
) -> int:
    live = f"{len(gauge.inserts):,} live inserts of {gauge.rows:,} rows"
    screen.say(f"\n[bold]Report[/]\n  events   {events + gauge.rows:,} in all: {events:,} bulk, {live}")
    screen.say(f"  live     insert p50 {_ms(gauge.inserts)}; view refreshed {len(gauge.refreshes):,} times,")
    screen.say(f"           p50 {_ms(gauge.refreshes)}; {gauge.changes} rows came into or left the answer")
    if answer != expected or len(answer) != plant.due():
        screen.say(f"  check    [red]WRONG[/]: low_stock has {len(answer)} rows, Spark's batch {len(expected)}")
        for row in sorted(set(answer) ^ set(expected))[:SHOWN]:
            screen.say(f"           only {'in low_stock' if row in answer else 'from Spark'}: {row}")
        return 1
    screen.say(f"  check    [green]the same {len(answer)} rows[/] from low_stock in {1e3 * read:.1f} ms")
    screen.say(f"           and from Spark's batch over all events in {batch:.1f} s")
    screen.say("\nNext: [bold]headrace sql[/] for a prompt, README.md for the tour, [bold]make bench[/] for figures.")
    return 0


if __name__ == "__main__":
    import typer

    def main(events: int = 5_000_000, seconds: float = 8.0, seed: int = 42) -> None:
        """A car plant that must not run out of parts."""
        sys.exit(run(events, seconds, seed))

    typer.run(main)
