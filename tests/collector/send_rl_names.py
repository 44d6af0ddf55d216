# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run by tests as a process: steps, phases, trajectories and scalars through the real SDK, for the names of the RL convention.

Usage: python -m tests.collector.send_rl_names
"""

import contextlib
import time

import verl_otel
from verl_otel import session
from verl_otel.integrations.verl.scalars import metric_of
from verl_otel.model import Point
from verl_otel.recording import collection, series
from verl_otel.semconv import metric_names

SCALARS = {
    "actor/pg_loss": -0.25,
    "actor/entropy": 1.5,
    "critic/vf_loss": 3.0,
    "perf/mfu/actor": 0.4,
    "perf/throughput": 1234.5,
}
"""Keys as verl's trainers log them."""


def roll_out(number):
    """Open trajectories of a step: two that end, one of a validation, one that fails."""
    for index in range(2):
        with verl_otel.trajectory(f"prompt-{number}", index):
            pass
    with verl_otel.trajectory(f"validation-{number}", 0, validate=True):
        pass
    with contextlib.suppress(ValueError), verl_otel.trajectory(f"failed-{number}", 0):
        raise ValueError


def main():
    session.describe_resource({"verl.role": "trainer", "verl.rank": 0})
    verl_otel.init()
    for number in (1, 2, 3):
        with verl_otel.step(number):
            with verl_otel.phase("gen"):
                roll_out(number)
            for name in ("reward", "old_log_prob", "update_critic", "update_actor"):
                with verl_otel.phase(name):
                    pass
        series.histogram(metric_names.WEIGHT_SYNC_DURATION).record(0.25 * number)
    series.gauge(metric_names.AVERAGE_REWARD).set(0.75)
    verl_otel.counter("rl.train.own").add(7)
    now = time.time_ns()
    collection.add_points(Point(metric_of(key), (), now, now, value) for key, value in SCALARS.items())
    session.flush(30)
    verl_otel.shutdown()


if __name__ == "__main__":
    main()
