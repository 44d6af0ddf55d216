# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings as Prometheus sees them: how long a step takes, how it starts, hangs, ends, dies and is resumed, as series."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from tests.dashboards.scenes import INTERVAL, STALE, Says

RUN = "r1"
TRAINER = f'job="verl",instance="{RUN}/trainer-0",verl_role="trainer",verl_run_id="{RUN}"'
WORKER = f'job="verl",instance="{RUN}/actor_rollout_ref-0",verl_role="actor_rollout_ref",verl_run_id="{RUN}"'
MINUTE = 60
HOUR = 3600
LINGER = 60
"""Seconds for which a process is still scraped after it has reported the end of the run."""


def of_run(minute, alert, summary, **labels):
    """An alert on the run, and what its reader sees."""
    return Says(minute, alert, {"verl_run_id": RUN, **labels}, f"Run {RUN}: {summary}")


def of_process(minute, alert, process, summary, **labels):
    """An alert on a process of the run, and what its reader sees."""
    instance = f"{RUN}/{process}"
    return Says(minute, alert, {"verl_run_id": RUN, "instance": instance, **labels}, f"{instance}: {summary}")


class Training(NamedTuple):
    """One process that trains. Times are seconds since the beginning of the scene."""

    step: float
    """Seconds of a step."""
    begin: float = 0
    startup: float = MINUTE
    """Seconds until the trainer knows its run; its workers are there from the beginning."""
    first: int = 1
    """Number of the first step: behind 1 after a resume."""
    slow: Mapping[int, float] = {}
    """Seconds of a validation or checkpoint before a step ends, by its number."""
    hang: float = math.inf
    """When everything begins to stand still."""
    finish: float = math.inf
    """When it says that it has finished; a minute later it is gone."""
    fail: float = math.inf
    stop: float = math.inf
    """When a guard stops it."""
    kill: float = math.inf
    """SIGKILL: its series end without a word."""
    unseen_end: bool = False
    """Whether it is gone before a scrape sees how it ended."""
    scalars: Callable[[int], Mapping[str, float]] = lambda _: {}
    """Scalars by the number of the step: the metric, behind it ``{`` and its own labels; those of the process are added."""

    def ends(self) -> float:
        """Return when its series end."""
        reported = min(self.finish, self.fail, self.stop)
        return min(self.kill, reported if self.unseen_end else reported + LINGER)

    def step_ends(self) -> Iterator[float]:
        """Yield when each step ends."""
        now, number = self.begin + self.startup, self.first
        while True:
            now += self.step + self.slow.get(number, 0)
            if now > min(self.hang, self.finish, self.fail, self.stop, self.kill):
                return
            yield now
            number += 1


def watch(
    trainings: Sequence[Training], minutes: int, *, interval: int = INTERVAL, pulled: bool = True
) -> dict[str, list]:
    """Return the series of one run that is trained by one process after another.

    Args:
        trainings: The processes.
        minutes: How long to watch.
        interval: Seconds between two samples.
        pulled: Whether Prometheus scrapes the processes, and so has an ``up`` of them.
    """
    count = minutes * MINUTE // interval + 1
    series: dict[str, list] = {}
    for training in trainings:
        ends = list(takewhile(lambda end: end <= minutes * MINUTE, training.step_ends()))
        for number in range(count):
            now = number * interval
            if training.begin <= now < training.ends():
                for name, value in _see(training, now, ends[: bisect_right(ends, now)]).items():
                    series.setdefault(name, [None] * count)[number] = value
    if pulled:
        series[f"up{{{TRAINER}}}"] = [_up(trainings, number * interval) for number in range(count)]
    return {name: end_with_stale(values) for name, values in series.items()}


def end_with_stale(values: Sequence[float | None]) -> list:
    """Return values with the mark that Prometheus sets where a series ends."""
    return [STALE if value is None and i and values[i - 1] is not None else value for i, value in enumerate(values)]


def _up(trainings, now):
    """Return 1 while it lives, 0 once it was killed, and nothing once it has taken itself off the list."""
    begun = [each for each in trainings if each.begin <= now]
    if not begun:
        return None
    last = begun[-1]
    return 1 if now < last.ends() else 0 if last.kill <= last.ends() else None


def _see(training, now, done):
    """Return the samples of one moment, with the ends of the steps that are done."""
    ends = {2: training.finish, 3: training.fail, 5: training.stop}
    state = next((number for number, end in ends.items() if now >= end), 1)
    active = min(now, training.hang)
    found = {
        f'verl_otel_overhead_seconds_total{{{WORKER},reason="drain"}}': now // 60 * 0.01,
        f'verl_worker_calls_total{{{WORKER},verl_worker_method="update_actor"}}': (active - training.begin) // 30,
        f'process_cpu_time_seconds_total{{{WORKER},cpu_mode="user"}}': now - training.begin,
    }
    if now < training.begin + training.startup:
        return found
    found[f"verl_run_state{{{TRAINER}}}"] = state
    found[f"verl_training_steps_total{{{TRAINER}}}"] = len(done)
    found[f'verl_limit{{{TRAINER},verl_limit_name="save_frequency"}}'] = -1
    if done:
        number = training.first + len(done) - 1
        found[f"verl_training_last_step_timestamp_seconds{{{TRAINER}}}"] = done[-1]
        found[f"verl_training_step{{{TRAINER}}}"] = number
        for name, value in training.scalars(number).items():
            metric, _, labels = name.partition("{")
            own = f",{labels}" if labels else ""
            found[f"{metric}{{{TRAINER}{own}}}"] = value
    return found
