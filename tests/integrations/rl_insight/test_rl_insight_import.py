# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The import of ``rl_insight``: who answers it, with which signatures, and which of verl's own states we leave to our hooks."""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import types
from pathlib import Path

import pytest

from tests.contracts import released
from verl_otel import integrations
from verl_otel.integrations import rl_insight as answers
from verl_otel.integrations import rl_insight_shim as shim
from verl_otel.integrations import source_inspection

REAL = importlib.util.find_spec("rl_insight") is not None
pytestmark = pytest.mark.skipif(REAL, reason="the real rl-insight is installed here")


def set_mode(monkeypatch, mode):
    """Have the session say this setting."""
    config = types.SimpleNamespace(rl_insight=mode)
    monkeypatch.setattr(answers, "current_session", lambda: types.SimpleNamespace(config=config))


def test_the_package_and_its_parts_are_found_and_taken_away(insight):
    """The package and what users import of it are there until we are uninstalled; other parts are not."""
    for part in ("api", "agent_loop", "utils"):
        assert answers.is_ours(importlib.import_module(f"rl_insight.{part}"))
    assert sorted(insight.__all__) == sorted(name for name in vars(insight) if name in insight.__all__)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rl_insight.server")
    integrations.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rl_insight")


def test_off_answers_nothing(monkeypatch):
    """With ``off`` the import fails as it does without us."""
    set_mode(monkeypatch, "off")
    answers.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rl_insight")


@pytest.mark.parametrize(("mode", "ours"), [("auto", False), ("on", True)])
def test_a_real_package_answers_unless_the_setting_says_otherwise(monkeypatch, host, mode, ours):
    """An installed package is found first; with ``on`` ours is, and the real one is there again afterwards."""
    package = host(init="__version__ = '0.2.0'", api="real = True")
    monkeypatch.setattr(answers, "PACKAGE", package)
    contents = {package: answers._CONTENTS["rl_insight"], f"{package}.agent_loop": answers._CONTENTS["rl_insight.api"]}
    monkeypatch.setattr(answers, "_CONTENTS", contents)
    set_mode(monkeypatch, mode)
    answers.install()
    assert answers.is_ours(importlib.import_module(package)) is ours
    assert (importlib.util.find_spec(f"{package}.agent_loop") is not None) is ours, "parts of a real one are its own"
    integrations.uninstall()
    assert importlib.import_module(package).__version__ == "0.2.0"


def test_a_package_that_was_imported_before_goes_on(monkeypatch, host, caplog):
    """What is imported already is not replaced under its users; one line says so."""
    package = host(init="")
    before = importlib.import_module(package)
    monkeypatch.setattr(answers, "PACKAGE", package)
    set_mode(monkeypatch, "on")
    answers.install()
    assert importlib.import_module(package) is before
    assert "was imported before verl-otel" in caplog.text


@pytest.mark.parametrize("installed", [True, False])
def test_verl_keeps_ours_only_where_nothing_else_is_there(monkeypatch, insight, installed):
    """After uninstalling, verl imports the real package; where there is none it keeps one that does nothing and raises nothing."""
    logger = types.SimpleNamespace(_rl_insight_module=insight, _init_done=True)
    monkeypatch.setitem(sys.modules, "verl.utils.tracking", types.SimpleNamespace(RLInsightLogger=logger))
    if installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    answers.uninstall()
    assert (logger._rl_insight_module is None) is installed
    with insight.trace_state("x"):
        insight.metric_gauge("x", 1)


@pytest.fixture(scope="module")
def wheel():
    """RL-Insight 0.3.0 as released, unpacked and not imported."""
    try:
        return released.find_sources(released.Release("rl-insight", "0.3.0", ("rl_insight/",))) / "rl_insight"
    except released.UnreachableError as error:
        pytest.skip(str(error))


def read_signatures(path):
    """The parameters of each function and method of a file: name, kind, and default as it is written."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            args = node.args
            defaults = [None] * (len(args.args) - len(args.defaults)) + [ast.unparse(each) for each in args.defaults]
            by_name = [each and ast.unparse(each) for each in args.kw_defaults]
            found[node.name] = (
                [(each.arg, default) for each, default in zip(args.args, defaults, strict=True)],
                [(each.arg, default) for each, default in zip(args.kwonlyargs, by_name, strict=True)],
                args.vararg and args.vararg.arg,
                args.kwarg and args.kwarg.arg,
            )
    return found


@pytest.mark.full
def test_signatures_are_those_of_the_release(wheel, insight):
    """Each function that we have takes what RL-Insight's takes, and we have all that the package exports."""
    theirs = {}
    for name in ("api.py", "agent_loop.py", "utils/prometheus_utils.py"):
        theirs |= read_signatures(wheel / name)
    ours = read_signatures(Path(shim.__file__))
    (exports,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((wheel / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_EXPORTS"
    )
    assert set(insight.__all__) == {*exports, "__version__"}
    for name in (*exports, "agent_loop_lane_id"):
        if name != "finish":  # the session's method has the same name
            assert ours[name] == theirs[name], name
    session_finish = inspect.signature(insight.agent_loop_session(experiment_name=1, sample=1, session=1).finish)
    assert list(session_finish.parameters) == [name for name, _ in theirs["finish"][1]]


def test_every_state_that_verl_reports_is_known():
    """What verl's source annotates and reports is left to our hooks: a new one would be a second span."""
    root = source_inspection.find_root("verl")
    if root is None:
        pytest.skip("verl is not installed here")
    text = "\n".join(path.read_text("utf-8") for path in (root / "verl").rglob("*.py"))
    roles = set(re.findall(r"@DistProfiler\.annotate\([^)]*role=\"(\w+)\"", text))
    states = dict(re.findall(r"RLInsightLogger\.trace_state\(\"(\w+)\", state_lane_id=f\"(\w+_)\{", text))
    assert roles
    assert roles == shim.HOOKED["rank_"]
    assert states == dict.fromkeys(shim.HOOKED["replica_"], "replica_")
