# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in processes of their own: what they print is what was measured, and one that fails is no measurement."""

import subprocess

import pytest

from benchmarks import jobs


@pytest.fixture
def printing(tmp_path, monkeypatch):
    """Make a module, found by every Python that is started, with this code."""

    def write(code):
        (tmp_path / "bench_printing.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return jobs.module(
            ["bench_printing", "7"], 4, ["a", "b"], lambda found: (found["cpu"], (found["a"] * 2, found["given"]))
        )

    return write


def test_a_module_says_seconds_and_figures_on_its_last_line(printing):
    """One value of each figure is kept for each round, whatever else it prints and however often it is said to be done."""
    operation = printing(
        "import json, sys\nprint('beginning')\nprint(json.dumps({'cpu': 0.5, 'a': 3, 'given': int(sys.argv[1])}))\n"
    )
    assert (operation.count, operation.warm) == (4, False)
    assert [operation.run(4), operation.run(4)] == [0.5, 0.5]
    assert operation.figures() == {"a": [6, 6], "b": [7, 7]}


def test_a_module_that_fails_is_no_measurement(printing):
    """It says why, and nothing is kept of it."""
    operation = printing("raise SystemExit('the spans are gone')")
    with pytest.raises(RuntimeError, match="the spans are gone"):
        operation.run(4)
    assert operation.figures() == {"a": [], "b": []}


def test_a_script_is_run_as_often_as_it_is_requested():
    """The seconds that it prints are added up; one that fails is no measurement."""
    assert jobs.script("print('seconds', 0.25)").run(3) == 0.75
    with pytest.raises(subprocess.CalledProcessError):
        jobs.script("print(1); raise ValueError").run(1)


def test_what_is_timed_is_all_of_it():
    """From its first line to its last one, blocks and all."""
    assert jobs.timed_script("for _ in range(5):\n    time.sleep(0.01)").run(1) >= 0.05
