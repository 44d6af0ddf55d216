# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The guides to a cluster, word for word: their console lines on two nodes, from empty ones to a curve in Prometheus.

Both nodes are network namespaces, so that each has all the ports that the guides name. Addresses and the data of the training are filled in.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import tempfile
import urllib.parse
import uuid
from pathlib import Path

import psutil
import pytest

from tests.builders.training_logs import find_unexpected
from tests.collector import ray_bed
from tests.collector.nodes import Node, find_hindrance
from tests.collector.tiers import fetch
from tests.verl_cpu import cpu_train
from verl_otel.cli.stack import cache_folder

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytest.importorskip("verl", reason="verl is not installed in this environment")
pytestmark = pytest.mark.pipeline

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PROMETHEUS = "http://127.0.0.1:9090"
GRAFANA = re.compile(r" --grafana-home \S+")
RAYS_FILE = "session_latest/metrics/prometheus/prometheus.yml"
MARK = "VERL_BED_CLUSTER"
"""Variable of all processes of a cluster: what `ray start` leaves in the background is found and ended by it."""


def read_lines(page, heading):
    """Return the console lines of a section: node and command; a prompt without a node is that of the head."""
    section = (GUIDES / page).read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = []
    for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
        text = re.sub(r"\\\n\s*", "", block)
        lines += [(node or "head", words) for node, words in re.findall(r"^\s*(\w*)\$ (.*)$", text, re.MULTILINE)]
    return lines


class Terminal:
    """A shell on a node: variables that are exported stay."""

    def __init__(self, node, environ, folder):
        self.node, self.environ, self.folder = node, environ, folder

    def export(self, words):
        self.environ |= dict(word.split("=", 1) for word in words)

    def run(self, line):
        """Run a line to its end, which must be a good one; returns what it has printed."""
        command = ["bash", "-c", line]
        done = self.node.run(
            subprocess.run, command, env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    @contextlib.contextmanager
    def keep(self, line, until):
        """Start a line that does not end by itself; returns when it has printed a text. It ends with SIGTERM."""
        command = ["bash", "-c", f"exec {line}"]
        with (self.folder / "kept.log").open("w") as errors:
            process = self.node.run(
                subprocess.Popen, command, env=self.environ, cwd=self.folder, stdout=subprocess.PIPE, stderr=errors, text=True
            )  # fmt: skip
        try:
            printed = []
            for text in process.stdout:
                printed.append(text)
                if until in text:
                    break
            else:
                pytest.fail(f"{line}\n{''.join(printed)}{(self.folder / 'kept.log').read_text()}")
            yield
        finally:
            process.terminate()
            process.communicate(timeout=180)


@pytest.fixture
def terminals(programs, tmp_path):
    """A shell on each of two nodes, head and node, with the variables that the bed needs; all that they leave is ended."""
    hindrance = find_hindrance()
    if hindrance:
        pytest.skip(f"no network namespaces here: {hindrance}")
    mark = uuid.uuid4().hex
    with contextlib.ExitStack() as ending:
        shells = {}
        for number, name in enumerate(("head", "node")):
            # Short: Ray's sockets lie in it. The nodes share their disk, which those of a cluster do not.
            temporary = ending.enter_context(
                tempfile.TemporaryDirectory(prefix="vo-", dir="/tmp", ignore_cleanup_errors=True)
            )
            node = Node(name, number)
            ending.callback(node.close)
            environ = cpu_train.make_environment(tmp_path) | ray_bed.QUIET
            environ |= {
                "PATH": f"{ray_bed.BIN}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "XDG_CACHE_HOME": str(cache_folder().parents[1]),
                "RAY_TMPDIR": temporary,
                "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": ray_bed.CPUS, "GPU": 1}),
                "GLOO_SOCKET_IFNAME": "eth0",
                MARK: mark,
            }
            shells[name] = Terminal(node, environ, tmp_path)
        ending.callback(end_marked, mark)
        yield shells


def end_marked(mark):
    """End all processes of a cluster. Ray writes titles over the beginning of the environment, which psutil then does not read."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                process.kill()


def fill_in(line, shells, out):
    """Return a line of a guide with the addresses of these nodes, their one GPU, and the data of a training of two steps."""
    head, node = (shells[name].node.inside for name in ("head", "node"))
    for old, new in {
        "HEAD:": f"{head}:",
        "10.0.0.1": head,
        "10.0.0.2": node,
        "n_gpus_per_node=8": "n_gpus_per_node=1",
    }.items():
        line = line.replace(old, new)
    if not line.endswith(" ..."):
        return line
    line = line.removesuffix("...")
    # Where Ray of this bed has the file that the setting ``prometheus.enable`` of verl is about.
    line += f"actor_rollout_ref.rollout.prometheus.file={shells['head'].environ['RAY_TMPDIR']}/ray/{RAYS_FILE} "
    keys = {word.partition("=")[0] for word in shlex.split(line)}
    more = ["trainer.nnodes=2", "actor_rollout_ref.rollout.agent.num_workers=2", "trainer.test_freq=-1"]
    words = [*cpu_train.make_command(out, steps=2)[3:], *more]  # without "python -m verl.trainer.main_ppo"
    # A training of the guide says nothing about Ray: it joins the cluster of its node.
    data = [word for word in words if word.partition("=")[0] not in keys and "ray_kwargs." not in word]
    return line + shlex.join(data)


def query(shell, promql):
    """Return the answer of the Prometheus of the head: labels and value of each series."""
    form = urllib.parse.urlencode({"query": promql})
    found = json.loads(shell.node.run(fetch, f"{PROMETHEUS}/api/v1/query?{form}"))["data"]["result"]
    return [(each["metric"], float(each["value"][1])) for each in found]


@pytest.mark.parametrize(
    ("page", "heading"),
    [("bring-up.md", "Machines: `ray start`"), ("cluster.md", "From empty nodes to the first curve")],
)
def test_console_lines_lead_to_a_curve(terminals, tmp_path, wait_for, page, heading):
    """Each line succeeds as it stands, and at the end the Prometheus that the guide names has the steps of the training, from both nodes."""
    head = terminals["head"]
    trained = ""
    with contextlib.ExitStack() as running:
        for name, line in read_lines(page, heading):
            filled = fill_in(line, terminals, tmp_path)
            if filled.startswith("export "):
                terminals[name].export(shlex.split(filled)[1:])
            elif filled.startswith("verl-otel stack "):
                if not (tmp_path / "grafana-v12.2.0").exists():
                    filled = GRAFANA.sub("", filled)  # Grafana is not installed here
                running.enter_context(terminals[name].keep(filled, "Ctrl-C ends it."))
            else:
                printed = terminals[name].run(filled)
                trained += printed if "main_ppo" in line else ""
        assert trained, "the guide trains nothing"
        assert [text for text in find_unexpected(trained) if f"{RAYS_FILE} has the job verl-otel" not in text] == []
        wait_for(lambda: [value for _, value in query(head, "verl_training_steps_total")] == [2], 60, 1)
        hosts = {labels["host_name"] for labels, _ in query(head, 'target_info{job="verl"}')}
        assert len(hosts) == 2
