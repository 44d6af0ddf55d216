# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explanations for the tests of the page: a small run in which a tool held a step, and one of any size."""

import random
from types import SimpleNamespace

from verl_otel.analysis.model import (
    Activity,
    Cost,
    Counts,
    DeviceTime,
    Event,
    Explanation,
    Part,
    Phase,
    Process,
    Saving,
    Segment,
    Series,
    Step,
    Straggler,
    Trajectory,
    Verdict,
)
from verl_otel.model import Resource
from verl_otel.semconv import attributes as attr

T0 = 1_790_000_000_000_000_000
PHASES = {"gen": 0.6, "old_log_prob": 0.08, "ref": 0.07, "adv": 0.01, "update_actor": 0.2, "update_weights": 0.03}
KINDS = {
    "gen": "decode",
    "old_log_prob": "worker",
    "ref": "worker",
    "update_actor": "worker",
    "update_weights": "weight_sync",
}
NOTHING_MISSING = SimpleNamespace(unfinished=(), missing=(), orphans=0)


def nanos(seconds):
    return round(seconds * 1e9)


def trajectory(number, begin_ns, seconds, *, tool="python", tool_seconds=0.0, step=1, uid="5ee0d1c4", seed=0):
    """One trajectory with turns of an LLM call and a tool; its last tool call takes ``tool_seconds``."""
    dice = random.Random(seed * 1000 + number)
    turns = dice.randint(3, 6)
    calls = (seconds - tool_seconds - 0.1) / turns
    at, doing, path = begin_ns, [], []
    for turn in range(turns):
        parts = [
            ("queue", 0.1 * calls, "llm_server-1"),
            ("prefill", 0.2 * calls, "llm_server-1"),
            ("decode", 0.6 * calls, "llm_server-1"),
        ]
        doing.append(Activity("llm", "qwen3-8b", "agent_loop-2", at, at + nanos(0.92 * calls), turn))
        doing.append(
            Activity("server", "qwen3-8b", "llm_server-1", at + nanos(0.02 * calls), at + nanos(0.9 * calls), turn)
        )
        parts.append(("tool", 0.1 * calls + (tool_seconds if turn == turns - 1 else 0), "agent_loop-2"))
        for kind, length, instance in parts:
            end = at + nanos(length)
            path.append(Segment(at, end, kind, tool if kind == "tool" else "qwen3-8b", "", instance, number + 1, turn))
            if kind == "tool":
                doing.append(Activity("tool", tool, instance, at, end, turn, failed=dice.random() < 0.1))
            at = end
    end = begin_ns + nanos(seconds)
    path.append(Segment(at, end, "reward", "math", "", "reward-0", number + 1))
    doing.append(Activity("reward", "math", "reward-0", at, end))
    spent = [
        sum(each.end_ns - each.start_ns for each in doing if each.kind == kind) / 1e9
        for kind in ("llm", "tool", "reward")
    ]
    parts = (
        Part("llm", "qwen3-8b", spent[0], turns, 0),
        Part("tool", tool, spent[1], turns, turns - 1),
        Part("reward", "", spent[2], 1, None),
    )
    return Trajectory(
        number + 1, uid, number, step, False, begin_ns, end, dice.random(), False, True, parts, "agent_loop-2", "success",
        "completed", turns, 512, 300 * turns, 300 * turns, tuple(path), tuple(doing),
    )  # fmt: skip


def devices(count, seconds, dice, tail=0.0):
    """GPUs that train, roll out and wait; the parts sum up to the window."""
    found = []
    for index in range(count):
        rest = nanos(seconds)
        times = {}
        for cause, share in (
            ("rollout", 0.4),
            ("train", 0.28),
            ("weight_sync", 0.03),
            ("checkpoint", 0.02),
            ("validation", 0.02),
            ("data", 0.01),
            ("tool_wait", 0.04),
        ):
            times[cause] = int(nanos(seconds) * share * dice.uniform(0.8, 1.05) * (1 - tail))
            rest -= times[cause]
        times["tail_wait"] = int(rest * 0.7)
        times["rollout_wait"] = rest - times["tail_wait"]
        found.append(DeviceTime(f"node-{index // 8}/cuda:{index % 8}", times))
    return tuple(found)


def make_step(
    number, begin_ns, seconds, dice, *, slow=0.0, members=8, gpus=16, whole=True, failed=False, label="5ee0d1c4"
):
    """A step; ``slow`` seconds of it are one tool call of its slowest trajectory."""
    usual = seconds - slow
    phases, path, at = [], [], begin_ns
    for key, share in PHASES.items():
        length = usual * share + (slow if key == "gen" else 0)
        phases.append(Phase(key, length, length / seconds))
        end = at + nanos(length)
        if key == "gen":
            slowest = trajectory(
                number * 100, at, length * 0.98, tool_seconds=slow, step=number, uid=label, seed=number
            )
            path += [each._replace(phase="gen", trace_id=slowest.trace_id) for each in slowest.path]
            path.append(Segment(slowest.end_ns, end, "poll", "", "gen", "trainer-0"))
            gen = (at, slowest.end_ns, end)
        else:
            path += cut(at, end, KINDS.get(key, "phase"), key, dice, number)
        at = end
    end_ns = begin_ns + nanos(seconds)
    path.append(Segment(at, end_ns, "step", "", "", "trainer-0"))
    groups = {}
    for each in path:
        groups[each.kind, each.name] = groups.get((each.kind, each.name), 0) + each.end_ns - each.start_ns
    rest = [
        trajectory(
            number * 100 + index, gen[0], dice.uniform(0.4, 0.9) * usual * 0.58, step=number, uid=label, seed=number
        )
        for index in range(1, min(4, members))
    ]
    verdicts, savings, late = (), (), ()
    if slow:
        verdicts = (
            Verdict(
                number,
                seconds,
                "trajectory",
                slowest.label,
                "tool",
                "python",
                slow * 1.02,
                slow * 0.97,
                slowest.trace_id,
                slowest.turns - 1,
                "agent_loop-2",
                0.004,
            ),
        )
        savings = (Saving("slowest", 1, slow * 0.97), Saving("5%", 3, slow), Saving("tool python", members, slow * 1.1))
    if dice.random() < 0.2:
        late = (Straggler("update_actor", 5, "actor_rollout_ref-5", dice.uniform(0.2, 0.9), "arrival"),)
    cost = Cost(
        seconds * gpus, members * 1800, {"truncated": members * 40, "zero_variance": members * 90, "aborted": 0}
    )
    lengths = sorted(each.seconds for each in (slowest, *rest))
    quantiles = (lengths[0], lengths[len(lengths) // 2], lengths[-1] * 0.95, lengths[-1] * 0.99, lengths[-1])
    return Step(
        number=number,
        trace_id=0xABC000 + number,
        start_ns=begin_ns,
        end_ns=end_ns,
        failed=failed,
        phases=tuple(phases),
        no_phase=(end_ns - at) / 1e9,
        trajectories=tuple(range(number * 100 + 1, number * 100 + 1 + members)) if whole else (),
        members=members,
        gen_start_ns=gen[0],
        rollouts_end_ns=gen[1],
        gen_end_ns=gen[2],
        path=tuple(path) if whole else (),
        groups=tuple((*key, value) for key, value in sorted(groups.items(), key=lambda pair: -pair[1])),
        savings=savings,
        verdicts=verdicts,
        stragglers=late,
        devices=devices(gpus, seconds, dice, 0.3 if slow else 0.0),
        cost=cost,
        slowest=tuple(each if whole else each._replace(path=(), activities=()) for each in (slowest, *rest)),
        quantiles=quantiles,
        uncertainty=0.004,
    )


def cut(begin_ns, end_ns, kind, key, dice, number):
    """Call, worker and return of a phase, as parts of a path without a gap."""
    if kind == "phase":
        return [Segment(begin_ns, end_ns, "phase", key, key, "trainer-0")]
    first, last = begin_ns + (end_ns - begin_ns) // 20, end_ns - (end_ns - begin_ns) // 30
    worker = f"actor_rollout_ref-{(number * 7) % 8}"
    return [
        Segment(begin_ns, first, "call", key, key, "trainer-0"),
        Segment(first, last, kind, f"ActorRolloutRefWorker.{key}" if kind == "worker" else "", key, worker),
        Segment(last, end_ns, "call", key, key, "trainer-0"),
    ]


def make(
    steps=12,
    *,
    members=8,
    gpus=16,
    scalars=40,
    slow=(7,),
    whole=lambda number: True,
    seed=1,
    label="5ee0d1c4",
    **changes,
):
    """An explanation of so many steps; ``slow``: the numbers of those that a tool held."""
    dice = random.Random(seed)
    at, made = T0, []
    for number in range(1, steps + 1):
        hang = 31.0 if number in slow else 0.0
        seconds = dice.gauss(24, 1.5) + hang
        made.append(
            make_step(
                number, at, seconds, dice, slow=hang, members=members, gpus=gpus, whole=whole(number), label=label
            )
        )
        at += nanos(seconds + dice.uniform(0.01, 0.2))
    slowest = sorted((each for step in made for each in step.slowest), key=lambda each: -each.seconds)[:20]
    run = Explanation(
        "20261121-142154-8167",
        ("runs/20261121-142154-8167",),
        {"verl.project": "math", "verl.experiment": "grpo-8b", "verl.algorithm": "grpo", "verl.trainer.mode": "sync", "verl.version": "0.9.1", "verl.gpus": str(gpus)},
        "finished",
        T0,
        at,
        Counts(steps * members * 30, steps * members, steps * members, steps * members * 5, steps * members * 4, steps * members, gpus + 7),
        tuple(made),
        tuple((number, made[number - 1].end_ns, made[number - 1].end_ns + nanos(3)) for number in range(5, steps + 1, 5)),
        tuple(slowest),
        devices(gpus, (at - T0) / 1e9, dice),
        (),
        tuple(lines(made, scalars, dice)),
        NOTHING_MISSING,
        (),
    )  # fmt: skip
    return run._replace(**changes)


def with_start_up(run, more):
    """The same run whose first step began ``more`` seconds earlier and spent them in the phase ``submit``."""
    first, *others = run.steps
    phases = (first.phases[0]._replace(key="submit", seconds=more), *first.phases)
    first = first._replace(start_ns=first.start_ns - nanos(more), phases=phases)
    return run._replace(steps=(first, *others), start_ns=run.start_ns - nanos(more))


def with_slow_step(run, number, more):
    """The same run with a step that took ``more`` seconds longer, without a verdict."""
    steps = [step._replace(end_ns=step.end_ns + nanos(more)) if step.number == number else step for step in run.steps]
    return run._replace(steps=tuple(steps))


def lines(steps, count, dice):
    """Scalars over the steps: rewards that grow, losses that fall, and more."""
    times = tuple(step.end_ns for step in steps)
    yield Series("verl.training.step", (), times, tuple(float(step.number) for step in steps))
    names = [
        "average_reward",
        "actor.pg_loss",
        "actor.kl_loss",
        "actor.entropy",
        "actor.grad_norm",
        "response_length.mean",
        "perf.throughput",
        "actor.lr",
    ]
    names += [f"other.line_{index}" for index in range(count - len(names))]
    for place, name in enumerate(names[:count]):
        size = 10.0 ** dice.randint(-3, 3)
        values = [size * (1 - 2.7 ** (-3 * index / len(steps)) + dice.gauss(0, 0.05)) for index in range(len(steps))]
        if place == 4 and len(values) > 3:
            values[3] = float("nan")
        yield Series(f"verl.{name}", (), times, tuple(values))


def troubled(run):
    """The same run with a crash, a stall, a dead process and holes in its files."""
    at = run.steps[len(run.steps) // 2].start_ns + 1
    span = SimpleNamespace(name="verl.trajectory", attributes={}, parent_id=0)
    work = tuple(SimpleNamespace(span=span, age=12.5 + index, last_child="execute_tool python") for index in range(3))
    process = Process(
        Resource({attr.SERVICE_INSTANCE: "r1/agent_loop-3", attr.PROCESS_ID: "4711", attr.HOST_NAME: "node-1"}),
        0,
        False,
    )
    gone = SimpleNamespace(process=process, dead=True, silent=42.0, work=work)
    events = (
        Event("stall", at, "verl.phase.gen has been open for 95 s, its peers took 24 s: 8 trajectories of agent_loop-3 are open", {"phase": "gen", "age": 95.0, "stacks": {"trainer-0": "File a.py, line 3\n  wait()\nFile b.py"}}),
        Event("crash", at + nanos(15), "agent_loop-3 (pid 4711) was killed by signal 9, out of memory; it held 8 trajectories; trainer-0 waits", {"signal": 9, "memory": [1.0, 2.0, 3.5]}),
    )  # fmt: skip
    gaps = SimpleNamespace(
        unfinished=(gone,), missing=("actor_rollout_ref: only 3 of 4 ranks wrote files for 12 calls",), orphans=17
    )
    return run._replace(
        state="failed",
        events=events,
        completeness=gaps,
        problems=("traces-a.jsonl: the last line is cut off",),
        offsets=(("node-2", 0.31, 0.004),),
    )
