# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whole processes on one node: one of them reads the GPUs, another takes over, nothing is there when it is off."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import otlp_json
from tests.builders.environments import inherit
from verl_otel.integrations.gpu.collector import COLLECTORS

pytestmark = pytest.mark.full

TOP = Path(__file__).resolve().parents[3]


def list_open(process):
    """Names of the files that a process holds."""
    return [str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir() if path.is_symlink()]


class Node:
    """The processes of one run on this machine, and what stands in their files."""

    def __init__(self, folder):
        self.folder, self.run = folder, folder / "r"
        self.started = []

    def start(self, rank, **variables):
        environ = inherit("OTEL_", "VERL_", "PYTEST_")
        environ |= {
            "VERL_OTEL_RUN_DIR": str(self.folder), "VERL_OTEL_RUN_ID": "r", "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "VERL_OTEL_DRAIN_INTERVAL": "0.1", **variables,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.gpu.gpu_process", str(rank)],
            cwd=TOP, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started.append(process)
        assert process.stdout.readline() == "ready\n"
        process.child = 0
        return process

    def points(self, process, metric):
        """Points of a metric that a process has written: their labels, in the order of time."""
        return [
            otlp_json.read_attributes(point["attributes"])
            for path in self.run.glob(f"metrics-*-{process.pid}.jsonl")
            for message in otlp_json.read_objects(path)
            for _, _, each in otlp_json.each_metric(message)
            if each["name"] == metric
            for point in otlp_json.each_point(each)
        ]

    def readers(self):
        return [process for process in self.started if self.points(process, "hw.power")]

    def end(self):
        for process in self.started:
            if process.poll() is None:
                process.stdin.close()
                process.wait(60)
            process.stdin.close()
            process.stdout.close()
            if process.child:
                os.kill(process.child, signal.SIGKILL)


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.end()


def test_one_process_of_a_node_reads_its_gpus(node, wait_for):
    """Each GPU is read by one process, and every process says which is its own, by the same id."""
    first, second = node.start(0), node.start(1)
    wait_for(lambda: all(node.points(each, "verl.gpu.owner") for each in (first, second)), 30)
    assert len(node.readers()) == 1
    reader = node.readers()[0]
    ids = {point["hw.id"] for point in node.points(reader, "hw.gpu.utilization")}
    owned = [node.points(each, "verl.gpu.owner")[0]["hw.id"] for each in (first, second)]
    assert len(ids) == 2
    assert set(owned) == ids
    assert [bool(node.points(each, "system.memory.usage")) for each in (first, second)] == [
        each is reader for each in (first, second)
    ]
    assert all(node.points(each, "process.memory.usage") for each in (first, second))


def test_another_takes_over_when_the_reader_is_killed(node, wait_for):
    """No process has to end in order for that."""
    first = node.start(0)
    wait_for(lambda: node.points(first, "hw.power"), 30)
    second = node.start(1)
    wait_for(lambda: node.points(second, "process.memory.usage"), 30)
    assert node.readers() == [first]
    first.kill()
    first.wait()
    wait_for(lambda: node.points(second, "hw.power"), 30)


@pytest.mark.parametrize("variables", [{"VERL_OTEL_HARDWARE": "0"}, {"VERL_OTEL_EXPORTERS": "none"}], ids=str)
def test_off_is_off(node, wait_for, variables):
    """No thread, no open file, no file and no value of hardware where it is switched off or nothing leaves the process."""
    process = node.start(0, **variables)
    wait_for(lambda: "none" in variables.values() or list(node.run.glob("metrics-*")), 30)
    names = [(each / "comm").read_text() for each in Path(f"/proc/{process.pid}/task").iterdir()]
    assert not [name for name in names if "hardware" in name]
    assert not [name for name in list_open(process.pid) if "reader-" in name or "gpus-" in name]
    process.stdin.close()
    process.wait(60)
    for metric in {metric for source in COLLECTORS for metric in source.metrics} | {
        "process.cpu.time",
        "system.cpu.time",
    }:
        assert not node.points(process, metric), metric
    assert not list(node.folder.rglob("gpus-*")) + list(node.folder.rglob("reader-*"))
