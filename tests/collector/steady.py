# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A training as a child of a test, which records all the time; what it recorded is known even if it is killed."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from tests.builders import otlp_json
from tests.builders.environments import inherit

HERE = Path(__file__).resolve().parent


class Training:
    """A process of send_steadily.py.

    Args:
        folder: Where its journal goes.
        url: Endpoint of OTLP.
        kind: ``step`` or ``trajectory``.
        pause: Seconds between two units.
        name: Of its journal; also of what it says of itself.
        variables: More variables of its environment.
    """

    def __init__(self, folder, url, kind="step", pause=0.005, *, name="steady", **variables):
        self.journal = folder / f"{name}.journal"
        self.log = folder / f"{name}.log"
        hidden = ("OTEL", "VERL_", "PYTEST")
        inherited = inherit(*hidden)
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "VERL_OTEL_EXPORTERS": "otlp",
            "VERL_OTEL_RUN_DIR": str(folder / "runs"),
            "VERL_OTEL_RUN_ID": "r",
            "VERL_OTEL_STALLS": "0",  # on a busy machine it adds spans of pauses, which no unit has
            **variables,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "send_steadily.py", self.journal, kind, str(pause)],
                env={**inherited, **settings},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def times(self):
        """Return when each unit ended, in nanoseconds, in order."""
        if not self.journal.exists():
            return []
        *lines, _rest = self.journal.read_text().split("\n")
        return [int(line) for line in lines]

    def await_units(self, more, seconds=120):
        """Wait until it has recorded this many more."""
        wanted, deadline = len(self.times()) + more, time.monotonic() + seconds
        while len(self.times()) < wanted:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{len(self.times())} of {wanted} units: {self.log.read_text()}"
            time.sleep(0.02)

    def go_on(self, seconds):
        """Let it record for that long."""
        before, deadline = len(self.times()), time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        assert len(self.times()) > before

    def jump(self, seconds):
        """Move its clock."""
        self.process.stdin.write(f"jump {seconds}\n")
        self.process.stdin.flush()

    def kill(self):
        """Kill it; returns the moment before, in nanoseconds."""
        moment = time.time_ns()
        self.process.kill()
        self.process.communicate()
        return moment

    def end(self, seconds=180):
        """End it as a training ends; returns what it says."""
        output, _ = self.process.communicate("", timeout=seconds)
        assert self.process.returncode == 0, self.log.read_text()
        return json.loads(output.splitlines()[-1])

    def stop(self):
        if self.process.poll() is None:
            self.kill()


def find_units(spans):
    """Return the numbers of the units that have both of their spans."""
    numbers, children = {}, set()
    for trace_id, _, span in spans:
        texts = {each["key"]: each["value"] for each in span["attributes"]}
        if span["name"] == "verl.step":
            numbers[trace_id] = int(texts["verl.step.number"]["intValue"])
        elif span["name"] == "verl.trajectory":
            numbers[trace_id] = int(texts["verl.sample.uid"]["stringValue"].removeprefix("prompt-"))
        else:
            children.add(trace_id)
    return {number for trace_id, number in numbers.items() if trace_id in children}


def read_ranks(path):
    """Return the spans of a file of traces, by the instance that sent them."""
    found = defaultdict(list)
    for message in otlp_json.read_objects(path):
        for resource, _, span in otlp_json.each_span(message):
            found[resource["service.instance.id"]].append((span["traceId"], span["spanId"], span))
    return found


def await_equal(read, wanted, seconds=180.0):
    """Wait until a function returns what is wanted; fail with the last that it returned, so that one sees by how much it is wrong."""
    deadline = time.monotonic() + seconds
    while (found := read()) != wanted and time.monotonic() < deadline:
        time.sleep(0.3)
    if isinstance(found, set):
        assert found == wanted, f"missing: {sorted(wanted - found)!r:.300}, too many: {sorted(found - wanted)!r:.300}"
    assert found == wanted, f"{found!r:.300} is not {wanted!r:.300}"
