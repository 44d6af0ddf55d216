# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rewards that rise, stay or scatter. What the library counts in steps is counted by the library here."""

import itertools
import math
import random

from tests.dashboards.scenes import Scene
from tests.dashboards.trainings import HOUR, MINUTE, Training, of_run, watch
from verl_otel.health.recent_past import LearningProgress

LENGTHS = {"10s": (10, 30), "10min": (10 * MINUTE, 10 * MINUTE), "2h": (2 * HOUR, 2 * HOUR)}
"""Seconds of a step, and between two evaluations: one each step is enough here."""
SEED = 11


def follow(rewards):
    """Return the scalars of each step as the library makes them of the rewards."""
    course, found = LearningProgress(), {}
    for step, reward in enumerate(rewards, 1):
        course.add(step, reward)
        since, trend = course.count_since_best(step), course.find_trend()
        found[step] = {
            "verl_average_reward": reward,
            'verl_training_steps_since_best{verl_metric="reward"': since,
            **({} if trend is None else {'verl_training_trend{verl_metric="reward"': round(trend, 4)}),
        }
    return lambda step: found[min(step, len(found))]


def noise(scale):
    values = random.Random(SEED)
    while True:
        yield values.gauss(0, scale)


def rewards_of(shape, count):
    """Return rewards that rise, stay or scatter about what rises, or rise until step 60 and then no more."""
    level = {
        "rising": lambda step: step / count,
        "noisy and rising": lambda step: step / count,
        "flat after step 60": lambda step: min(step, 60) / 100,
        "noisy and flat after step 60": lambda step: min(step, 60) / 100,
    }[shape]
    scatter = noise(0.05) if "noisy" in shape else itertools.repeat(0.0)
    return [level(step) + next(scatter) for step in range(1, count + 1)]


def scenes_of_stagnation(name, step, interval):
    """240 steps: what has not risen since step 60 is found some time after step 160, and nothing else is."""

    def at(number):
        """Minute at which a step has ended, rounded up to an evaluation."""
        seconds = MINUTE + number * step
        return math.ceil(seconds / interval) * interval // MINUTE + 2 * interval // MINUTE

    count = 240
    end = at(count)
    later = 10 + 2 * interval // MINUTE
    for shape in ("rising", "noisy and rising", "flat after step 60", "noisy and flat after step 60"):
        series = watch([Training(step, scalars=follow(rewards_of(shape, count)))], end + 1, interval=interval)
        quiet = {at(number): set() for number in (20, 60, 100, 140)}
        late = {at(number): set() if "rising" in shape else {"RewardStagnation"} for number in (226, 236)}
        yield Scene(f"{name}: rewards {shape}", series, {**quiet, **late}, interval=interval)
    flat = follow([0.5] * 90)
    yield Scene(
        f"{name}: flat, but short and finished",
        watch([Training(step, scalars=flat, finish=MINUTE + 90 * step)], at(90) + 2 * later, interval=interval),
        {at(40): set(), at(85): set(), at(90) + later: set()},
        interval=interval,
    )


def stagnates_and_recovers():
    """The reward rises again after 130 steps without; then the run finishes while it stands still."""
    rewards = (
        [min(step, 20) / 100 for step in range(1, 151)] + [0.2 + step / 100 for step in range(1, 31)] + [0.5] * 130
    )
    return Scene(
        "stagnates, recovers, and finishes while it stands still",
        watch([Training(MINUTE, scalars=follow(rewards), finish=305 * MINUTE)], 320, interval=60),
        {
            115: set(),
            130: {"RewardStagnation"},
            148: {"RewardStagnation"},
            175: set(),
            302: {"RewardStagnation"},
            309: set(),
        },
        (
            of_run(
                130,
                "RewardStagnation",
                "no better reward for 105 steps, and no rise in the last 20",
                verl_metric="reward",
            ),
        ),
        interval=60,
    )


def resumed():
    """The process that resumes the run knows nothing of the steps before: no alert until it has seen enough."""
    flat = follow([0.5] * 400)
    first = Training(MINUTE, scalars=flat, kill=200 * MINUTE)
    second = Training(MINUTE, begin=203 * MINUTE, first=150, scalars=lambda step: flat(step - 149))
    return Scene(
        "stagnates, and is resumed",
        watch([first, second], 330, interval=60),
        {100: set(), 110: {"RewardStagnation"}, 220: set(), 300: set(), 315: {"RewardStagnation"}},
        interval=60,
    )


def stagnates_by_time():
    """With a threshold in seconds, an hour and a half without a better reward is enough, at any number of steps; a better one ends it."""
    rewards = [min(step, 30) / 100 for step in range(1, 61)] + [0.4 + step / 100 for step in range(1, 21)] + [0.5] * 9
    return Scene(
        "stagnates by time",
        watch([Training(5 * MINUTE, scalars=follow(rewards))], 430, interval=60),
        {
            100: set(),
            230: set(),
            250: set(),
            275: {"RewardStagnation"},
            300: {"RewardStagnation"},
            330: set(),
            400: set(),
        },
        (
            of_run(
                280,
                "RewardStagnation",
                "no better reward for 1h 49m 0s, and no rise in the last 20 steps",
                basis="time",
            ),
        ),
        {"stagnation_seconds": 5400},
        interval=60,
    )


SCENES = [
    stagnates_by_time(),
    *(scene for name, (step, interval) in LENGTHS.items() for scene in scenes_of_stagnation(name, step, interval)),
    stagnates_and_recovers(),
    resumed(),
]
