# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Children of `multiprocessing`, however they are started: one run, and what they recorded last is written."""

import json
import os
import subprocess
import sys

import pytest

from tests.builders.environments import inherit
from verl_otel.analysis import reader
from verl_otel.session import children

PROGRAM = """
import multiprocessing, os, subprocess, sys
import verl_otel

def work(depth):
    with verl_otel.span("child"):
        pass
    if depth:
        start(work, depth - 1)

def start(function, *arguments):
    child = multiprocessing.get_context(sys.argv[1]).Process(target=function, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 0

if __name__ == "__main__":
    with verl_otel.step(1):
        start(work, 1)
        start(work, 0)
"""


@pytest.fixture
def train(tmp_path, files):
    """Run a program with telemetry on; returns its run folders."""

    def finish(program, *arguments, **variables):
        path = tmp_path / "program.py"
        path.write_text(program)
        environment = {
            **inherit("OTEL_", "VERL_"), "VERL_OTEL_ENABLED": "1", "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"), **variables
        }  # fmt: skip
        command = [sys.executable, path, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return [files(folder) for folder in sorted((tmp_path / "runs").iterdir())]

    return finish


@pytest.mark.smoke
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_belong_to_the_run_of_their_parent(train, method):
    """Children and their children record into the run of the parent, each as a process of its own."""
    (run,) = train(PROGRAM, method)
    spans = [span for span in run.spans() if span.name == "child"]
    assert len({span.resource["service.instance.id"] for span in spans}) == len(spans) == 3
    assert len(json.loads((run.folder / "run.json").read_text())["attempts"]) == 1


POOL = """
import multiprocessing
import verl_otel

def work(number):
    with verl_otel.trajectory(f"p{number}", 0, step=number):
        pass

with verl_otel.step(1):
    pool = multiprocessing.get_context("fork").Pool(1)
    pool.apply(work, (1,))
with verl_otel.step(2):
    pool.apply(work, (2,))
pool.close()
pool.join()
"""


@pytest.mark.smoke
def test_a_worker_that_was_forked_in_a_step_works_for_the_steps_after_it(train):
    """It has the context of the first step for good; ``step=`` says which one a trajectory belongs to."""
    (run,) = train(POOL)
    steps = reader.read([run.folder])[0].steps
    assert [(step.number, step.members) for step in steps] == [(1, 1), (2, 1)]


@pytest.mark.full
@pytest.mark.parametrize("preload", [False, True], ids=["", "preloaded"])
def test_children_of_a_server_that_records(train, tmp_path, preload):
    """The server may have begun to record before it forks, and a child while its main module is imported."""
    (tmp_path / "early.py").write_text("import verl_otel\nwith verl_otel.span('early'):\n    pass\n")
    first = "import sys; sys.path.insert(0, '.')\nimport early\n"
    program = PROGRAM.replace(
        "    with verl_otel.step(1):",
        "    multiprocessing.set_forkserver_preload(['early'])\n    with verl_otel.step(1):",
    )
    (run,) = train(first + (program if preload else PROGRAM), "forkserver")
    assert run.names().count("child") == 3


@pytest.mark.full
def test_another_program_has_a_run_of_its_own(train):
    """A program that inherits the environment is no child of the run, and its children belong to it."""
    other = 'subprocess.run([sys.executable, "other.py", sys.argv[1]], check=True)'
    program = PROGRAM.replace("        start(work, 0)\n", f"        {other}\n")
    train_other = f"from pathlib import Path\nPath('other.py').write_text({PROGRAM!r})\n"
    runs = train(train_other + program, "spawn")
    assert sorted(run.names().count("child") for run in runs) == [2, 3]


@pytest.mark.full
def test_children_of_the_package_multiprocess(train):
    """Children of the fork of `multiprocessing` that `datasets` uses write what they recorded."""
    pytest.importorskip("multiprocess")
    (run,) = train(PROGRAM.replace("import multiprocessing", "import multiprocess as multiprocessing"), "fork")
    assert run.names().count("child") == 3


@pytest.mark.full
def test_a_child_of_a_resumed_run_belongs_to_its_attempt(train):
    """A spawned child says in which attempt of the run it was started."""
    begin = "if __name__ == '__main__':\n    verl_otel.init()\n    from verl_otel import session\n    session.current_session().run.begin()\n"
    program = PROGRAM.replace('if __name__ == "__main__":\n', begin)
    for _ in range(2):
        (run,) = train(program, "spawn", VERL_OTEL_RUN_ID="r1")
    attempts = [span.resource["verl.run.attempt"] for span in run.spans() if span.name == "child"]
    assert sorted(attempts) == [1, 1, 1, 2, 2, 2]


def test_only_a_child_of_that_process_inherits_its_run(monkeypatch):
    """The process id in the environment is that of the parent, and this process was started by `multiprocessing`."""
    monkeypatch.setenv(children.VARIABLE, f"{os.getppid()} 2 r1")
    assert children.find_inherited_run() is None
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", "...", "--multiprocessing-fork"])
    assert children.find_inherited_run() == ("r1", 2)
    for value in ("", "x", "1", f"{os.getppid()} r1", f"{os.getppid()} 2 ", f"{os.getpid()} 2 r1"):
        monkeypatch.setenv(children.VARIABLE, value)
        assert children.find_inherited_run() is None, value
