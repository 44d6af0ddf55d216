# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a training left behind: the telemetry, read as plain JSON, and the bed's and verl's own records of the same run."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil

HERE = Path(__file__).resolve().parent

from tests.builders import otlp_json
from tests.builders.otlp_json import read_attributes
from tests.verl_cpu import cpu_log, cpu_train

DEADLINE = 600
"""Seconds after which a training counts as hung."""


class Training:
    """One run of real verl."""

    def __init__(self, out):
        self.out = Path(out)
        self.returncode = None
        self.seconds = 0.0

    @property
    def log(self):
        return (self.out / "training.log").read_text("utf-8", "replace")

    @property
    def folder(self):
        """Folder of the telemetry."""
        return next(path.parent for path in (self.out / "runs").glob("*/run.json"))

    def report(self):
        """What ``verl-otel report`` prints; it must succeed."""
        command = [Path(sys.executable).with_name("verl-otel"), "report", self.folder]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def bed(self, kind):
        """Lines of the bed's own log."""
        return cpu_log.read(self.out / "log", kind)

    def scalars(self):
        """What verl's own file logger wrote: step to scalars; fully asynchronous training writes several lines for a step."""
        found = {}
        for line in map(json.loads, (self.out / "scalars.jsonl").read_text().splitlines()):
            found.setdefault(int(line["step"]), {}).update(line["data"])
        return found

    def timeline(self):
        """Ray's own list of executed tasks: name to number."""
        found = {}
        for event in json.loads((self.out / "timeline.json").read_text()):
            if str(event.get("cat", "")).startswith("task::"):
                found[event["name"]] = found.get(event["name"], 0) + 1
        return found

    def spans(self, pattern="traces-*.jsonl"):
        """Every span of the telemetry as an object with plain attributes."""
        return [
            span
            for path in sorted(self.folder.glob(pattern))
            for line in path.read_text("utf-8").splitlines()
            for span in parse_traces(json.loads(line))
        ]

    def points(self):
        """Every data point of the telemetry: (name, labels, unix ns, value)."""
        return [
            point
            for path in sorted(self.folder.glob("metrics-*.jsonl"))
            for line in path.read_text("utf-8").splitlines()
            for point in parse_metrics(json.loads(line))
        ]


def parse_traces(thing):
    for resource, scope, span in otlp_json.each_span(thing):
        start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        yield SimpleNamespace(
            name=span["name"], trace=span["traceId"], id=span["spanId"], parent=span.get("parentSpanId", ""),
            kind=span["kind"], start=start, end=end, seconds=(end - start) / 1e9, resource=resource,
            attributes=read_attributes(span.get("attributes", [])), status=span.get("status", {}).get("code", 0),
            links=[(link["traceId"], link["spanId"], read_attributes(link["attributes"])) for link in span.get("links", [])],
            scope=scope, pid=resource["process.pid"], role=resource["verl.role"],
            sampled=bool(span.get("flags", 1) & 1), state=span.get("traceState", ""),
        )  # fmt: skip


def parse_metrics(thing):
    for _, _, metric in otlp_json.each_metric(thing):
        for point in otlp_json.each_point(metric):
            labels = read_attributes(point["attributes"])
            yield metric["name"], labels, int(point["timeUnixNano"]), otlp_json.read_number(point)


@contextlib.contextmanager
def start(
    out,
    *,
    command=None,
    overrides=(),
    python=sys.executable,
    hide="",
    broken="",
    steps=3,
    tool=False,
    mode="sync",
    algorithm="grpo",
    **variables,
):
    """Start a training and yield (training, process); everything that it started is ended afterwards."""
    training = Training(out)
    training.out.mkdir(parents=True, exist_ok=True)
    environ = cpu_train.make_environment(out, tool=tool, **variables)
    extra = environ.pop("PYTHONPATH_EXTRA", None)
    if extra:
        environ["PYTHONPATH"] = os.pathsep.join([extra, environ["PYTHONPATH"]])
    if hide or broken:
        environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "obstacles"), environ["PYTHONPATH"]])
        environ |= {"CPU_BED_HIDE": hide, "CPU_BED_BREAK": broken}
    if command is None:
        command = cpu_train.make_command(
            out, steps=steps, tool=tool, mode=mode, algorithm=algorithm, overrides=overrides, python=python
        )
    begin = time.monotonic()
    with (training.out / "training.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=out,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A shell that runs tests in the background has them ignore Ctrl-C, and who starts them inherits that.
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - before Python starts
        )
        try:
            yield training, process
        finally:
            end(process)
            training.seconds = time.monotonic() - begin
            training.returncode = process.returncode


NO_NODE = "The current node timed out during startup"
"""What Ray says when its own processes took more than its 30 seconds to start: the machine is too busy, and nothing was trained."""


def train(out, **options):
    """Run a training to its end, in a second try if Ray could not start at all; fail when it hangs."""
    training = _train(out, **options)
    if training.returncode and NO_NODE in training.log and not training.bed("trajectory"):
        shutil.move(training.out, training.out.with_name(f"{training.out.name}-without-ray"))
        training = _train(out, **options)
    return training


def _train(out, **options):
    with start(out, **options) as (training, process):
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the training hangs:\n{training.log[-4000:]}") from None
    return training


def end(process):
    """End a process and all that it started, by pid."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
    for each in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    if process.poll() is None:
        process.kill()
    process.wait()


def workers(process, title):
    """Return the pids of the Ray workers below a process whose title holds a text."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if title in " ".join(child.cmdline()):
                found.append(child.pid)
    return found
