"""Split an ad hoc query over streams: a continuous view that lives for one window (003 §3.4).

What a view may keep, the query keeps: the first grouping above a stream becomes mergeable state. A view refuses
whatever would store the whole stream; a query may have it, for its window ends. So where rows of a stream reach
something that needs all of them at once (a sort, the build side of a join, the end of the query), they are *gathered*:
filtered, joined and projected as they come, and kept as they are. Then the rest runs over them.

    stream ─ filter ─ probe static ─┬─ partial grouping ─▶ state ─ merge ─┐
             └──── as it comes ──────┴─ rows, gathered ────────────────────┴─ upper, when the window ends ─▶ answer
"""

from __future__ import annotations

from headrace.errors import NotYetSupported, SqlError, ViewRefused
from headrace.plan.exprs import Column
from headrace.plan.nodes import (
    Aggregate,
    Join,
    Leaf,
    Node,
    Project,
    SetOperation,
    Sort,
    SparkSql,
    UnionAll,
    Window,
    is_leaf,
    leaves,
    map_children,
    streams_in,
    walk_plan,
    with_a_column,
)
from headrace.plan.pipelines import SplitPlan, State, StreamPipeline
from headrace.plan.refs import StateRef, StreamRef
from headrace.plan.split import Splitter, pieces_of


def split_window(root: Node) -> SplitPlan:
    """Cut a query that reads streams into what runs as tuples come and what runs when the window has ended."""
    _check_places(root)
    _require_held(root)
    try:
        return _Window(grouping=True).run(root)
    except ViewRefused:
        # A state cannot hold some key or value: keep rows instead and group them at the end.
        return _Window(grouping=False).run(root)


def streams_out(plan: SplitPlan) -> bool:
    """Whether the rows of the answer are those that are gathered, so that each can go out as it comes."""
    return is_leaf(plan.upper, StateRef)


def rows_wanted(plan: SplitPlan) -> tuple[str, int] | None:
    """Of which gathered rows how many are enough for the answer: those of a LIMIT that sorts and groups nothing."""
    node = plan.upper
    while isinstance(node, Project):
        node = node.child
    if isinstance(node, Sort) and not node.keys and node.limit is not None:
        below = node.child
        while isinstance(below, Project):
            below = below.child
        if is_leaf(below, StateRef) and plan.state(below.relation).kind == "rows":
            return below.relation, node.limit + node.offset
    return None


def _check_places(root: Node) -> None:
    """A stream read twice is read once, from one place."""
    places: dict[str, bool] = {}
    for node in walk_plan(root):
        if not is_leaf(node, StreamRef):
            continue
        if places.setdefault(node.relation, node.oldest) != node.oldest:
            raise SqlError(
                "STREAM_POSITIONS_DIFFER",
                f"the query reads stream {node.relation} from two places",
                hint=f"write {node.relation}@OLDEST everywhere, or nowhere",
            )


def _require_held(node: Node) -> None:
    """Rows that are gathered, and those of the answer, are held as Arrow until the window has ended."""
    for column in node.output:
        if not column.type.is_held:
            raise NotYetSupported(
                f"a column of type {column.type.sql} ({column.name}) in a query of a stream",
                hint="cast it, for example AS STRING, or CREATE VIEW over the stream and query that",
            )


class _Window(Splitter):
    """A splitter that gathers rows where a view would be refused."""

    def __init__(self, *, grouping: bool) -> None:
        super().__init__(None)
        self._grouping = grouping
        self._gathered: dict[int, Leaf] = {}
        self._visited: dict[int, tuple[Node, bool]] = {}

    def run(self, root: Node) -> SplitPlan:
        node, ungrouped = self._visit(root)
        return super().run(self._gather(node) if ungrouped else node)

    def _check(self, root: Node) -> None:
        """Whatever a view would be refused for is gathered."""

    def _visit(self, node: Node) -> tuple[Node, bool]:
        """The node with what it needs all of gathered, and whether rows of a stream come out of it one by one."""
        if id(node) not in self._visited:
            below = [self._visit(child) for child in node.children]
            if self._needs_all(node, [n for n, _ in below], [u for _, u in below]):
                below = [(self._gather(n) if u else n, False) for n, u in below]
            rebuilt = iter([n for n, _ in below])
            done = map_children(node, lambda _: next(rebuilt))
            self._visited[id(node)] = (
                done,
                _is_stream(node) or (not isinstance(node, Aggregate) and any(u for _, u in below)),
            )
        return self._visited[id(node)]

    def _needs_all(self, node: Node, children: list[Node], ungrouped: list[bool]) -> bool:
        if isinstance(node, Sort | Window | SparkSql | SetOperation):
            return True
        if isinstance(node, Aggregate):
            return not self._grouping
        if isinstance(node, UnionAll):
            return any(streams_in(c) and not u for c, u in zip(children, ungrouped, strict=True))
        if isinstance(node, Join):
            # The right side is built before the left probes it; a full join must see both to their ends.
            return ungrouped[1] or node.kind == "full" or bool(self._live(children[1]))
        return False

    def _live(self, node: Node) -> bool:
        """Whether rows of a stream reach a node, grouped or gathered: it is there when the window has ended."""
        return bool(leaves(node, StreamRef, StateRef))

    def _gather(self, node: Node) -> Leaf:
        """A scan of the node's rows, and the pipelines that gather them."""
        if id(node) not in self._gathered:
            _require_held(node)
            whole = with_a_column(node)
            columns = tuple(Column.fresh(f"c{i}", c.type) for i, c in enumerate(whole.output))
            labels = tuple(c.name for c in whole.output)
            state = State(f"w{len(self._gathered)}", "rows", columns, (), labels, grouping="")
            self.states.append(state)
            for piece in pieces_of(self._materialise_statics(whole)):
                named = tuple((Column.fresh(c.name, c.type), e) for c, e in zip(columns, whole.output, strict=True))
                self.streams.append(StreamPipeline(piece.stream, state.name, Project(piece.plan, named)))
            names = tuple(c.name for c in columns)
            self._gathered[id(node)] = Leaf(StateRef(state.name), names, whole.output)
        return self._gathered[id(node)]


def _is_stream(node: Node) -> bool:
    return is_leaf(node, StreamRef)
