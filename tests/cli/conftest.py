# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The command, called in this process and as a process of its own, and runs for it to read."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import stories
from tests.builders.environments import inherit
from tests.builders.run_ages import set_age
from tests.fakes import hosts as hosts_module
from verl_otel import cli
from verl_otel.analysis import reader
from verl_otel.integrations import verl
from verl_otel.integrations.ray import discovery

TESTS = Path(__file__).resolve().parents[1]
NO_READER = SimpleNamespace(folders=(), traces=None, open_spans=tuple, processes=tuple)
"""Of an explanation that no files were read for."""


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium. Of this module only: while it is there, its driver's event loop is the thread's."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = subprocess.run(["sh", TESTS / "chromium.sh", "--look"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    with sync_api.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = driver.chromium.launch(executable_path=found.stdout.strip(), args=options)
        yield started
        started.close()


@pytest.fixture(autouse=True)
def no_cluster_of_others(request, monkeypatch):
    """Find no Ray cluster that another program has started on this machine, unless the test says where one is."""
    find = discovery.find_cluster

    def find_named(address=None):
        is_installed = sys.modules.get("ray", discovery) is not None
        if address is None and is_installed and not request.node.get_closest_marker("ray"):
            raise discovery.NoClusterError("no running Ray cluster here: say where it is (--address HOST:PORT)")
        return find(address)

    monkeypatch.setattr(discovery, "find_cluster", find_named)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The folder of all runs, as the environment names it."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("VERL_OTEL_RUN_DIR", str(folder))
    return folder


@pytest.fixture
def call(capsys):
    """Call the command in this process; returns its exit code and what it wrote."""

    def run(*arguments):
        try:
            code = cli.main([str(each) for each in arguments])
        except SystemExit as end:
            code = end.code
        written = capsys.readouterr()
        return SimpleNamespace(code=code, out=written.out, err=written.err)

    return run


@pytest.fixture
def shell(tmp_path):
    """Call the command as a process of its own, as a user does; a clean environment with these variables."""

    def run(*arguments, cwd=None, **variables):
        inherited = inherit("PYTEST", "VERL_OTEL")
        done = subprocess.run(
            [Path(sys.executable).with_name("verl-otel"), *map(str, arguments)],
            env={**inherited, "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"), **variables},
            cwd=cwd or tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


@pytest.fixture
def story(tmp_path):
    """An empty story, to be written into a folder of this test."""
    return stories.Story(tmp_path / "runs" / "r1")


@pytest.fixture
def make_run(runs):
    """Write a small run of this age in seconds; it has 100,000 bytes more than its data."""

    def make(name, age=0.0, size=100_000):
        story = stories.training(runs / name, name)
        story.status({"state": "finished", "time": stories.T0 + 25, "steps": 2, "step": 2, "step_seconds": 15.0})
        folder = story.write()
        (folder / "events.jsonl").write_bytes(b"\n" * size)
        set_age(folder, age)
        return folder

    return make


@pytest.fixture
def make_site(tmp_path):
    """Make stand-ins for verl and Ray, complete for every hook, in these versions."""

    def make(**versions):
        folder = tmp_path / f"site{len(list(tmp_path.glob('site*')))}"
        return hosts_module.good(folder, verl.HOOKS, **versions)

    return make


@pytest.fixture
def good_site(make_site):
    """Stand-ins for verl and Ray in which nothing is wrong."""
    return make_site()


@pytest.fixture
def listed(runs):
    """Write the targets file of a run, with one entry per address, of a process that lives."""

    def write(run_id, *addresses, pid=None, **labels):
        folder = runs / "targets"
        folder.mkdir(parents=True, exist_ok=True)
        found = [
            {
                "targets": [address],
                "labels": {
                    "job": "verl",
                    "instance": f"{run_id}/trainer-{number}",
                    "verl_role": "trainer",
                    "verl_run_id": run_id,
                    "__meta_verl_otel_pid": str(pid or os.getpid()),
                    "__meta_verl_otel_host": socket.gethostname(),
                    **labels,
                },
            }
            for number, address in enumerate(addresses)
        ]
        (folder / f"{run_id}.json").write_text(json.dumps(found))
        return folder

    return write


@pytest.fixture
def explained(monkeypatch, tmp_path):
    """Let the command find this explanation, whatever it is asked for; returns what it was asked for."""
    asked = SimpleNamespace(folders=None, steps=None)

    def use(run):
        def read(folders, *, steps=None, progress=None):
            asked.folders, asked.steps = folders, steps
            return run, NO_READER

        monkeypatch.setattr(reader, "read", read)
        return asked

    return use
