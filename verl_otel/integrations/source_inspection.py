# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a host has the symbols that hooks patch, read from its source without importing it."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
from collections.abc import Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

_CALLABLES: Final = (ast.Name, ast.Attribute, ast.Call, ast.Lambda)
"""Expressions whose value may be a function."""


class _Class(NamedTuple):
    module: str
    node: ast.ClassDef | None
    """None: it is defined outside of the source tree, so its members are unknown."""


def find_root(package: str) -> Path | None:
    """Return the folder that holds a top-level package's folder; None if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent.parent


def is_release(*, since: str = "", until: str = "") -> bool:
    """Return whether the installed version is at or after one release and before another; True if it is unknown.

    Example:
        is_release(since="verl 0.8", until="verl 0.9")
    """
    for bound, is_after in ((since, True), (until, False)):
        package, _, text = bound.partition(" ")
        installed = read_version(package) if package else None
        if installed and (installed >= parse_version(text)) is not is_after:
            return False
    return True


def read_version(package: str) -> tuple[int, ...] | None:
    """Return the first numbers of an installed package's version; None if it is not installed."""
    version = installed_version(package)
    return parse_version(version) if version else None


def installed_version(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, or as many as there are.

    Example:
        (0, 9) of "0.9rc1" and (0, 7, 0) of "0.7.0.dev0"; () of "unknown"
    """
    numbers = (re.match(r"\d+", part) for part in text.split(".")[:3])
    return tuple(int(number[0]) for number in itertools.takewhile(bool, numbers) if number)


def has_symbol(root: Path, module: str, symbol: str) -> bool:
    """Return whether ``module`` under ``root`` has ``symbol`` (a name, or ``Class.method``): its own, imported or inherited.

    Example:
        has_symbol(find_root("verl"), "verl.utils.tracking", "Tracking.log")
    """
    name, _, member = symbol.partition(".")
    if not member:
        return any(_binds(node, name) for node in _read(root, module))
    owner = _find_class(root, module, name)
    return owner is not None and (owner.node is None or _has_member(root, owner, member))


def _binds(node: ast.stmt, name: str) -> bool:
    """Return whether a statement binds this name to a function, a class or an import."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name == name
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any((alias.asname or alias.name) == name for alias in node.names)
    if isinstance(node, ast.Assign) and isinstance(node.value, _CALLABLES):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return False


def _find_class(root: Path, module: str, name: str, seen: tuple[str, ...] = ()) -> _Class | None:
    """Return the class that a name refers to in a module, resolved through imports; None if there is none."""
    if module in seen:
        return None
    for node in _read(root, module):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _Class(module, node)
        if isinstance(node, ast.ImportFrom) and _binds(node, name):
            origin = _origin(root, module, node)
            if _parse(root, origin) is None:
                return _Class(origin, None)
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return _find_class(root, origin, original, (*seen, module))
    return None


def _has_member(root: Path, owner: _Class, member: str) -> bool:
    """Return whether a class has a method, its own or one of a base in the source tree."""
    node = owner.node
    if node is None:
        return False
    if any(_binds(statement, member) for statement in _statements(node.body)):
        return True
    names = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != node.name]
    bases = [_find_class(root, owner.module, name) for name in names]
    return any(base is not None and _has_member(root, base, member) for base in bases)


def _origin(root: Path, module: str, node: ast.ImportFrom) -> str:
    """Return the full name of the module of an import."""
    is_package = (root.joinpath(*module.split(".")) / "__init__.py").is_file()
    package = module if is_package else module.rpartition(".")[0]
    try:
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:
        return ""


def _read(root: Path, module: str) -> Iterator[ast.stmt]:
    tree = _parse(root, module)
    return _statements(tree.body if tree is not None else [])


@lru_cache(maxsize=64)
def _parse(root: Path, module: str) -> ast.Module | None:
    """Return the source of a module; None if there is none, or none that can be read."""
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            try:
                return ast.parse(path.read_bytes())
            except (OSError, ValueError, SyntaxError):
                return None
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, also those under ``if`` and ``try``."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try)):
                yield from _statements(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)
