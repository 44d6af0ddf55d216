# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a host still has what a hook patches, read from its source without importing it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path


def find_root(package: str) -> Path | None:
    """Return the folder that holds a top-level package's folder; None if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent.parent


def has_symbol(root: Path, module: str, symbol: str) -> bool:
    """Return whether ``module`` under ``root`` defines or imports ``symbol`` (a name, or ``Class.method``).

    Example:
        has_symbol(find_root("verl"), "verl.utils.tracking", "Tracking.log")
    """
    tree = _parse(root, module)
    if tree is None:
        return False
    name, _, member = symbol.partition(".")
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return not member or any(
                isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == member for each in node.body
            )
        if member:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any(
            (each.asname or each.name) == name for each in node.names
        ):
            return True
    return False


@lru_cache(maxsize=64)
def _parse(root: Path, module: str) -> ast.Module | None:
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text("utf-8"))
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those under ``if`` and ``try``."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try)):
                yield from _statements(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)
