"""The walls of the house: rules that no other tool checks."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    p
    for top in ("harvest", "diskcache", "entity_sql", "migrations", "examples", "benchmarks", "tests")
    for p in (ROOT / top).rglob("*.py")
]


def test_every_package_is_installed():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "harvest").rglob("__init__.py")}
    assert listed == found | {"harvest.diskcache", "harvest.entity_sql", "harvest.migrations"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_too_long(path):
    assert len(path.read_text().splitlines()) <= 600, "600 lines is the limit"


def test_functions_fit_a_screen():
    long = []
    for path in SOURCES:
        if path.parts[len(ROOT.parts)] not in ("harvest", "diskcache", "entity_sql"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno
                if lines > 70:
                    long.append(f"{path.name}:{node.name} ({lines})")
    assert not long


def test_sql_is_static():
    """No SQL is put together from values: f-strings and % never meet a statement (the schema's name is checked)."""
    suspects = []
    for path in (ROOT / "harvest").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                text = "".join(v.value for v in node.values if isinstance(v, ast.Constant) and isinstance(v.value, str)).lower()
                if re.match(r"\s*(select .* from|insert into|update \S* set|delete from|alter|drop) ", text):
                    suspects.append(f"{path.name}:{node.lineno}")
    assert not suspects


def test_nothing_is_pickled():
    for path in (ROOT / "harvest").rglob("*.py"):
        assert "pickle" not in path.read_text(), path
