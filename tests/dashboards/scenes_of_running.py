# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Alerts of a training that goes on, but not well."""

from tests.dashboards.scenes import STALE, Says, Scene
from tests.dashboards.trainings import MINUTE, RUN, TRAINER, WORKER, Training, of_process, of_run, watch

LOOP = f'job="verl",instance="{RUN}/agent_loop-3",verl_role="agent_loop",verl_run_id="{RUN}"'


def training(minutes, scalars):
    """A step a minute: number 1 ends at minute 2."""
    return watch([Training(MINUTE, scalars=scalars)], minutes)


def stuck():
    """Trajectories of up to five minutes. One of 15 minutes is long, one of 25 is stuck."""
    buckets = {
        f'verl_rollout_trajectory_duration_seconds_bucket{{{LOOP},verl_validate="false",le="{le}"}}': [
            share * n for n in range(241)
        ]
        for le, share in (("60", 0), ("300", 2), ("+Inf", 2))
    }
    # The 99th percentile is close to 5 minutes, so that 20 are the bound.
    near = [min(max(n - 40, 0) * 30, 15 * MINUTE) if n < 80 else 0 for n in range(120)]
    gone = [min(max(n - 130, 0) * 30, 30 * MINUTE) if n < 200 else 0 for n in range(120, 241)]
    return Scene(
        "a trajectory is stuck",
        {**watch([Training(MINUTE)], 120), **buckets, f"verl_rollout_oldest_age_seconds{{{LOOP}}}": near + gone},
        {35: set(), 39: set(), 84: set(), 89: {"TrajectoryStuck"}, 98: {"TrajectoryStuck"}, 102: set()},
        (
            of_process(
                90,
                "TrajectoryStuck",
                "agent_loop-3",
                "a trajectory has been open for 25m 0s, far longer than nearly all before",
            ),
        ),
    )


def stuck_at_first():
    """Without any that ended, the first trajectories have an hour."""
    ages = [n * 30 for n in range(181)]
    return Scene(
        "the first trajectories take half an hour",
        {**watch([Training(HOURS_3)], 90), f"verl_rollout_oldest_age_seconds{{{LOOP}}}": ages},
        {30: set(), 58: set(), 63: {"TrajectoryStuck"}},
    )


def abandoned():
    """Two prompts are running: a trajectory of them is open, but for ten minutes from minute 20 on."""
    return Scene(
        "no process works on two prompts any more",
        {
            **watch([Training(MINUTE)], 40),
            f'verl_rollout_groups{{{TRAINER},verl_group_state="running"}}': [2] * 81,
            f"verl_rollout_active{{{LOOP}}}": [1] * 40 + [0] * 20 + [1] * 21,
        },
        {19: set(), 22: set(), 25: {"PromptsAbandoned"}, 33: set()},
        (
            of_run(
                26,
                "PromptsAbandoned",
                "2 prompts are running, and no trajectory is open: no process works on them any more",
            ),
        ),
    )


HOURS_3 = 3 * 60 * MINUTE


def held():
    """Three steps are not enough, eight are."""
    share = {**dict.fromkeys(range(5, 9), 0.8), **dict.fromkeys(range(20, 30), 0.6)}
    return Scene(
        "the tail holds the steps",
        training(50, lambda step: {"verl_rollout_tail_share_ratio": share.get(step, 0.3)}),
        {5: set(), 10: set(), 24: set(), 28: {"TailHoldsStep"}, 30: {"TailHoldsStep"}, 33: set()},
        (of_run(29, "TailHoldsStep", "the slowest few trajectories have held every step for 8 more steps"),),
    )


def stale_samples():
    """At the bound of verl's default threshold, 8, for two steps, then for six; just below it otherwise. Verl trains on nothing that is older."""
    worst = {10: 7, 11: 7, **dict.fromkeys(range(20, 26), 7)}
    series = training(
        50,
        lambda step: {
            "verl_training_off_policy_trajectory_staleness_worst_max": worst.get(step, 6),
            'verl_limit{verl_limit_name="staleness"': 7,
        },
    )
    return Scene(
        "samples are at the bound of staleness",
        series,
        {9: set(), 13: set(), 20: set(), 25: {"StalenessBound"}, 30: set()},
        (
            of_run(
                25, "StalenessBound", "trajectories have been as stale as the configured bound allows for 4 more steps"
            ),
        ),
    )


def weights_behind():
    """One sync was missed, and then three in a row. In between all engines have what was sent, with any staleness."""
    behind = {10: 1, **dict.fromkeys(range(20, 26), 2)}
    series = training(
        50,
        lambda step: {
            "verl_rollout_weights_behind": behind.get(step, 0),
            'verl_limit{verl_limit_name="staleness"': 7,
        },
    )
    return Scene(
        "an engine serves old weights",
        series,
        {9: set(), 13: set(), 20: set(), 25: {"WeightsBehind"}, 30: set()},
        (of_run(25, "WeightsBehind", "for 4 more steps, engines have served older weights than the last sync sent"),),
    )


def slowdown(slow):
    """Steps, generation and tools may each take one and a half times as long, but not three times; ``slow`` is the one that does."""

    def scalars(step):
        ratio = 3.0 if 30 <= step < 50 else 1.5 if 60 <= step < 70 else 1.0
        ratios = {"step": 1.0, "generation": 1.0, "tool": 1.0, slow: ratio, "policy_loss": 9.0}
        return {f'verl_training_change_ratio{{verl_metric="{name}"': value for name, value in ratios.items()}

    return Scene(
        f"{slow} becomes slow",
        training(90, scalars),
        {29: set(), 33: {"Slowdown"}, 49: {"Slowdown"}, 53: set(), 65: set()},
        (of_run(40, "Slowdown", f"{slow} takes 3.0 times as long as in the 20 steps before", verl_metric=slow),),
    )


def ranks(name, seconds, factor, summary, *, kind):
    """Four ranks, one call of each in a step of a minute. Rank 2 differs in steps 20 to 25, which is not enough, and in steps 40 to 70.

    Args:
        name: Of the scene.
        seconds: Time of a call.
        factor: By which the calls of rank 2 are longer.
        summary: Text of the alert.
        kind: The label of the alert.
    """
    minutes, interval = 100, 30
    count = minutes * MINUTE // interval + 1
    series = training(minutes, lambda _: {})
    for rank in range(4):
        spent, total = [], 0.0
        for n in range(count):
            step = n * interval // MINUTE - 1
            bad = rank == 2 and (20 <= step < 26 or 40 <= step < 70)
            total += (seconds * (factor if bad else 1.0)) if n % 2 == 0 else 0.0
            spent.append(round(total, 6))
        worker = WORKER.replace("actor_rollout_ref-0", f"actor_rollout_ref-{rank}")
        labels = f'{{{worker},verl_worker_method="update_actor"}}'
        series[f"verl_worker_call_time_seconds_total{labels}"] = spent
        series[f"verl_worker_calls_total{labels}"] = [n // 2 + 1 for n in range(count)]
    return Scene(
        name,
        series,
        {18: set(), 25: set(), 33: set(), 45: set(), 60: {"RankLate"}, 70: {"RankLate"}, 80: set(), 95: set()},
        (of_process(65, "RankLate", "actor_rollout_ref-2", f"{summary}", rank_is=kind),),
    )


def late_checkpoint():
    """Every ten steps; the one of step 40 comes five steps late, those of 50 and 60 not at all."""
    saved = {10, 20, 30, 45, 70}

    def scalars(step):
        last = max((each for each in saved if each <= step), default=None)
        return {
            **({"verl_checkpoint_last_timestamp_seconds": (last + 1) * MINUTE} if last else {}),
            'verl_limit{verl_limit_name="save_frequency"': 10,
        }

    return Scene(
        "checkpoints are late",
        training(90, scalars),
        {9: set(), 44: set(), 66: set(), 70: {"CheckpointLate"}, 74: set()},
        (of_run(70, "CheckpointLate", "no checkpoint for 23 steps, more than it was configured with"),),
    )


def steps_held():
    """For twenty minutes a tracker delays each step by half its length; what is little is no reason, nor is what held a single step."""
    series = watch([Training(MINUTE)], 90, interval=60)
    series[f"verl_step_duration_seconds_sum{{{TRAINER}}}"] = [40 * number for number in range(91)]
    held = [0] * 20 + [20 * number for number in range(1, 21)] + [400] * 51
    series[f'verl_step_held_seconds_total{{{TRAINER},verl_held_kind="between",verl_held_cause="logging"}}'] = held
    little = [2 * number for number in range(91)]
    series[f'verl_step_held_seconds_total{{{TRAINER},verl_held_kind="phase",verl_held_cause="adv"}}'] = little
    once = [0] * 30 + [600] * 61
    series[f'verl_step_held_seconds_total{{{TRAINER},verl_held_kind="phase",verl_held_cause="gen"}}'] = once
    labels = {"verl_run_id": RUN, "verl_held_kind": "between", "verl_held_cause": "logging"}
    summary = f"Run {RUN}: between logging held its steps for 32.76% of their time"
    return Scene(
        "a tracker holds every step",
        series,
        {19: set(), 40: {"StepsHeld"}, 50: {"StepsHeld"}, 85: set()},
        (Says(49, "StepsHeld", labels, summary),),
        interval=60,
    )


def blocked_loop():
    """A tool blocks an agent loop for half of twenty minutes; trainers that are coroutines and workers block their own loops as planned."""
    series = watch([Training(MINUTE)], 80, interval=60)
    values = [0] * 20 + [30 * number for number in range(1, 21)] + [600] * 41
    series[f'verl_event_loop_blocked_seconds_total{{{LOOP},reason="callback"}}'] = values
    series[f'verl_event_loop_blocked_seconds_total{{{LOOP},reason="process"}}'] = [40 * number for number in range(81)]
    for planned in (f'{TRAINER},reason="callback"', f'{WORKER},reason="worker"'):
        series[f"verl_event_loop_blocked_seconds_total{{{planned}}}"] = [40 * number for number in range(81)]
    labels = {"verl_run_id": RUN, "instance": f"{RUN}/agent_loop-3"}
    return Scene(
        "an event loop is blocked",
        series,
        {19: set(), 30: {"EventLoopBlocked"}, 39: {"EventLoopBlocked"}, 50: set(), 70: set()},
        (Says(30, "EventLoopBlocked", labels, f"{RUN}/agent_loop-3: its event loop is blocked for 50% of the time"),),
        interval=60,
    )


def restarts():
    """One worker is started again twice; another begins, and has never died."""
    name = f'verl_worker_restarts_total{{{WORKER},reason="actor died"}}'
    cpu = f'process_cpu_time_seconds_total{{{WORKER},cpu_mode="user"}}'
    gone = [STALE, None, None, None]
    life = 156
    series = watch([Training(MINUTE)], 320, interval=60)
    series[cpu] = [*range(40), *gone, *range(life), *gone, *range(321 - 40 - life - 8)]
    series[name] = [0] * 40 + gone + [1] * life + gone + [1] * (321 - 40 - life - 8)
    other = WORKER.replace("ref-0", "ref-1")
    series[f'verl_worker_restarts_total{{{other},reason="actor died"}}'] = [None] * 20 + [0] * 301
    summary = f"{RUN}/actor_rollout_ref-0: started again in the place of a process that died (actor died)"
    labels = {"verl_run_id": RUN, "instance": f"{RUN}/actor_rollout_ref-0", "reason": "actor died"}
    return Scene(
        "workers are started again",
        series,
        {39: set(), 47: {"WorkerRestarts"}, 110: set(), 199: set(), 210: {"WorkerRestarts"}, 275: set()},
        (Says(50, "WorkerRestarts", labels, summary),),
        interval=60,
    )


def ranks_that_differ_little():
    scene = ranks("ranks differ a little", 20, 1.4, "", kind="slow")
    return scene._replace(firing={minute: set() for minute in scene.firing}, says=())


SCENES = [
    slowdown("step"),
    slowdown("generation"),
    slowdown("tool"),
    ranks("a rank is slow", 20, 2.0, "its calls take 2.0 times as long as those of the median rank", kind="slow"),
    ranks(
        "a rank is waited for",
        20,
        0.5,
        "its calls are 2.0 times as short as those of the median rank, which may wait for it",
        kind="awaited",
    ),
    ranks_that_differ_little(),
    stuck(),
    stuck_at_first(),
    abandoned(),
    held(),
    stale_samples(),
    weights_behind(),
    late_checkpoint(),
    steps_held(),
    blocked_loop(),
    restarts(),
]
