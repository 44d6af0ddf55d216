# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that are broken in five ways while a real Prometheus watches them: each run has the right alert and no other, and the right receiver is notified.

They are loops that say what a trainer says, through the real SDK; every time in the rules is divided by `pipeline.FACTOR`.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders.environments import inherit
from tests.collector.tiers import Tier
from tests.end_to_end import compressed_rules
from tests.end_to_end import pipeline as parts

pytestmark = pytest.mark.collector

LOOP = Path(__file__).resolve().with_name("pipeline_loop.py")
STEPS = 6
"""So many steps Prometheus has to have seen of each before anything is broken: then it knows how long one takes."""
PATIENCE = 120
"""Seconds after which an alert counts as not fired: four times what the slowest needs."""
NOTIFIED = 60
"""Seconds after which Alertmanager counts as silent: it waits for 10 at most."""


class Loop(NamedTuple):
    """A run, and what becomes of it."""

    words: tuple[str, ...]
    exporters: str
    alert: str = ""
    receiver: str = ""


LOOPS = {
    "stalled": Loop(("rank",), "otlp", "TrainingStalled", "on-call"),
    "killed": Loop((), "prometheus", "RunVanished", "on-call"),
    "killed-pushed": Loop((), "otlp", "RunVanished", "on-call"),
    "lost": Loop((), "otlp,prometheus", "TelemetryDropped", "platform"),
    "exploded": Loop(("kl",), "otlp", "KLExplosion", "on-call"),
    "slow": Loop(("slow",), "otlp", "Slowdown", "researchers"),
    "healthy": Loop((), "prometheus"),
    "healthy-pushed": Loop((), "otlp"),
    "ended": Loop((), "prometheus"),
    "ended-pushed": Loop((), "otlp"),
}
"""``lost`` has a Collector of its own, which dies; Prometheus scrapes it. Those that end do so when the others are broken."""


@pytest.fixture(scope="module")
def start(pipeline):
    """Start a loop by its run id; returns the process. All are ended, in order where they can be, with the module."""
    started = {}

    def run(name, **variables):
        loop = LOOPS[name]
        inherited = inherit("OTEL_", "VERL_")
        own = {
            "VERL_OTEL_RUN_DIR": str(pipeline.loops / "runs"),
            "VERL_OTEL_RUN_ID": name,
            "VERL_OTEL_EXPORTERS": loop.exporters,
            "OTEL_METRIC_EXPORT_INTERVAL": parts.EXPORT,
            "OTEL_EXPORTER_OTLP_ENDPOINT": pipeline.agent.http_url,
            **variables,
        }
        with (pipeline.loops / f"{name}.log").open("wb") as log:
            words = [sys.executable, LOOP, *loop.words]
            started[name] = subprocess.Popen(words, env={**inherited, **own}, stdin=-1, stdout=-1, stderr=log)
        return started[name]

    pipeline.loops.mkdir()
    yield run
    for process in started.values():
        process.stdin.close()
    for process in started.values():
        process.wait(60)
        process.stdout.close()


@pytest.fixture(scope="module")
def broken(pipeline, start, wait_for):
    """Every loop, each in its way, when every alert that has to fire has fired, and those of the run that goes on again have been resolved."""
    watcher = pipeline.watcher
    collector = Tier(pipeline.agent.program, pipeline.loops, "collector", ["local.yaml", "traces-to-file.yaml"]).start()
    lost = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.http_url,
        "VERL_OTEL_MEMORY_MIB": "1",
        "VERL_OTEL_EXIT_TIMEOUT": "1",
    }
    try:
        processes = {name: start(name, **(lost if name == "lost" else {})) for name in LOOPS}
        rank = int(processes["stalled"].stdout.readline())

        def all_have_trained():
            seen = watcher.query(f"max by (verl_run_id) (verl_training_step) >= {STEPS}")
            return LOOPS.keys() <= {labels["verl_run_id"] for labels, _ in seen}

        wait_for(all_have_trained, PATIENCE, 0.5)
        assert not [each for name in LOOPS for each in watcher.fired(name)]
    finally:
        collector.kill()
    for name in ("killed", "killed-pushed"):
        processes[name].kill()
        processes[name].wait()
    for name in ("ended", "ended-pushed"):
        processes[name].stdin.close()
    os.kill(rank, signal.SIGSTOP)
    ill = [name for name, loop in LOOPS.items() if loop.alert]
    try:
        with contextlib.suppress(AssertionError):  # the tests below say which of them is missing
            wait_for(lambda: all(map(watcher.fired, ill)), PATIENCE, 0.5)
            wait_for(lambda: all(is_notified(pipeline, name, "firing") for name in ill), NOTIFIED, 0.5)
    finally:
        os.kill(rank, signal.SIGCONT)
    with contextlib.suppress(AssertionError):  # as above
        wait_for(lambda: is_notified(pipeline, "stalled", "resolved"), NOTIFIED, 0.5)
    return pipeline


def is_notified(pipeline, name, status):
    """Return whether the right receiver was notified of a run's alert."""
    return (LOOPS[name].receiver, status, LOOPS[name].alert, name) in pipeline.receiver.notifications


@pytest.mark.parametrize("name", LOOPS)
def test_the_right_alert_fires_and_no_other(broken, name):
    """SIGSTOP of a rank, SIGKILL of the trainer, a Collector that is gone, a KL that explodes, steps that become slow; and runs with nothing wrong, or that ended."""
    fired = {alert for alert, _ in broken.watcher.fired(name)}
    assert fired == ({LOOPS[name].alert} if LOOPS[name].alert else set())


@pytest.mark.parametrize("name", LOOPS)
def test_the_right_receiver_is_notified(broken, name):
    """Alertmanager, with the project's example, hands the alert of a run to one receiver, and nothing of a run without."""
    notified = {(receiver, alert) for receiver, status, alert, run in broken.receiver.notifications if run == name}
    assert notified == ({(LOOPS[name].receiver, LOOPS[name].alert)} if LOOPS[name].alert else set())


def test_nobody_else_is_accused(broken):
    """Of agent, gateway and Prometheus, which carry all this, no alert fires."""
    assert not broken.watcher.fired("")


def test_an_alert_goes_with_its_cause(broken):
    """The rank goes on: the alert is gone while the training goes on, and the other one is not resolved."""
    found = broken.watcher.query('ALERTS{alertstate="firing", verl_run_id!=""}')
    firing = {(labels["verl_run_id"], labels["alertname"]) for labels, _ in found}
    assert ("stalled", "TrainingStalled") not in firing
    assert is_notified(broken, "stalled", "resolved")
    assert ("exploded", "KLExplosion") in firing
    assert not [each for each in broken.receiver.notifications if each[1] == "resolved" and each[3] == "exploded"]


def hide(rule, pattern):
    """Return a rule as text in which what a pattern finds cannot be distinguished."""
    return re.sub(pattern, "#", " ".join(str(rule).split()))


NUMBERS_OF_SECONDS = {
    "HostMemorySlope", "run:verl_checkpoint:step", "stall_seconds", "stall_moving_seconds", "stall_quiet_seconds", "stall_start_seconds",
    "stuck_seconds", "stuck_unknown_seconds",
}  # fmt: skip
"""Rules that have seconds without their unit: alerts and records by name, thresholds by the label."""


def test_only_times_are_compressed(pipeline):
    """The rules that fired are the project's own: with every duration hidden both say the same, but for numbers of seconds in rules that are known."""
    folder = pipeline.watcher.folder / "rules"
    different = set()
    for path in sorted(compressed_rules.RULES.glob("*.rules.yml")):
        ours, theirs = (
            [
                rule
                for group in compressed_rules.yaml.safe_load(each.read_text("utf-8"))["groups"]
                for rule in group["rules"]
            ]
            for each in (path, folder / path.name)
        )
        for one, other in zip(ours, theirs, strict=True):
            if hide(one, r"\d+(ms|[smhdw])\b") != hide(other, r"\d+(ms|[smhdw])\b"):
                different.add(one.get("labels", {}).get("name") or one.get("alert") or one["record"])
                assert hide(one, r"\d+(\.\d+)?(ms|[smhdw])?\b") == hide(other, r"\d+(\.\d+)?(ms|[smhdw])?\b")
    assert different == NUMBERS_OF_SECONDS
    document = (folder / "learning.rules.yml").read_text("utf-8")
    assert f"for: {600_000 // parts.FACTOR}ms" in document, "KLExplosion waits for ten minutes"
