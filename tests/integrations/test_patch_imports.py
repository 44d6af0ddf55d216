# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks run once, right after the body of their module, whoever else looks at the import; and everything can be undone."""

import importlib
import importlib.util
import logging
import sys
import threading

import pytest

from verl_otel.integrations import patch


def replace_f(module):
    """Have ``f`` return what it did, marked."""
    patch.replace(module, "f", lambda original: lambda: f"patched {original()}")


SOURCE = "def f():\n    return 'f'\nseen = f()\n"


def test_a_hook_runs_after_the_import_of_its_module(host, hook):
    """A module that is imported later is patched right after its body ran, and before its importer sees it."""
    name = host(a=SOURCE, b="from .a import f\nvalue = f()\n")
    mine = hook(f"{name}.a", install=replace_f)
    patch.register([mine.hook])
    assert f"{name}.a" not in sys.modules
    module = importlib.import_module(f"{name}.b")
    assert (module.value, sys.modules[f"{name}.a"].seen) == ("patched f", "f")
    assert mine.ran == [sys.modules[f"{name}.a"]]
    assert patch.status == {f"{name}.a:f": "installed"}


def test_a_hook_runs_at_once_where_its_module_is_there(host, hook):
    """A module that was imported before is patched at registration."""
    name = host(a=SOURCE)
    module = importlib.import_module(f"{name}.a")
    patch.register([hook(f"{name}.a", install=replace_f).hook])
    assert module.f() == "patched f"
    assert not patch._waiting


def test_several_hooks_of_one_module_run_in_order(host, hook):
    """All hooks of a module run, in the order of their registration, also those registered later."""
    name = host(a="f = 1\n")
    order = []
    for number in range(3):
        patch.register([hook(f"{name}.a", str(number), lambda _, number=number: order.append(number)).hook])
    importlib.import_module(f"{name}.a")
    assert order == [0, 1, 2]


def test_a_package_can_be_hooked_and_modules_of_it(host, hook):
    """A hook on a package runs after its ``__init__``, one on a module of it after that module."""
    name = host(init="from . import a\nafter = 'a'\n", a=SOURCE)
    package, module = hook(name, "after"), hook(f"{name}.a")
    patch.register([package.hook, module.hook])
    assert importlib.import_module(name).after == "a"
    assert (len(package.ran), len(module.ran)) == (1, 1)


def test_a_missing_symbol_is_a_status_and_one_line(host, hook, caplog):
    """Where the host has no such name the import goes on; the hook is missing, and one line says what is lost."""
    name = host(a="x = 1\n")
    patch.register([hook(f"{name}.a", install=replace_f).hook])
    assert importlib.import_module(f"{name}.a").x == 1
    assert patch.status == {f"{name}.a:f": "missing"}
    (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert line.getMessage() == f"verl-otel: {name}.a has no f; without it: no test"


def test_a_hook_that_raises_is_a_status_and_one_line(host, hook, caplog):
    """A hook that fails costs itself: the import goes on, the other hooks run, one line is logged."""
    name = host(a=SOURCE)

    def fail(_module):
        raise RuntimeError("broken")

    patch.register([hook(f"{name}.a", "g", fail).hook, hook(f"{name}.a", install=replace_f).hook])
    assert importlib.import_module(f"{name}.a").f() == "patched f"
    assert patch.status == {f"{name}.a:g": "failed: RuntimeError: broken", f"{name}.a:f": "installed"}
    assert [each.getMessage() for each in caplog.records] == [
        f"verl-otel: hook {name}.a:g failed: RuntimeError('broken'); without it: no test"
    ]


def test_a_module_whose_import_fails_is_patched_when_it_succeeds(host, hook, tmp_path):
    """An import that raises passes on unchanged; the hook waits for the next attempt."""
    name = host(a="raise ValueError('not yet')\n")
    mine = hook(f"{name}.a", install=replace_f)
    patch.register([mine.hook])
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module(f"{name}.a")
    assert not mine.ran
    (tmp_path / name / "a.py").write_text(SOURCE + "# longer, so that no cache is used\n")
    importlib.invalidate_caches()
    assert importlib.import_module(f"{name}.a").f() == "patched f"


def test_a_module_that_does_not_exist_is_not_found(host, hook):
    """Waiting for a module does not make it exist."""
    name = host(a="")
    patch.register([hook(f"{name}.nothing").hook])
    assert importlib.util.find_spec(f"{name}.nothing") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{name}.nothing")


def test_looking_for_a_module_runs_no_hook(host, hook):
    """``find_spec`` finds the module without running anything, and its later import is still patched."""
    name = host(a=SOURCE)
    mine = hook(f"{name}.a", install=replace_f)
    patch.register([mine.hook])
    spec = importlib.util.find_spec(f"{name}.a")
    assert spec.name == f"{name}.a"
    assert spec.loader.get_source(f"{name}.a") == SOURCE
    assert not mine.ran
    assert importlib.import_module(f"{name}.a").f() == "patched f"


def test_a_patched_module_is_as_any_other(host, hook):
    """The spec, the loader, the file and a reload of a patched module are those of an ordinary one."""
    name = host(a=SOURCE, b=SOURCE)
    patch.register([hook(f"{name}.a").hook])
    patched, plain = (importlib.import_module(f"{name}.{each}") for each in "ab")
    assert type(patched.__loader__) is type(plain.__loader__)
    assert patched.__spec__.loader is patched.__loader__
    assert patched.__file__.endswith("a.py")
    assert patched.__spec__.origin == patched.__file__
    assert importlib.reload(patched) is patched


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_wrapt_post_import_hooks_run_too(host, hook, first):
    """A hook of wrapt on the same module, which many instrumentations use, runs beside ours."""
    wrapt = pytest.importorskip("wrapt")
    before = list(sys.meta_path)
    name, seen = host(a=SOURCE), []
    mine = hook(f"{name}.a", install=replace_f)
    try:
        if first == "theirs":
            patch.register([mine.hook])
        sys.meta_path.insert(0, wrapt.importer.ImportHookFinder())
        wrapt.register_post_import_hook(lambda module: seen.append(module.__name__), f"{name}.a")
        if first == "ours":
            patch.register([mine.hook])
        assert importlib.import_module(f"{name}.a").f() == "patched f"
        assert seen == [f"{name}.a"]
        assert len(mine.ran) == 1
    finally:
        patch.undo_all()
        sys.meta_path[:] = before


@pytest.mark.full
def test_imports_from_many_threads_run_a_hook_once(host, hook):
    """Threads that import the same module at once all see it patched, and its hook ran once."""
    name = host(a="import time\n" + SOURCE)
    mine = hook(f"{name}.a", install=replace_f)
    patch.register([mine.hook])
    barrier, values = threading.Barrier(8), []

    def load():
        barrier.wait()
        values.append(importlib.import_module(f"{name}.a").f())

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert values == ["patched f"] * 8
    assert len(mine.ran) == 1


def test_undo_stops_waiting(host, hook):
    """After undo the finder is gone and modules that are imported later are left alone."""
    name = host(a=SOURCE)
    before = list(sys.meta_path)
    mine = hook(f"{name}.a", install=replace_f)
    patch.register([mine.hook])
    assert sys.meta_path != before
    patch.undo_all()
    assert sys.meta_path == before
    assert importlib.import_module(f"{name}.a").f() == "f"
    assert not mine.ran
    assert patch.status == {}
