"""Every module has a room, and every name one meaning. Who may import whom is linted (pyproject.toml)."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
FRONT = {"__init__", "__main__", "cli", "database", "demo", "errors", "runtime", "settings", "types"}
"""The modules beside the rooms: the edges, what an open database shares, and what everything is said in."""


def test_every_module_has_a_room() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == FRONT


def test_a_room_says_its_idea_first() -> None:
    silent = [
        room.parent.name
        for room in SOURCE.glob("*/__init__.py")
        if len(ast.get_docstring(ast.parse(room.read_text())) or "") < 80
    ]
    assert not silent, "a reader who opens a folder should learn the idea from its first lines"


def test_a_class_name_has_one_meaning() -> None:
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(SOURCE).as_posix())
    assert not {name: places for name, places in found.items() if len(places) > 1}
