# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Signatures in a tree of sources, read without importing it: imported and inherited ones are followed within the tree."""

import ast
import importlib.util
from functools import cache
from itertools import zip_longest

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def describe(root, module, symbol):
    """Return how a function or ``Class.method`` is written, without types and defaults; None if there is none.

    Example:
        describe(root, "verl.utils.tracking", "Tracking.log") == "def (self, data, step, backend=)"
    """
    name, _, member = symbol.partition(".")
    found = find(root, module, name)
    if found is not None and member:
        found = find_member(root, *found, member)
    return None if found is None else render(found[1])


def find(root, module, name, seen=()):
    """Return the module and the statement that give a name its meaning; None if there is none."""
    if module in seen:
        return None
    last = None
    for node in read(root, module):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == name:
            last = module, node
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                if each.name == "*" or (each.asname or each.name) == name:
                    origin = resolve(root, module, node)
                    last = find(root, origin, name if each.name == "*" else each.name, (*seen, module)) or last
        elif isinstance(node, ast.Assign) and any(isinstance(it, ast.Name) and it.id == name for it in node.targets):
            last = last or (module, node)
    return last


def find_member(root, module, node, member):
    """Return the module and the statement of a method, its own or one of a base in the tree."""
    if not isinstance(node, ast.ClassDef):
        return None
    for each in statements(node.body):
        if isinstance(each, FUNCTIONS) and each.name == member:
            return module, each
    for base in node.bases:
        owner = find(root, module, base.id) if isinstance(base, ast.Name) and base.id != node.name else None
        found = find_member(root, *owner, member) if owner is not None else None
        if found is not None:
            return found
    return None


def fields(root, module, name):
    """Return the fields of a class: annotated in its body, or set on ``self``, its own and those of its bases."""
    found = find(root, module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return set()
    module, node = found
    names = set()
    for each in ast.walk(node):
        if isinstance(each, (ast.Assign, ast.AnnAssign)):
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    names.add(target.attr)
                elif isinstance(target, ast.Name) and each in node.body:
                    names.add(target.id)
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id != name:
            names |= fields(root, module, base.id)
    return names


def render(node):
    """Return a function's decorators, kind and arguments; ``=`` marks one that has a default."""
    if not isinstance(node, FUNCTIONS):
        return "class" if isinstance(node, ast.ClassDef) else "assigned"
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = list(reversed([default is not None for _, default in _from_the_end(plain, given.defaults)]))
    words = [each.arg + "=" * has for each, has in zip(plain, defaults, strict=True)]
    if given.posonlyargs:
        words.insert(len(given.posonlyargs), "/")
    if given.vararg:
        words.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        words.append("*")
    words += [
        each.arg + "=" * (default is not None)
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        words.append(f"**{given.kwarg.arg}")
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return " ".join([*(f"@{ast.unparse(each)}" for each in node.decorator_list), kind, f"({', '.join(words)})"])


def _from_the_end(arguments, defaults):
    return zip_longest(reversed(arguments), reversed(defaults))


def resolve(root, module, node):
    """Return the full name of the module that a statement imports from."""
    is_package = root.joinpath(*module.split("."), "__init__.py").is_file()
    package = module if is_package else module.rpartition(".")[0]
    try:
        return importlib.util.resolve_name("." * node.level + (node.module or ""), package)
    except ImportError:
        return ""


def read(root, module):
    """Return the statements of a module, also those under ``if``, ``try`` and ``with``; none if it is not in the tree."""
    tree = parse(root, module)
    return list(statements(tree.body)) if tree is not None else []


@cache
def parse(root, module):
    """Return a module's tree; None if it is not there."""
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if module and path.is_file():
            return ast.parse(path.read_bytes())
    return None


def statements(body):
    """Yield statements and what is nested in them, functions and classes excepted."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                yield from statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)
