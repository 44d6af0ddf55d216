# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a host has a function is read from its source, without importing it."""

import importlib.util
import sys

import pytest

from verl_otel.integrations import source_inspection

SOURCE = """
import os, os.path as p
from typing import Any as Something, TYPE_CHECKING
from .elsewhere import (
    first,
    second as renamed,
)

def function(): ...

async def later(): ...

class Thing:
    value = 1

    def method(self):
        def inner(): ...
        class Within:
            def deep(self): ...

    async def later_method(self): ...

    @staticmethod
    def static(): ...

    @property
    def shown(self): ...

if TYPE_CHECKING:
    from x import in_if
elif os.name == "nt":
    from x import in_elif
else:
    def in_else(): ...

try:
    from x import in_try
except ImportError:
    class InExcept:
        def method(self): ...
else:
    def in_try_else(): ...
finally:
    def in_finally(): ...

if True:
    try:
        if True:
            def nested(): ...
    except ValueError:
        from x import in_nested_except
"""
FOUND = [
    "function", "later", "Thing", "Thing.method", "Thing.later_method", "Thing.static", "Thing.shown", "os", "p", "Something", "first", "renamed",
    "in_if", "in_elif", "in_else", "in_try", "InExcept", "InExcept.method", "in_try_else", "in_finally", "nested", "in_nested_except",
]  # fmt: skip
MISSING = [
    "inner", "Within", "Thing.inner", "Thing.value", "Thing.deep", "Thing.nothing", "nothing", "second", "Any", "function.method",
    "InExcept.other", "os.path.join", "thing",
]  # fmt: skip


@pytest.fixture
def root(tmp_path):
    """A source tree with a package, a module, and a package within."""
    package = tmp_path / "pack"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("from .module import function\n")
    (package / "module.py").write_text(SOURCE)
    (package / "sub" / "__init__.py").write_text("class InPackage:\n    def method(self): ...\n")
    (package / "broken.py").write_text("def f(:\n")
    (package / "bytes.py").write_bytes(b"def f(): return '\xff'\n")
    return tmp_path


@pytest.mark.parametrize("symbol", FOUND)
def test_what_is_there_is_found(root, symbol):
    """Functions, classes, methods and imported names are found, also under if and try."""
    assert source_inspection.has_symbol(root, "pack.module", symbol)


@pytest.mark.parametrize("symbol", MISSING)
def test_what_is_not_there_is_not_found(root, symbol):
    """Names within functions, values, other spellings and what an import renames are not found."""
    assert not source_inspection.has_symbol(root, "pack.module", symbol)


def test_packages_and_modules(root):
    """A package's own source is read; a module that is not there has nothing."""
    assert source_inspection.has_symbol(root, "pack", "function")
    assert source_inspection.has_symbol(root, "pack.sub", "InPackage.method")
    assert not source_inspection.has_symbol(root, "pack.nothing", "function")
    assert not source_inspection.has_symbol(root, "nothing", "function")


def test_nothing_is_imported(root, monkeypatch):
    """Looking imports neither the package nor what it imports."""
    monkeypatch.syspath_prepend(root)
    before = set(sys.modules)
    assert source_inspection.find_root("pack") == root
    assert source_inspection.has_symbol(root, "pack.module", "function")
    assert set(sys.modules) == before


@pytest.mark.parametrize("spec", [None, importlib.util.spec_from_loader("ghost", None)])
def test_a_package_that_is_not_there_has_no_root(monkeypatch, spec):
    """What is not installed, or has no file, has no root."""
    assert source_inspection.find_root("no_such_package_anywhere") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert source_inspection.find_root("ghost") is None


def test_a_module_without_spec_has_no_root(monkeypatch):
    """A module that somebody has put into sys.modules by hand is as good as not there."""
    made = type(sys)("handmade")
    made.__spec__ = None
    monkeypatch.setitem(sys.modules, "handmade", made)
    assert source_inspection.find_root("handmade") is None


@pytest.mark.parametrize("module", ["pack.broken", "pack.bytes"])
def test_a_source_that_cannot_be_read_has_nothing(root, module):
    """A module that cannot be parsed has no symbols, and that is all."""
    assert not source_inspection.has_symbol(root, module, "f")


@pytest.mark.parametrize(
    ("source", "symbol"),
    [
        ("def _f(): ...\nf = _f\n", "f"),
        ("def _f(self): ...\nclass A:\n    f = _f\n", "A.f"),
        ("class Base:\n    def f(self): ...\nclass A(Base): ...\n", "A.f"),
        ("from x import A\n", "A.f"),
        ("from .module import Thing as A\nclass B(A): ...\n", "B.method"),
        ("from pack.sub import InPackage as A\n", "A.method"),
    ],
    ids=[
        "assigned function",
        "assigned method",
        "inherited method",
        "imported class",
        "method of an imported base",
        "method of an imported class",
    ],
)
def test_what_a_hook_would_find_is_found(root, source, symbol):
    """What can be patched when the module is imported is not reported as missing before."""
    (root / "pack" / "other.py").write_text(source)
    assert source_inspection.has_symbol(root, "pack.other", symbol)


@pytest.mark.parametrize(
    ("source", "symbol"),
    [
        ("from .module import Thing as A\n", "A.nothing"),
        ("from .module import Nothing as A\n", "A.f"),
        ("from abc import ABC\nclass A(ABC): ...\n", "A.f"),
        ("from .other import A\n", "A.f"),
        ("from ....beyond import B\nclass A(B): ...\n", "A.f"),
        ("class A(A): ...\n", "A.f"),
        ("import os\n", "os.path"),
    ],
    ids=["imported class", "no class", "base of others", "circle", "beyond the tree", "own base", "module"],
)
def test_what_a_hook_would_not_find_is_missing(root, source, symbol):
    """Imports and bases that can be read and have no such method are no excuse for it."""
    (root / "pack" / "other.py").write_text(source)
    assert not source_inspection.has_symbol(root, "pack.other", symbol)
