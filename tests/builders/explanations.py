# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Analysed runs, made without files: steps from the seconds of what their critical paths are made of."""

import math
import random

from verl_otel.analysis.model import Completeness, Cost, Counts, DeviceTime, Explanation, Phase, Segment, Step

T0 = 1_790_000_000_000_000_000
PHASES = {"tool": "gen", "server": "gen", "start": "gen", "worker": "update_actor", "weight_sync": "update_weights"}
CAUSES = {"tool": "tool_wait", "server": "rollout", "start": "data", "worker": "train", "weight_sync": "weight_sync"}
HEALTHY = {("tool", "python"): 2.0, ("server", ""): 1.0, ("worker", "update_actor"): 1.0, ("weight_sync", ""): 0.4}
"""A step of 4.4 s: the seconds of the groups of its critical path."""


def step(number, parts, *, begin=None, tokens=1000, devices=2, **more):
    """One step whose critical path has these groups, its phases and GPU time in accordance."""
    start = T0 + number * 100_000_000_000 if begin is None else begin
    groups, at, path = [], start, []
    for (kind, name), seconds in parts.items():
        length = round(seconds * 1e9)
        groups.append((kind, name, length))
        path.append(Segment(at, at + length, kind, name, PHASES.get(kind, "")))
        at += length
    total = max(1, at - start)
    phases, busy = {}, {}
    for kind, _, length in groups:
        phases[PHASES[kind]] = phases.get(PHASES[kind], 0) + length
        busy[CAUSES[kind]] = busy.get(CAUSES[kind], 0) + length
    made = Step(
        number,
        number,
        start,
        at,
        False,
        tuple(Phase(key, length / 1e9, length / total) for key, length in phases.items()),
        0.0,
        tuple(range(1, 9)),
        start,
        start,
        start,
        path=tuple(path),
        groups=tuple(sorted(groups, key=lambda group: -group[2])),
        devices=tuple(DeviceTime(f"gpu-{index}", dict(busy)) for index in range(devices)),
        cost=Cost(devices * total / 1e9, tokens, {}) if tokens else None,
    )
    return made._replace(**more)


def steps(parts, count, *, spread=0.0, level=1.0, seed=0, scale=None, start_up=True):
    """Steps with noise: each group's seconds times a random factor; the first one is slower by a start-up.

    ``scale``: factors for single groups, the planted difference.
    """
    rng = random.Random(seed)
    made = []
    for number in range(1, count + 1):
        common = math.exp(rng.gauss(0, spread / 2))
        noisy = {
            key: seconds * level * common * math.exp(rng.gauss(0, spread)) * (scale or {}).get(key, 1.0)
            for key, seconds in parts.items()
        }
        if number == 1 and start_up:
            noisy[("start", "")] = 30.0
        made.append(step(number, noisy))
    return made


def explanation(made, *, run_id="r1", state="finished", **more):
    """A run of these steps."""
    begin = min((each.start_ns for each in made), default=T0)
    end = max((each.end_ns for each in made), default=T0)
    whole = {}
    for each in made:
        for device in each.devices:
            sums = whole.setdefault(device.device, {})
            for cause, length in device.nanoseconds.items():
                sums[cause] = sums.get(cause, 0) + length
    facts = Explanation(
        run_id=run_id,
        folders=(f"/runs/{run_id}",),
        manifest={"verl.algorithm": "grpo", "verl.trainer.mode": "sync", "verl.version": "0.9.1"},
        state=state,
        start_ns=begin,
        end_ns=end,
        counts=Counts(100, 8 * len(made), 8 * len(made), 16, 8, 8, 5),
        steps=tuple(made),
        validations=(),
        slowest=(),
        devices=tuple(DeviceTime(name, sums) for name, sums in whole.items()),
        events=(),
        series=(),
        completeness=Completeness((), (), 0),
        problems=(),
    )
    return facts._replace(**more)
