# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The job is merged on every node that has the file; nodes without it, without verl-otel or without an answer cost nothing."""

import sys
from types import SimpleNamespace

import cloudpickle
import pytest

from verl_otel._internal import error_boundary
from verl_otel.integrations.verl import prometheus

FILE, PORT, FOLDER, RUN = "/etc/prometheus/prometheus.yml", 9090, "/runs/targets", "r1"


@pytest.fixture
def cluster(monkeypatch):
    """A Ray of four nodes, this one among them: ``answers`` holds the line of each other node, or what it raises."""
    asked, answers = [], {}

    class Task:
        def __init__(self, function, resources=None):
            self.function, self.resources = function, resources

        def options(self, resources):
            return Task(self.function, resources)

        def remote(self):
            cloudpickle.dumps(self.function)
            (name,) = self.resources
            asked.append(name.removeprefix("node:"))
            return asked[-1]

    def get(reference, timeout):
        if isinstance(answers[reference], Exception):
            raise answers[reference]
        return answers[reference]

    fake = SimpleNamespace(
        is_initialized=lambda: True,
        nodes=lambda: [
            {"Alive": number != 3, "NodeID": str(number), "NodeManagerAddress": f"10.0.0.{number}"}
            for number in range(5)
        ],
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "0"),
        remote=lambda **_: Task,
        wait=lambda references, num_returns, timeout: ([each for each in references if each in answers], []),
        get=get,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    return SimpleNamespace(ray=fake, asked=asked, answers=answers)


def merge():
    return list(prometheus._merge_elsewhere(FILE, PORT, FOLDER, RUN))


def test_every_other_node_is_asked(cluster):
    """Living nodes but this one; one line for each that has the file."""
    cluster.answers |= {"10.0.0.1": "", "10.0.0.2": "has the job", "10.0.0.4": "stays as it is"}
    assert merge() == ["node 10.0.0.2: has the job", "node 10.0.0.4: stays as it is"]
    assert cluster.asked == ["10.0.0.1", "10.0.0.2", "10.0.0.4"]


def test_a_node_that_does_not_answer_is_left_out(cluster):
    """The lines of the others come."""
    cluster.answers |= {"10.0.0.4": "has the job"}
    assert merge() == ["node 10.0.0.4: has the job"]


def test_a_node_that_fails_hides_no_other(cluster, swallow):
    """A task that ends with an error, as on a node that dies."""
    cluster.answers |= {"10.0.0.1": RuntimeError("node died"), "10.0.0.2": "has the job"}
    assert merge() == ["node 10.0.0.2: has the job"]


def test_without_a_cluster_no_node_is_asked(cluster):
    cluster.ray.is_initialized = lambda: False
    assert merge() == []


def test_no_node_has_the_file(cluster, caplog, tmp_path):
    """One line is logged."""
    error_boundary.reset()
    prometheus._merge_everywhere(str(tmp_path / "none.yml"), PORT, FOLDER, RUN)
    assert "no node has" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("shared", [True, False])
def test_a_folder_that_is_not_shared_is_reported(tmp_path, shared):
    """Where the targets of the run are not on the node of the file, the line says what to do."""
    file = tmp_path / "prometheus.yml"
    file.write_text("scrape_configs: []\n")
    if shared:
        (tmp_path / "r1@node-0-1.json").write_text("[]")
    line = prometheus.merge_here(str(file), 1, str(tmp_path), RUN)
    assert ("verl-otel discover --serve" in line) is not shared
    assert "\n" not in line
