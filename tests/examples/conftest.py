# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run the examples as a user does: a copy of the folder, the commands of its README, an environment without settings."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS = 480
"""Time after which a command counts as hung."""


class Example:
    """One example, copied into a folder of the test.

    Args:
        folder: Where the copy of the example is.
        runs: The run directory (``VERL_OTEL_RUN_DIR``).
    """

    def __init__(self, folder, runs):
        self.folder, self.runs = folder, runs
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(HIDDEN)}
        path = os.pathsep.join([str(Path(sys.executable).parent), inherited["PATH"]])
        self.environ = {**inherited, "PATH": path, "VERL_OTEL_RUN_DIR": str(runs), "RAY_USAGE_STATS_ENABLED": "0"}

    def blocks(self, kind):
        """Return the blocks of code of one kind in the README."""
        return re.findall(rf"```{kind}\n(.*?)```", (self.folder / "README.md").read_text("utf-8"), re.DOTALL)

    def commands(self):
        """Return the commands of the README in order, without comments."""
        lines = "".join(self.blocks("console")).splitlines()
        return [line[2:].partition("  #")[0].strip() for line in lines if line.startswith("$ ")]

    def try_run(self, command):
        """Run one command in the folder of the example; return the process that has ended."""
        return subprocess.run(
            ["bash", "-c", command],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def run(self, command):
        """Return what a command prints; it must succeed, and verl-otel must complain of nothing but a step that was held."""
        done = self.try_run(command)
        output = f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, output
        lines = (done.stdout + done.stderr).splitlines()
        assert not [line for line in lines if "verl-otel:" in line and "Evidence: verl-otel explain" not in line], (
            output
        )
        return done.stdout

    def run_all(self):
        """Run all commands of the README; return what each printed, by command."""
        return {command: self.run(command) for command in self.commands()}

    def telemetry(self):
        """Return the folder of the one run that the example has made."""
        (folder,) = (path for path in self.runs.iterdir() if list(path.glob("traces-*.jsonl")))
        return folder

    def spans(self):
        """Return the spans in the files of the run, parsed as plain OTLP JSON."""
        lines = read_lines(self.telemetry().glob("traces-*.jsonl"), "resourceSpans", "scopeSpans", "spans")
        return [parse_span(resource, item) for resource, item in lines]

    def last_values(self, metric):
        """Return the last value of each series of a sum: process id and labels to value."""
        values = {}
        for resource, item in read_lines(
            self.telemetry().glob("metrics-*.jsonl"), "resourceMetrics", "scopeMetrics", "metrics"
        ):
            for point in item["sum"]["dataPoints"] if item["name"] == metric else ():
                labels = tuple(sorted(parse_attributes(point["attributes"]).items()))
                values[resource["process.pid"], labels] = float(point.get("asInt", point.get("asDouble")))
        return values


def read_lines(paths, groups, scopes, items):
    """Yield the attributes of the resource and the object, for each span or metric in files of OTLP JSON."""
    for path in paths:
        for line in path.read_text("utf-8").splitlines():
            for group in json.loads(line)[groups]:
                resource = parse_attributes(group["resource"]["attributes"])
                for scope in group[scopes]:
                    yield from ((resource, item) for item in scope[items])


def parse_attributes(pairs):
    """Return attributes of OTLP JSON as a dictionary; integers are strings there."""
    values = ((pair["key"], *pair["value"].items()) for pair in pairs)
    return {key: int(value) if kind == "intValue" else value for key, (kind, value) in values}


def parse_span(resource, item):
    """Return a span of OTLP JSON as an object."""
    return SimpleNamespace(
        name=item["name"],
        trace=item["traceId"],
        id=item["spanId"],
        parent=item.get("parentSpanId", ""),
        status=item.get("status", {}).get("code", 0),
        seconds=(int(item["endTimeUnixNano"]) - int(item["startTimeUnixNano"])) / 1e9,
        attributes=parse_attributes(item.get("attributes", [])),
        resource=resource,
    )


HIDDEN = ("OTEL", "VERL_", "PYTEST_", "RAY_")
"""Beginnings of the variables that an example does not inherit."""


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Copy the examples and return one of them by name."""

    def copy(name):
        top = tmp_path_factory.mktemp(name)
        shutil.copytree(EXAMPLES, top / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        return Example(top / "examples" / name, top / "runs")

    return copy
