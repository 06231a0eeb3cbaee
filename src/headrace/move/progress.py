"""How far a query has got: pipelines finished of all (000 §6.1, Definition 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from headrace.move import states
from headrace.move.plan import Pipeline
from headrace.move.spark_plans import SparkStage

if TYPE_CHECKING:
    from headrace.move.planned import Planned


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """One pipeline, by the operator it ends at."""

    operator: str
    finished: bool
    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    moved: bool = False
    """Its rows came with a ticket."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The pipelines of a query, in the order the plan names them, and the last one, which gives the answer.

    >>> print(Progress("running", 1, 2, (PipelineProgress("Exchange", True, 3, 48, 0.25),), 1.0))
    running: 1 of 2 pipelines finished after 1.0 s
      done  Exchange  3 rows, 48 bytes, 0.2 s
    """

    status: str
    finished: int
    total: int
    pipelines: tuple[PipelineProgress, ...]
    seconds: float
    """Since it began; of a resumed query, with what it took before it was moved."""

    @property
    def fraction(self) -> float:
        return self.finished / self.total

    def __str__(self) -> str:
        lines = [f"{self.status}: {self.finished} of {self.total} pipelines finished after {self.seconds:.1f} s"]
        for each in self.pipelines:
            mark = "moved" if each.moved else "done " if each.finished else "     "
            lines.append(f"  {mark} {each.operator}  {_figures(each)}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = escape(str(self).splitlines()[0])
        rows = "".join(
            f"<tr><td>{'✓' if p.finished else ''}</td><td>{escape(p.operator)}</td><td>{escape(_figures(p))}</td></tr>"
            for p in self.pipelines
        )
        return f'<p>{head}</p><progress value="{self.finished}" max="{self.total}"></progress><table>{rows}</table>'


def pipelines_of(
    planned: Planned, held: Mapping[Pipeline, SparkStage], carried: Mapping[Pipeline, states.StageState]
) -> Iterator[PipelineProgress]:
    """The pipelines of a plan, where ``held`` has run and ``carried`` came with a ticket."""
    for pipeline in planned.depends:
        if pipeline is None:
            continue
        stage = held.get(pipeline)
        if pipeline in planned.told:
            yield planned.told[pipeline]
        elif stage is not None and stage.finished:
            size, rows = states.size_of(stage)
            seconds = states.seconds_of(planned.spark, stage)
            said = PipelineProgress(states.operator_of(stage), True, rows, size, seconds)
            if seconds is not None:  # Spark hears of it a little later
                planned.told[pipeline] = said
            yield said
        elif pipeline in carried:
            state = carried[pipeline]
            yield PipelineProgress(state.operator, True, state.rows, state.bytes, moved=True)
        else:
            if pipeline not in planned.awaited:
                text = states.text_of(planned.breakers[pipeline].node)
                planned.awaited[pipeline] = PipelineProgress(text, False)
            yield planned.awaited[pipeline]


def watch(progress: Callable[[], Progress], over: Callable[[float], bool]) -> None:
    """A live bar, in a terminal or a notebook, until ``over``, which waits for so many seconds."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("pipelines")
        while not over(0.5):
            now = progress()
            bar.update(task, completed=now.finished, total=now.total)


def _figures(pipeline: PipelineProgress) -> str:
    found = []
    if pipeline.rows is not None:
        found.append(f"{pipeline.rows:,} rows")
    if pipeline.bytes is not None:
        found.append(f"{pipeline.bytes:,} bytes")
    if pipeline.seconds is not None:
        found.append(f"{pipeline.seconds:.1f} s")
    return ", ".join(found)
