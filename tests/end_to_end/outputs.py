# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the run log, TensorBoard and the live page show of a training, as a user gets it: from the real commands."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.builders import live_page

DEADLINE = 30
"""Seconds in which the live page has read a run."""
LOGGED = {
    ("rollout", "response_length_mean"): "response_length/mean",
    ("ppo", "policy_loss"): "actor/pg_loss",
    ("ppo", "grad_norm"): "actor/grad_norm",
    ("training", "step_seconds"): "timing_s/step",
}
"""Scope and field of the run log, and the key of verl whose value it is. Rewards are those of all local steps of a step, which verl logs in part
(`tests/recount` counts them)."""


def _run(*arguments):
    command = [Path(sys.executable).with_name("verl-otel"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_records(training):
    """Return the records of the run log as ``verl-otel logs`` shows them."""
    return [json.loads(line) for line in _run("logs", training.folder, "--json").splitlines()]


def read_run_log(training):
    """Return the values of `LOGGED` by key of verl and step."""
    found = {}
    for record in read_records(training):
        for (scope, field), key in LOGGED.items():
            if record["scope"] == scope and field in record:
                found.setdefault(key, []).append((record["step"], record[field]))
    return found


def read_tensorboard(training, folder):
    """Return the scalars of ``verl-otel export tensorboard`` by tag and step, read by TensorBoard itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _run("export", "tensorboard", training.folder, "--output", folder)
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_live_page(training):
    """Return the row of the list, the steps, and the points of the reward that ``verl-otel view`` answers, once it has read the run."""
    with live_page.serve(training.folder.parent) as address:
        ask = lambda path: json.load(urllib.request.urlopen(address + path, timeout=DEADLINE))  # noqa: E731 - the loopback
        run, deadline = f"/api/runs/{training.folder.name}", time.monotonic() + DEADLINE
        while ask(run)["read"] < 1:
            assert time.monotonic() < deadline, "the live page has not read the run"
            time.sleep(0.2)
        (row,) = ask("/api/runs")
        return row, ask(f"{run}/steps"), ask(f"{run}/scalars?name=verl.critic.rewards.mean")
