# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``tests/pythons.py``: what was not run is not told as passed."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

PATH = Path(__file__).resolve().parents[1] / "pythons.py"


@pytest.fixture
def pythons(monkeypatch):
    """The script, on a machine that has Python 3.13 alone, on which every test passes."""
    spec = importlib.util.spec_from_file_location("pythons", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = module.run
    monkeypatch.setattr(module, "find_python", lambda uv, version: None)
    monkeypatch.setattr(
        module, "run", lambda uv, name, *each: (0, "9 passed") if name == "3.13" else run(uv, name, *each)
    )
    monkeypatch.delenv("CI", raising=False)
    return module


@pytest.mark.parametrize(
    ("words", "ci", "code"),
    [
        ((), None, 0),
        ((), "0", 0),
        ((), "1", 1),
        ((), "true", 1),
        (("--only", "lowest"), None, 1),
        (("--only", "3.13"), "1", 0),
        (("--without", "lowest", "--without", "3.12", "--without", "ray-oldest"), "1", 0),
    ],
)
def test_what_is_not_run_is_said_and_fails_where_it_must_run(pythons, capsys, monkeypatch, words, ci, code):
    """A missing Python is "NOT RUN", and a failure in CI and for those who asked for it by name."""
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    assert pythons.main(["--uv", "uv", *words]) == code
    out = capsys.readouterr().out
    lacking = {name for name in pythons.ENVIRONMENTS if f"] {name}: NOT RUN after" in out}
    passed = {name for name in pythons.ENVIRONMENTS if f"] {name}: passed after" in out}
    assert passed <= {"3.13"}
    assert ("NOT RUN, for want of a Python: " in out) is bool(lacking)
    assert "skipped" not in out
    if not words:
        assert (lacking, passed) == ({"lowest", "3.12", "ray-oldest"}, {"3.13"})


def test_a_failure_is_a_failure(pythons, monkeypatch):
    """Tests that fail give code 1, whatever else was not run."""
    monkeypatch.setattr(pythons, "run", lambda uv, name, *each: (1 if name == "3.12" else None, "said"))
    assert pythons.main(["--uv", "uv"]) == 1
