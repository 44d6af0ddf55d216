# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whole processes with telemetry, and a reader of what they left that shares no code with the library."""

import contextlib
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

import verl_otel
from tests.builders import otlp_json
from tests.builders.environments import inherit
from verl_otel import resource

OF_BUSY_MACHINES = ("verl.event_loop.blocked", "verl.process.paused", "verl.thread.stood")
"""Spans that a program has in addition where it does not run for a while."""


class Files:
    """What stands in the files of one run, without what a busy machine adds: every line must be whole, every id once."""

    def __init__(self, folder):
        self.folder = folder

    def paths(self, kind):
        return sorted(self.folder.glob(f"{kind}-*.jsonl"))

    def spans(self, kind="traces"):
        """Every span, with its attributes, the resource and the file it stands in; of those that are open, what is left of all lines."""
        ended = {span for path in self.paths("open") for line in otlp_json.read_objects(path) for span in line["ended"]}
        found = [
            SimpleNamespace(
                name=each["name"],
                id=each["spanId"],
                trace=each["traceId"],
                parent=each.get("parentSpanId", ""),
                attributes=otlp_json.read_attributes(each["attributes"]),
                scope=scope,
                resource=resource,
                path=path,
            )
            for path in self.paths(kind)
            for message in otlp_json.read_objects(path)
            for resource, scope, each in otlp_json.each_span(message)
            if each["name"] not in OF_BUSY_MACHINES
        ]
        return found if kind != "open" else list({each.id: each for each in found if each.id not in ended}.values())

    def names(self, kind="traces"):
        return [span.name for span in self.spans(kind)]

    def points(self, metric):
        """Every point of a metric, in the order in which it was written."""
        return [
            SimpleNamespace(
                labels=otlp_json.read_attributes(point.get("attributes", [])),
                value=float(otlp_json.read_number(point)),
                time=int(point["timeUnixNano"]),
                resource=resource,
                path=path,
            )
            for path in self.paths("metrics")
            for message in otlp_json.read_objects(path)
            for resource, _, each in otlp_json.each_metric(message)
            if each["name"] == metric
            for point in otlp_json.each_point(each)
        ]

    def last(self, metric, **labels):
        """The latest value of a metric, summed over its series and the processes; a histogram's count."""
        latest = {}
        for point in self.points(metric):
            if labels.items() <= {key.replace(".", "_"): value for key, value in point.labels.items()}.items():
                key = (point.path, str(sorted(point.labels.items())))
                if key not in latest or point.time >= latest[key].time:
                    latest[key] = point
        return sum(point.value for point in latest.values())


@pytest.fixture
def files():
    """Read a run's folder."""
    return Files


@pytest.fixture
def start(tmp_path):
    """Start telemetry in this process, into files, and stop it at the end; returns the run's files."""

    def begin(**keywords):
        settings = {"exporters": "file", "run_dir": tmp_path / "runs", "run_id": "r1", "drain_interval": 0.05}
        settings |= keywords
        verl_otel.init(**settings)
        return Files(tmp_path / settings["run_dir"] / settings["run_id"])

    yield begin
    verl_otel.shutdown()
    resource.clear()


@pytest.fixture
def environ(tmp_path):
    """The environment of a process with telemetry: files in ``tmp_path / "runs" / "r1"``, nothing of pytest's."""
    inherited = inherit("PYTEST")
    return {
        **inherited,
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_RUN_DIR": str(tmp_path / "runs"),
        "VERL_OTEL_RUN_ID": "r1",
        "VERL_OTEL_DRAIN_INTERVAL": "0.05",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def spawn(tmp_path, environ):
    """Start a Python script with telemetry's environment; it and its children are killed at the end if they still run."""
    started = []

    def begin(code, **variables):
        script = tmp_path / f"script{len(started)}.py"
        script.write_text(code)
        process = subprocess.Popen(
            [sys.executable, script],
            env={**environ, **variables},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def run(spawn):
    """Run a Python script with telemetry's environment to its end; one that hangs fails the test."""

    def finish(code, *, timeout=180, **variables):
        process = spawn(code, **variables)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the process hangs: not ended within {timeout} s")
        return SimpleNamespace(code=process.returncode, out=out, err=err)

    return finish


def listening_hosts(port):
    """Return the addresses at which this process listens on a port. Connecting tells less: another process may have taken a port that is free again."""
    process = psutil.Process()
    read = getattr(process, "net_connections", None) or process.connections  # psutil before 6
    return {each.laddr.ip for each in read("tcp") if each.status == psutil.CONN_LISTEN and each.laddr.port == port}
