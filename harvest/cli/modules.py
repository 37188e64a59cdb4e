"""Importing what the user names, with an error that says what went wrong where."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType

from harvest.errors import ConfigError


def load_modules(names: list[str]) -> list[ModuleType]:
    """Imports `package.module` names or `path/to/file.py`, from the current directory first."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return [load_module(name) for name in names]


def load_module(name: str) -> ModuleType:
    dotted = name
    if name.endswith(".py"):
        path = os.path.relpath(name)
        if path.startswith(".."):
            sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
            path = os.path.basename(name)
        dotted = path[:-3].replace(os.sep, ".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (dotted == exc.name or dotted.startswith(exc.name + ".")):
            raise ConfigError(
                "module",
                f"there is no module {name!r}",
                hint=f"give a dotted name importable from {os.getcwd()}, or a .py file",
            ) from None
        raise ConfigError("module", f"{name!r} imports {exc.name!r}, which is not installed") from None
    except Exception as exc:
        if isinstance(exc, SyntaxError):
            raise ConfigError(
                "module", f"{name!r} does not import: SyntaxError: {exc.msg} (at {exc.filename}:{exc.lineno})"
            ) from exc
        frames = traceback.extract_tb(exc.__traceback__)
        at = next((f"{f.filename}:{f.lineno}" for f in reversed(frames) if "importlib" not in f.filename), "?")
        raise ConfigError("module", f"{name!r} does not import: {type(exc).__name__}: {exc} (at {at})") from exc
