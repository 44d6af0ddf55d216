# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings that go on, stand still, end, die and are resumed, with steps of 10 seconds, 10 minutes and 2 hours."""

import math

from tests.dashboards.scenes import Says, Scene
from tests.dashboards.trainings import HOUR, MINUTE, RUN, TRAINER, WORKER, Training, of_run, watch

LENGTHS = {"10s": (10, 60), "10min": (10 * MINUTE, 120), "2h": (2 * HOUR, 240)}
"""Seconds of a step, and seconds between two evaluations in its scenes."""
START = 30 * MINUTE


def minute(seconds):
    return math.ceil(seconds / MINUTE)


def scenes_of_steps(name, step, interval):
    """What must hold for steps of any length, with a start of half an hour."""
    length = max(HOUR, 4 * step) + START
    worst = max(3 * step, 10 * MINUTE)
    """How old the last step may be: three times what one took. The start is no step."""

    def scene(title, trainings, minutes, firing, says=(), **more):
        return Scene(
            f"{name}: {title}", watch(trainings, minutes, interval=interval, **more), firing, says, interval=interval
        )

    after = minute(length + worst) + 20
    yield scene(
        "ends normally",
        [Training(step, startup=START, finish=length)],
        after,
        {each: set() for each in range(0, after, max(7, after // 20))},
    )
    yield scene(
        "ends normally before a scrape has seen it",
        [Training(step, startup=START, finish=length, unseen_end=True)],
        after,
        {each: set() for each in range(minute(length), after, max(7, after // 20))},
    )
    last = list(Training(step, startup=START, hang=length).step_ends())[-1]
    stalled = minute(last + worst)
    resumed = (stalled + 30) * MINUTE
    at = (stalled + 10) // 4 * 4
    yield scene(
        "hangs, nearly, and is killed and resumed",
        [
            Training(step, startup=START, hang=length, kill=resumed - 2 * MINUTE),
            Training(step, begin=resumed, first=20),
        ],
        minute(resumed + step) + 20,
        {stalled - 5: set(), at: {"TrainingStalled"}, minute(resumed + step) + 10: set()},
        (
            of_run(
                at,
                "TrainingStalled",
                f"the last step ended {duration(at * MINUTE - last)} ago, far longer than steps took before",
                stage="stepping",
            ),
        ),
    )
    yield scene(
        "SIGKILL, and a resume with a start of half an hour",
        [
            Training(step, startup=START, kill=length),
            Training(step, begin=length + 20 * MINUTE, startup=START, first=7),
        ],
        minute(length + HOUR + step),
        {
            minute(length) + 4: set(),
            minute(length) + 14: {"RunVanished"},
            minute(length) + 19: {"RunVanished"},
            minute(length) + 56: set(),
            minute(length + HOUR + step): set(),
        },
        (Says(minute(length) + 14, "RunVanished", {"verl_run_id": RUN}, VANISHED),),
    )


VANISHED = f"Run {RUN}: its trainer is gone, and has reported neither success nor failure"


def duration(seconds):
    """Return seconds as Prometheus's humanizeDuration writes them."""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h {minutes}m {rest}s"
    if hours:
        return f"{hours}h {minutes}m {rest}s"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"


def scenes_of_starts():
    """Before the first step."""
    yield Scene(
        "nothing happens before the first step",
        watch([Training(60, hang=20 * MINUTE, startup=30 * MINUTE, kill=100 * MINUTE)], 110, interval=60),
        {70: set(), 85: {"TrainingStalled"}, 99: {"TrainingStalled"}},
        (of_run(85, "TrainingStalled", "no step has ended yet, and nothing at all for 1h 5m 0s", stage="starting"),),
        interval=60,
    )
    yield Scene(
        "the first step takes hours, with signs of life",
        watch([Training(4 * HOUR)], 360, interval=120),
        {each: set() for each in range(0, 360, 20)},
        interval=120,
    )
    yield Scene(
        "the first validation takes far longer than any step",
        watch([Training(60, slow={30: 40 * MINUTE})], 90),
        {each: set() for each in range(0, 90, 3)},
    )
    checkpoint = watch([Training(60, hang=31 * MINUTE)], 105)
    yield Scene(
        "the first checkpoint takes an hour, and more",
        {**checkpoint, f'verl_phase_active{{{TRAINER},verl_phase="save_checkpoint"}}': [0] * 61 + [1] * 150},
        {**{each: set() for each in range(0, 88, 3)}, 100: {"TrainingStalled"}},
    )
    turns = f"verl_rollout_turn_duration_seconds_count{{{WORKER}}}"
    yield Scene(
        "trajectories go on for ever",
        {**watch([Training(60, hang=31 * MINUTE)], 105), turns: list(range(211))},
        {**{each: set() for each in range(0, 88, 3)}, 100: {"TrainingStalled"}},
    )
    yield Scene(
        "the training fails",
        watch([Training(60, fail=30 * MINUTE)], 80),
        {29: set(), 32: {"RunFailed"}, 55: {"RunFailed"}, 65: set()},
        (of_run(32, "RunFailed", "the training ended with an error"),),
    )


def scenes_of_guards():
    """A stop by a guard is no failure."""
    yield Scene(
        "a guard stops the training",
        watch([Training(60, stop=30 * MINUTE)], 80),
        {29: set(), 32: {"StoppedByGuard"}, 55: {"StoppedByGuard"}, 65: set()},
        (of_run(32, "StoppedByGuard", "a guard stopped the training"),),
    )


def scenes_of_examples():
    """What counts as an example of how long a step may take, and what does not."""
    waited = watch([Training(10 * MINUTE, startup=4 * HOUR, hang=6 * HOUR)], 440, interval=120)
    yield Scene(
        "a start of four hours, then a stall",
        waited,
        {200: set(), 300: set(), 384: set(), 396: {"TrainingStalled"}, 420: {"TrainingStalled"}},
        interval=120,
    )
    mended = hold(watch([Training(MINUTE, slow={60: 5 * HOUR}, hang=9 * HOUR)], 600, interval=60), HOUR, 6 * HOUR)
    yield Scene(
        "a stall of five hours is mended, the next one is told as soon",
        mended,
        {
            55: set(),
            80: {"TrainingStalled"},
            350: {"TrainingStalled"},
            365: set(),
            539: set(),
            556: {"TrainingStalled"},
        },
        interval=60,
    )
    checks = dict.fromkeys(range(5, 60, 5), 108 * MINUTE)
    yield Scene(
        "each fifth step is ten times as long, which is told once",
        watch([Training(12 * MINUTE, slow=checks)], 1200, interval=120),
        {40: set(), 140: {"TrainingStalled"}, **{each: set() for each in range(170, 1200, 10)}},
        interval=120,
    )
    yield Scene(
        "each tenth step is ten times as long, within the hour",
        watch([Training(5 * MINUTE, slow=dict.fromkeys(range(10, 90, 10), 45 * MINUTE))], 800, interval=60),
        {each: set() for each in range(0, 800, 10)},
        interval=60,
    )


def hold(series, begin, end):
    """Return series in which no worker call ends for a while: a stall, and not only a long step."""
    calls = f'verl_worker_calls_total{{{WORKER},verl_worker_method="update_actor"}}'
    held = [
        value if not begin <= number * MINUTE < end else series[calls][begin // MINUTE]
        for number, value in enumerate(series[calls])
    ]
    return {**series, calls: held}


def scenes_of_ends():
    """A run is over, and a process of it is not."""
    linger = 'job="verl",instance="r1/llm_server-0",verl_role="llm_server",verl_run_id="r1"'
    for title, end in {
        "has finished": {"finish": 40 * MINUTE},
        "has finished before a scrape has seen it": {"finish": 40 * MINUTE, "unseen_end": True},
    }.items():
        yield Scene(
            f"a server lives on after the run {title}",
            {
                **watch([Training(MINUTE, **end)], 200, interval=60),
                f'verl_otel_overhead_seconds_total{{{linger},reason="drain"}}': [n * 0.01 for n in range(201)],
            },
            {each: set() for each in range(0, 200, 5)},
            interval=60,
        )
    again = [
        Training(MINUTE, fail=20 * MINUTE),
        Training(MINUTE, begin=60 * MINUTE, startup=5 * MINUTE, hang=64 * MINUTE, first=9),
    ]
    yield Scene(
        "a resume after a failure does not start",
        watch(again, 160, interval=60),
        {30: {"RunFailed"}, 58: set(), 120: set(), 135: {"TrainingStalled"}, 155: {"TrainingStalled"}},
        interval=60,
    )


SCENES = [scene for name, (step, interval) in LENGTHS.items() for scene in scenes_of_steps(name, step, interval)]
SCENES += [*scenes_of_starts(), *scenes_of_examples(), *scenes_of_ends(), *scenes_of_guards()]
