# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts that are made up for one test, and everything that was patched put back after it."""

import importlib
import sys
import types
from collections import Counter

import pytest

from verl_otel import integrations
from verl_otel.integrations import patch


@pytest.fixture(autouse=True)
def put_back():
    """Undo every patch at the end of a test."""
    yield
    integrations.uninstall()
    assert not [each for each in sys.meta_path if type(each).__module__.startswith("verl_otel")]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Make a package of modules that can be imported: ``host(a="x = 1", b="...")`` makes ``host_7.a`` and ``host_7.b``."""
    made = Counter()

    def make(**modules):
        name = f"host_{id(made)}_{made.total()}"
        made[name] += 1
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(modules.pop("init", ""))
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(source)
        importlib.invalidate_caches()
        return name

    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield make
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in made:
            del sys.modules[name]


@pytest.fixture
def loaded(host):
    """Make one module from its source and import it."""

    def make(source):
        return importlib.import_module(f"{host(a=source)}.a")

    return make


@pytest.fixture
def hook():
    """A hook that calls a function with the module, and counts how often it ran."""

    def make(module, symbol="f", install=None):
        ran = []

        def run(found):
            ran.append(found)
            if install is not None:
                install(found)

        return types.SimpleNamespace(hook=patch.Hook(module, symbol, run, "no test"), ran=ran)

    return make
