"""A look at the source of a workflow when it is declared: calls that cannot replay.

Not a sandbox: it sees names, not values. `asyncio.as_completed` is refused, because its order changes from
process to process; clocks, dice, files and threads are warned of, with the durable way to say it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Iterator
from typing import Any

from harvest.errors import DefinitionError

REFUSED = {"asyncio.as_completed": "use workflow.as_completed(...)"}
SUSPECT = {
    "time.time": "workflow.now()",
    "time.time_ns": "workflow.now()",
    "time.monotonic": "workflow.now()",
    "time.perf_counter": "workflow.now()",
    "time.sleep": "asyncio.sleep(...)",
    "datetime.now": "workflow.now()",
    "datetime.utcnow": "workflow.now()",
    "datetime.datetime.now": "workflow.now()",
    "datetime.datetime.utcnow": "workflow.now()",
    "date.today": "workflow.now().date()",
    "uuid.uuid4": "workflow.uuid4()",
    "uuid.uuid1": "workflow.uuid4()",
    "os.urandom": "workflow.random()",
    "os.getenv": "an input or an activity",
    "random.random": "workflow.random().random()",
    "random.randint": "workflow.random().randint(...)",
    "random.choice": "workflow.random().choice(...)",
    "random.shuffle": "workflow.random().shuffle(...)",
    "asyncio.to_thread": "an activity",
    "open": "an activity",
}


class NonDeterministicCall(UserWarning):
    """Workflow code calls something that gives another answer on replay."""


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute chain, else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def lint_workflow(target: Any, label: str) -> None:
    """Refuses or warns; silent where there is no source to read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
        file = inspect.getsourcefile(target) or "?"
        first = inspect.getsourcelines(target)[1]
    except (OSError, TypeError, SyntaxError):
        return
    for node in _calls(tree):
        name = dotted(node.func)
        if name in REFUSED:
            raise DefinitionError(f"workflow {label!r} calls {name} (line {first + node.lineno - 1})", hint=REFUSED[name])
        if name in SUSPECT:
            warnings.warn_explicit(
                f"workflow {label!r} calls {name}(), which gives another answer on replay; use {SUSPECT[name]}",
                NonDeterministicCall,
                file,
                first + node.lineno - 1,
            )


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """All calls, but not what a side effect does: it is recorded."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            if dotted(child.func).endswith("side_effect"):
                continue
            yield child
        yield from _calls(child)
