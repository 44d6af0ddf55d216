# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every family of numbers, one row each: how it is counted, where the product says it, and how far apart the two may be.

A row holds in every mode. ``count`` returns None where the mode has no such number; then the product must not have it either.
"""

import itertools
import math
import os
import re
import statistics
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from tests.builders import otlp_json
from tests.recount.oracle import NOTHING, count_groups, describe_components, describe_scores

FLOAT = 1e-6
"""verl computes in single precision."""


class Timed(NamedTuple):
    """A number of calls and their seconds. These agree within 1 %, or 5 ms for each call; a number of None is not compared."""

    calls: int | None
    seconds: float


class Share(NamedTuple):
    """A share of a time, which agrees within 10 ms of that time and 2 % of itself."""

    share: float
    seconds: float


class Between(NamedTuple):
    """A value that is known roughly."""

    low: float
    high: float


class AtMost(NamedTuple):
    """A bound that the product must not exceed."""

    bound: float


class OneOf(NamedTuple):
    """Values, one of which the product must have."""

    values: list


class Follows(NamedTuple):
    """What a gauge may show at a time. The product has (time, value) for each time at which it was read."""

    at: Callable[[float], Between]


class PartOf(NamedTuple):
    """Items of which the product shows some; it may show others, too."""

    items: dict


class Row(NamedTuple):
    """One family of numbers."""

    family: str
    count: Callable[[Any], Any]
    read: Callable[[Any], Any]
    own: bool = False
    """Whether a loop of one's own has it, too."""
    bed: bool = True
    """Whether verl has it."""


LATE = 0.05
"""Seconds that one of the stamps that are compared may be late on a busy machine: another process has the core, or another thread the interpreter."""


def find_unlike(shown, counted, late=0.0):
    """Return what the product says and what was counted where the two disagree, else None.

    Args:
        shown: Value of the product.
        counted: Value of the oracle. Its kind has the tolerance.
        late: Seconds that are added to the tolerance of durations.
    """
    if isinstance(counted, PartOf):
        unlike = {key: find_unlike(shown[key], counted.items[key], late) for key in shown or () if key in counted.items}
        return _keep(unlike) if unlike else (shown, "some of these")
    if isinstance(counted, dict) and isinstance(shown, dict) and shown.keys() == counted.keys():
        return _keep({key: find_unlike(shown[key], counted[key], late) for key in counted})
    return None if _agree(shown, counted, late) else (shown, counted)


def _keep(unlike):
    return {key: pair for key, pair in unlike.items() if pair} or None


def _agree(shown, counted, late):
    if isinstance(counted, Timed):
        calls, seconds = shown if isinstance(shown, Timed) else (None, shown)
        room = max(0.01 * counted.seconds, 0.005 * counted.calls) + late
        return calls in (None, counted.calls) and seconds is not None and abs(seconds - counted.seconds) <= room
    if isinstance(counted, Share):
        room = 0.02 * counted.share + (0.01 + late) / counted.seconds
        return shown is not None and abs(shown - counted.share) <= room
    if isinstance(counted, Between):
        return shown is not None and counted.low <= shown <= counted.high
    if isinstance(counted, Follows):
        return bool(shown) and all(_agree(value, counted.at(time), late) for time, value in shown)
    if isinstance(counted, OneOf):
        return any(_agree(shown, each, late) for each in counted.values)
    if isinstance(counted, AtMost):
        return shown is not None and shown <= counted.bound + late
    if isinstance(counted, list | tuple) and isinstance(shown, list | tuple):
        return len(shown) == len(counted) and all(_agree(*pair, late) for pair in zip(shown, counted, strict=True))
    if isinstance(counted, float):
        return shown is not None and abs(shown - counted) <= max(FLOAT, FLOAT * abs(counted))
    return shown == counted


# -- steps --

PHASES = ("gen", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "save_checkpoint")
"""Timers of verl whose names the product keeps."""


def time_steps(oracle):
    return {step: Timed(1, seconds) for step, seconds in oracle.by_step("timing_s/step").items()}


def time_whole_steps(product):
    """Steps that did not raise."""
    found = [points[-1] for labels, points in product.series("verl.step.duration") if "error.type" not in labels]
    return Timed(sum(otlp_json.read_number(point) for point in found), sum(point["sum"] for point in found))


def time_phases(oracle):
    return {
        step: {
            phase: Timed(1, found[step]) for phase in PHASES if step in (found := oracle.by_step(f"timing_s/{phase}"))
        }
        for step in oracle.by_step("timing_s/step")
    }


def read_phases(product):
    return {
        step["number"]: {name: step["phases"][name] for name in PHASES if name in step["phases"]}
        for step in product.report["steps"]
        if not step["repeated"]
    }


def read_reward(product):
    return {int(step): value for step, value in product.report["reward"].items()}


def read_left_over(product):
    """What is not 0 although a training without a fault has ended."""
    names = (
        "verl.phase.active", "verl.stalls", "verl.worker.restarts",
        "verl.rollout.preemptions",
        "verl.rollout.trajectory.preemptions", "verl.rollout.slowest.preemptions", "verl.gpu.unreadable",
        "verl.otel.errors", "verl.otel.spans.dropped", "verl.otel.points.dropped", "verl.otel.logs.dropped",
    )  # fmt: skip
    return {name: total for name in names if (total := product.total(name))}


# -- the host --

CPUS = os.cpu_count()
HOST_MEMORY = "perf/cpu_memory_used_gb"
"""End of the key of what verl logs of it."""
NEAR = 0.1
"""Share by which the memory of a host may differ between two readings of a training: other programs have some, too."""


def measure_memory(oracle):
    """Bytes of all memory, by the C library, and of what is in use, as verl logs it. Verl reads it once a step."""
    used = [
        value * 2.0**30 for data in oracle.scalars.values() for key, value in data.items() if key.endswith(HOST_MEMORY)
    ]
    if not used:
        return None
    near = Between((1 - NEAR) * min(used), (1 + NEAR) * max(used))
    return {"all": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "used": near, "taken": near}


def read_memory(product):
    """The same in the middle of the training, and what is not left of it for processes; not of a container with a bound of its own.

    Verl reads it in steps: after the last one the memory of its processes is free.
    """
    times = sorted(int(point["timeUnixNano"]) for _, points in product.series("verl.training.step") for point in points)
    middle = times[len(times) // 2]

    def read(points):
        return otlp_json.read_number(min(points, key=lambda point: abs(int(point["timeUnixNano"]) - middle)))

    by_state = defaultdict(list)
    for labels, points in product.series("system.memory.usage"):
        by_state[labels["system.memory.state"]] += points
    states = {state: read(points) for state, points in by_state.items()}
    whole, limit = sum(states.values()), product.latest("verl.host.memory.limit")
    available = [point for _, points in product.series("verl.host.memory.available") for point in points]
    taken = limit - read(available) if limit == whole else states["used"]
    return {"all": whole, "used": states["used"], "taken": taken}


def read_cpus(product):
    """CPU time of the host in a second, over all modes, between the first and the last reading of the process that read it longest."""
    found = {}
    for (name, _, file), points in product.points.items():
        if name == "system.cpu.time":
            times = [int(point["timeUnixNano"]) / 1e9 for point in (points[0], points[-1])]
            growth = otlp_json.read_number(points[-1]) - otlp_json.read_number(points[0])
            before = found.get(file, (0.0, 0.0))
            found[file] = times[1] - times[0], before[1] + growth
    seconds, spent = max(found.values())
    return spent / seconds


# -- trajectories and tokens --


def of_both(count):
    """Return a function that counts for the trajectories of the training, and for those of validations where there are any."""

    def count_both(oracle):
        both = {validate: oracle.of_training(validate) for validate in (False, True)}
        return {validate: count(found) for validate, found in both.items() if found}

    return count_both


def from_both(read):
    """Return a function that reads the same from the series with ``verl.validate``."""

    def read_both(product):
        return {
            validate: read(product, validate)
            for validate in (False, True)
            if product.total("verl.rollout.trajectory.duration", validate=validate)
        }

    return read_both


def count_tokens(trajectories):
    return {
        "prompt": sum(each.prompt for each in trajectories),
        "generated": sum(each.generated for each in trajectories),
        "observation": sum(each.response - each.generated for each in trajectories),
    }


def read_tokens(product, validate):
    return {
        kind: product.total("verl.rollout.tokens", token_type=kind, validate=validate)
        for kind in ("prompt", "generated", "observation")
    }


def count_ends(trajectories):
    """Trajectories by how they ended: at the limit of tokens, or by the model."""
    return Counter("length" if each.response >= each.limit else "finished" for each in trajectories)


def read_ends(product, validate):
    return product.by_label("verl.rollout.trajectories", "trajectory.end", validate=validate)


def read_calls(product, name):
    """Calls and seconds of a histogram; None where there is none."""
    return Timed(product.total(name), product.seconds(name)) if product.has(name) else None


def bin_of(score):
    """Upper bound of the bin of a score."""
    bounds = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
    return next((f"{bound:g}" for bound in bounds if score <= bound), "+Inf")


def count_bins(oracle):
    found = {}
    for line in oracle.lines("score"):
        found[bin_of(line["score"])] = found.get(bin_of(line["score"]), 0) + 1
    return found


def by_process(make):
    """Return a function that gives each process that has trajectories what its gauge may show at a time, made from those that may be open then."""

    def count(oracle):
        found = {}
        for each in oracle.trajectories:
            found.setdefault(each.pid, []).append(each)
        return {pid: Follows(lambda time, those=those: make(time, those)) for pid, those in found.items()}

    return count


def may_be_open(time, trajectories):
    """Return trajectories that are open at a time whichever stamp is late, and those that are open if one is: it may be read late, too."""
    surely = [each for each in trajectories if each.start < time - 2 * LATE and each.end > time + 2 * LATE]
    return surely, [each for each in trajectories if each.start < time + 2 * LATE and each.end > time - 2 * LATE]


def count_open(time, trajectories):
    return Between(*map(len, may_be_open(time, trajectories)))


def measure_oldest(time, trajectories):
    low, high = (max((time - each.start for each in found), default=0.0) for found in may_be_open(time, trajectories))
    return Between(low - 2 * LATE, high + 2 * LATE)


def read_gauge(product, name):
    """(time, value) of a gauge without labels, by process."""
    return {
        int(file.removesuffix(".jsonl").rpartition("-")[2]): [
            (int(point["timeUnixNano"]) / 1e9, otlp_json.read_number(point)) for point in points
        ]
        for (metric, _, file), points in product.points.items()
        if metric == name
    }


BUFFERED = ("pending", "running", "finished", "failure")


def follow_buffer(oracle):
    """What the replay buffer of verl may have had at a time: the groups that were generated and that no update had taken, by state."""
    if not oracle.has_buffer:
        return None
    return {state: Follows(lambda time, state=state: count_buffered(oracle, time)[state]) for state in BUFFERED}


def count_buffered(oracle, time):
    """Bounds by state. The trainer takes the groups of an update some time before it."""
    early, late = time - 2 * LATE, time + 2 * LATE
    begun = [line for line in oracle.lines("process") if line["pid"] in {update["pid"] for update in oracle.updates}]
    attempt = max((line for line in begun if line["start"] <= time), key=lambda line: line["start"])
    groups = {}
    for each in oracle.of_training():
        if each.start >= attempt["start"]:
            groups.setdefault(each.uid, []).append(each)
    updates = [line for line in oracle.updates if line["pid"] == attempt["pid"]]
    taken = [{row["uid"] for row in line["rows"]} for line in updates]
    before = sum(line["start"] <= early for line in updates)
    surely, perhaps = (set().union(*taken[:count]) for count in (before, sum(u["start"] <= late for u in updates) + 1))
    ended = {uid for uid, those in groups.items() if max(each.end for each in those) <= early}
    handed = {uid for uid, those in groups.items() if max(each.handed for each in those) <= late}
    started, open_at = (
        {uid for uid, those in groups.items() if min(each.start for each in those) <= bound} for bound in (early, late)
    )
    return {
        "pending": Between(0, len(groups.keys() - started)),
        "running": Between(len(started - handed), len(open_at - ended)),
        "finished": Between(len(ended - perhaps), len(handed - surely)),
        "failure": Between(0, 0),
    }


def read_buffer(product):
    found = {
        state: [
            (int(point["timeUnixNano"]) / 1e9, otlp_json.read_number(point))
            for _, points in product.series("verl.rollout.groups", group_state=state)
            for point in points
        ]
        for state in BUFFERED
    }
    return found if any(found.values()) else None


# -- what a step trained on --


def last_scores(oracle):
    return [sample.score for sample in oracle.samples_of(oracle.steps[-1])]


def read_scores(product):
    return {name: product.latest(f"verl.reward.score.{name}") for name in ("mean", "stddev", "min", "max")}


COMPONENT_TAG = "TensorBoard: mean of a component of the rewards of each step"
AGGREGATES = ("mean", "min", "max")


def read_components(product):
    return {
        name: {each: product.latest("verl.reward.component", variable=name, aggregate=each) for each in AGGREGATES}
        for name in ("acc", "form")
    }


def log_components(product):
    """What the run log has of them, by step."""
    logged = {
        (name, each): product.logged("reward", f"{name}_{each}") for name in ("acc", "form") for each in AGGREGATES
    }
    return {
        step: {name: {each: logged[name, each][step] for each in AGGREGATES} for name in ("acc", "form")}
        for step in logged["acc", "mean"]
    }


def name_scalars(oracle):
    """What verl logged last of each scalar, by the name that the contract gives to it; results of validations and timers have labels."""
    return {
        "verl." + re.sub(r"[^A-Za-z0-9_./-]", "_", key).replace("/", "."): float(value)
        for data in oracle.scalars.values()
        for key, value in data.items()
        if not key.startswith(("val-core/", "val-aux/", "timing_s/")) and not math.isnan(value)
    }


def read_scalars(product):
    """Gauges without labels, by name."""
    return {
        name: float(product.latest(name))
        for name, labels, _ in product.points
        if not labels and name.startswith(("verl.critic.", "verl.actor.", "verl.response_length.", "verl.perf."))
    }


RESULT = re.compile(r"val-(?:core|aux)/(.+?)/([^/]+)/([^/]+@[^/]+)")
"""Data source, variable and aggregate of a result."""


def name_results(oracle):
    last = next(data for _, data in sorted(oracle.scalars.items(), reverse=True) if any(map(RESULT.fullmatch, data)))
    return {match.groups(): float(value) for key, value in last.items() if (match := RESULT.fullmatch(key))}


def read_results(product):
    names = ("verl.data.source", "verl.variable", "verl.aggregate")
    return {
        tuple(labels[name] for name in names): float(otlp_json.read_number(points[-1]))
        for labels, points in product.series("verl.validation.score")
    }


def split_groups(found):
    """Number of groups with and without a signal."""
    return {"signal": found.get("signal", 0), "none": sum(found.values()) - found.get("signal", 0)}


def read_groups(product):
    outcomes = ("signal", "solved", "failed", "truncated")
    return {name: product.latest("verl.reward.groups", outcome=name) or 0 for name in outcomes}


def by_step(count):
    """Return a function that counts for the samples of each step."""
    return lambda oracle: {step: count(oracle.samples_of(step)) for step in sorted(set(oracle.steps))}


def count_silent_tokens(oracle):
    """Tokens of groups whose advantages are zero; None where there are none."""
    groups = [group for step in sorted(set(oracle.steps)) for group in oracle.groups_of(step).values()]
    silent = [group for group in groups if all(abs(sample.advantage) <= NOTHING for sample in group)]
    return sum(sample.generated for group in silent for sample in group) or None


OF_EACH = {"scope", "step", "seconds", "timestamp", "level", "role", "trace_id", "span_id"}
"""Fields that each record of a step has for itself."""


def number_attempts(product):
    """Yield the records of steps, each with the number of its attempt, of which the run says when it began."""
    starts = [each["started"] for each in product.manifest["attempts"]]
    for record in product.records:
        if record["scope"] in ("training", "rollout", "ppo", "reward"):
            yield bisect(starts, datetime.fromisoformat(record["timestamp"].replace("Z", "+00:00")).timestamp()), record


def find_ambiguous(product):
    """Fields that two records of one step give different values."""
    values = {}
    for attempt, record in number_attempts(product):
        for name in record.keys() - OF_EACH:
            values.setdefault((attempt, record["step"], name), set()).add(repr(record[name]))
    return sorted({name for (*_, name), found in values.items() if len(found) > 1})


def read_elapsed(product):
    """Seconds that the run log says after its first record of a step, by step; of the last attempt."""
    found = {}
    for attempt, record in number_attempts(product):
        if "elapsed_seconds" in record:
            found.setdefault(attempt, {})[record["step"]] = record["elapsed_seconds"]
    last = found[max(found)]
    return {step: seconds - min(last.values()) for step, seconds in last.items()}


def name_series(oracle):
    """(step, value) of what should rise, in the last attempt, by the name that the product gives it."""
    found = {"reward": [], "score": [], "val": []}
    for step, data in oracle.attempts[-1].items():
        for name, key in (("reward", "critic/rewards/mean"), ("score", "critic/score/mean")):
            if key in data:
                found[name].append((step, data[key]))
        core = [value for key, value in data.items() if key.startswith("val-core/")]
        if core:
            found["val"].append((step, mean(core)))
    return found


def count_since_best(oracle):
    """Steps since the mean of five values was highest, which the first of equal ones is."""
    found = {}
    for name, series in name_series(oracle).items():
        means = {
            series[end - 1][0]: mean(value for _, value in series[end - 5 : end]) for end in range(5, len(series) + 1)
        }
        if means:
            found[name] = max(means) - max(means, key=means.get)
    return found


def count_trend(oracle):
    """Pairs of values that rise, without those that fall, as a share of all pairs."""
    return {
        name: float(
            mean((late > early) - (late < early) for (_, early), (_, late) in itertools.combinations(series, 2))
        )
        for name, series in name_series(oracle).items()
        if len(series) > 7
    }


def count_change(oracle):
    """The last three steps as a multiple of those before, whose median is taken. Nothing in fewer than eleven steps, or where that median is 0.

    Of seconds the median counts, those below 0.1 s as that: of a step, and of the mean wait of its trajectories for the model and for tools. Of sizes
    the largest counts.
    """
    steps = oracle.by_step("timing_s/step")
    if len(steps) < MIN_STEPS:
        return {}
    trained = [oracle.trajectories_of(*each) for each in oracle.trained]
    waits = [mean(each.llm_seconds for each in those) for those in trained]
    found = {
        "step": compare_last([max(each, 0.1) for each in steps.values()], statistics.median),
        "generation": compare_last([max(each, 0.1) for each in waits], statistics.median),
        "tool": 1.0,  # no mode with so many steps has tools
    }
    for name, key in (("policy_loss", "actor/pg_loss"), ("rollout_gap", "training/rollout_probs_diff_mean")):
        sizes = [abs(each) for each in oracle.by_step(key).values()]
        if sizes and statistics.median(sizes[:-3]):
            found[name] = compare_last(sizes, max)
    return {
        name: Between(0.98 * value, 1.02 * value) if name == "generation" else value for name, value in found.items()
    }


def compare_last(values, choose):
    return choose(values[-3:]) / statistics.median(values[:-3])


def read_followed(product, name):
    """Last values of what is followed over the steps, by what it is about."""
    return {
        labels["verl.metric"]: otlp_json.read_number(max(points, key=lambda point: int(point["timeUnixNano"])))
        for labels, points in product.series(name)
    }


STARTED = 1.0
"""Seconds by which the process that starts a run may be older than its first import of verl, and a step than its timers."""


def count_silent(oracle):
    return {step: split_groups(count_groups(oracle.groups_of(step)))["none"] for step in sorted(set(oracle.steps))}


def steps_of_trajectories(oracle):
    """Step that trained on each trajectory, or that it validated. What was dropped has none."""
    found = {(each.uid, each.index): oracle.step_of(each) for each in oracle.trajectories}
    return {key: step for key, step in found.items() if step is not None}


def count_syncs(oracle):
    """Weight syncs: one reaches all replicas that share devices with the trainer, or all that have devices of their own."""
    sent = [line["replica"] for line in oracle.lines("sync")]
    return sent.count(0) + (sent.count(1) if oracle.rollout_devices else 0)


def time_last_syncs(oracle):
    """Seconds in which the last sync of each replica took the weights from their producer and loaded them."""
    return OneOf(
        [Timed(1, line["seconds"]) for line in {line["replica"]: line for line in oracle.lines("sync")}.values()]
    )


def read_last_sync(product):
    """The same of one process: making or receiving the weights, and loading them."""
    name, found = "verl.weight_sync.part.duration", {}
    for part in ("gather", "receive", "load"):
        product.series(name, part=part)
        for (metric, labels, file), points in product.points.items():
            if metric == name and ("verl.part", part) in labels:
                found.setdefault(file, {})[part] = otlp_json.read_number(points[-1])
    return next(sum(parts.values()) for parts in found.values() if "load" in parts)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def start_room(seconds):
    """How far two counts of a start-up of so many seconds may be apart: on a busy machine imports take longer between two stamps."""
    return max(STARTED, 0.04 * seconds)


def name_percentiles(scores):
    """Percentiles by the name that the product gives them."""
    tenths = statistics.quantiles(scores, n=10, method="inclusive")
    return {"p10": tenths[0], "p50": tenths[4], "p90": tenths[8]}


def in_window(attempts, partly=None):
    """Means that a panel may show. Prometheus sees of a counter only what it grows by: what was in its first scrape is missing, which may be all.

    Args:
        attempts: (sum, number) of each step, by attempt: each has counters of its own.
        partly: The number grows with the sum, by this share of a step's; None: all of a step is counted at once. The rounds of a step are
            counted one by one, and the first scrape may be between two of them.
    """
    found = [None]
    for starts in itertools.product(*(range(len(steps)) for steps in attempts)):
        seen = [pair for steps, start in zip(attempts, starts, strict=True) for pair in steps[start:]]
        cut = [steps[start - 1] for steps, start in zip(attempts, starts, strict=True) if start]
        total, number = (sum(values) for values in zip(*seen, strict=True))
        found.append(Timed(1, total / number))
        if partly is not None and cut:
            more, others = (sum(values) for values in zip(*cut, strict=True))
            ends = total / number, (total + more) / (number + partly * others)
            found.append(Between(0.99 * min(ends), 1.01 * max(ends)))
    return OneOf(found)


def count_ones(attempts):
    return [[(seconds, 1) for seconds in steps] for steps in attempts]


def sum_staleness(oracle):
    """Sum and number of the staleness of the samples of each step, by attempt."""
    found = {}
    for step, attempt in oracle.trained:
        ages = [sample.staleness for sample in oracle.samples_of(step, attempt)]
        found.setdefault(attempt, []).append((sum(ages), len(ages)))
    return list(found.values())


def count_fresh(oracle):
    """Steps that trained on nothing but samples of the weights that they updated; of a version with several updates only the first does."""
    if not oracle.by_step("training/off_policy/trajectory_staleness/mean"):
        return None  # nor does verl log how far engine and trainer are apart
    updates = Counter((line["step"], line["pid"]) for line in oracle.updates)
    return sum(
        updates[each] == 1 and not any(sample.staleness for sample in oracle.samples_of(*each))
        for each in oracle.trained
    )


def generation(oracle):
    """Seconds of generation of all steps: at least until the last tokens, and at most until the samples were handed over."""
    lengths = [oracle.generation_of(*each) for each in oracle.trained]
    low, high = map(sum, zip(*lengths, strict=True))
    room = 0.005 * len(lengths)
    return Between(low - room, high + room)


def slowest_of_last_step(oracle):
    return max(oracle.last_trajectories, key=lambda each: each.seconds_of_sample)


# -- devices --

MIN_STEPS = 11
"""Steps after which the last three are compared with those before."""
TRAINING = (
    "update_actor", "train_mini_batch", "train_batch", "compute_log_prob", "compute_ref_log_prob", "infer_batch",
)  # fmt: skip
"""Methods in which a rank trains, or computes what an update needs."""
STAMPED = (*TRAINING, "init_model", "save_checkpoint", "load_checkpoint")
"""Methods of ranks whose calls the bed logs."""


def time_training(oracle):
    lines = [line for line in oracle.lines("rank") if line["method"] in TRAINING]
    return Timed(len(lines), sum(line["seconds"] for line in lines))


def time_methods(oracle):
    """Calls of each method of ranks, and their seconds."""
    lines = [line for line in oracle.lines("rank") if line["method"] in STAMPED]
    return {
        method: Timed(len(found), sum(line["seconds"] for line in found))
        for method in sorted({line["method"] for line in lines})
        if (found := [line for line in lines if line["method"] == method])
    }


def read_methods(product):
    """The same of methods that are stamped; others run on ranks, too."""
    calls = product.by_label("verl.worker.calls", "worker.method")
    seconds = product.by_label("verl.worker.call.time", "worker.method")
    return {method: Timed(calls[method], seconds[method]) for method in sorted(calls) if method in STAMPED}


def estimate_training(oracle):
    """The live account knows when the trainer called, not when ranks worked: a call is longer than the work, and never shorter."""
    calls, seconds = time_training(oracle)
    return Between(0.9 * seconds, 1.1 * seconds + 0.1 * calls)


def read_waits(product):
    """The trainer's waits for samples: while trajectories are open, and while none is."""
    return sum(product.latest("verl.gpu.waiting.share", gpu_side=side) or 0.0 for side in ("trainer", "both"))


def time_serving(oracle, *, without=()):
    """Seconds in which a replica had requests and no rank worked on its device, of all replicas; without some requests."""
    total, calls = 0.0, 0
    lines = [line for line in oracle.lines("server") if line["request"] not in without]
    for replica in {line["replica"] for line in lines}:
        served = [line for line in lines if line["replica"] == replica]
        is_shared = replica < oracle.train_devices and (oracle.has_buffer or not oracle.rollout_devices)
        ranks = [line for line in oracle.lines("rank") if is_shared and line["rank"] == replica]
        calls += len(served)
        total += measure_union([*served, *ranks]) - measure_union(ranks)
    return Timed(calls, total)


def list_validated(oracle):
    """Requests of validations."""
    validations = [(line["start"], line["end"]) for line in oracle.lines("validation")]
    return {
        line["request"]
        for line in oracle.lines("server")
        if any(start <= line["start"] <= end for start, end in validations)
    }


def estimate_serving(oracle):
    """The live account takes calls as randomly distributed: in batches as small as these it is accurate to 15 % of the time of the devices."""
    seconds = time_serving(oracle, without=list_validated(oracle)).seconds
    room = 0.15 * sum(oracle.seconds) * (oracle.train_devices + oracle.rollout_devices)
    return Between(seconds - room, seconds + room)


def measure_union(lines):
    """Seconds in which at least one of these was going on."""
    total, end = 0.0, 0.0
    for line in sorted(lines, key=lambda line: line["start"]):
        total += max(0.0, line["end"] - max(line["start"], end))
        end = max(end, line["end"])
    return total


def read_devices(product, *causes):
    return sum(device.get(cause, 0.0) for device in product.explain["run"]["gpu"].values() for cause in causes)


def read_gpus(product):
    """GPUs of the run that its table shows."""
    ((labels, _), *_) = product.series("verl.run.info")
    return int(labels.get("verl.gpus.total", labels["verl.gpus"]))


def is_short(oracle):
    """Whether the rollouts can be short of devices: apart from validations they were busy half of the time of the training."""
    if not oracle.rollout_devices:
        return None
    begin = min(line["start"] for line in oracle.lines("trajectory") if not line["validate"])
    end = max(line["end"] for line in oracle.lines("update"))
    validated = sum(max(0.0, min(line["end"], end) - max(line["start"], begin)) for line in oracle.lines("validation"))
    served = time_serving(oracle, without=list_validated(oracle)).seconds
    return served / (end - begin - validated) > 0.5


PANELS = {
    ("overview", "KL", "reference"): "actor/kl_loss",
    ("overview", "KL", "reward"): "actor/reward_kl_penalty",
    ("overview", "KL", "policy"): "actor/ppo_kl",
    ("overview", "Losses", "policy"): "actor/pg_loss",
    ("overview", "Losses", "value"): "critic/vf_loss",
    ("training", "Score and reward", "score"): "critic/score/mean",
    ("training", "Score and reward", "reward"): "critic/rewards/mean",
    ("training", "Score and reward", "smallest"): "critic/rewards/min",
    ("training", "Score and reward", "largest"): "critic/rewards/max",
    ("training", "Length of responses", "mean"): "response_length/mean",
    ("training", "Cut off at the bound", "responses"): "response_length/clip_ratio",
}
"""Board, title and last word of the legend of what verl logs, to its key."""

ROWS = [
    # -- the run --
    Row("steps trained", lambda o: len(o.steps), lambda p: p.total("verl.training.steps"), own=True),
    Row("number of the last step", lambda o: o.begun[-1], lambda p: p.latest("verl.training.step"), own=True),
    Row(
        "state of the run",
        lambda o: {"finished": 2, "failed": 3}[o.state],
        lambda p: p.latest("verl.run.state"),
        own=True,
    ),
    Row("runs: state", lambda o: o.state, lambda p: p.run["state"], own=True),
    Row("runs: steps", lambda o: len(o.steps) + o.crashed_steps, lambda p: p.run["steps"], own=True),
    Row("runs: number of the last step", lambda o: o.begun[-1], lambda p: p.run["last_step"], own=True),
    Row(
        "runs: seconds of the last step",
        lambda o: Timed(1, o.by_step("timing_s/step")[o.steps[-1]]),
        lambda p: p.run["last_step_seconds"] or 0.0,
    ),
    Row(
        "report: numbers of the steps",
        lambda o: o.steps,
        lambda p: [step["number"] for step in p.report["steps"] if not step["failed"]],
        own=True,
    ),
    Row(
        "seconds of steps",
        lambda o: Timed(len(o.seconds), sum(o.seconds)),
        time_whole_steps,
        own=True,
    ),
    Row(
        "seconds of phases",
        lambda o: {
            phase: Timed(len(found), sum(found.values()))
            for phase in PHASES
            if (found := o.by_step(f"timing_s/{phase}"))
        },
        lambda p: {
            phase: p.seconds("verl.phase.duration", phase=phase)
            for phase in PHASES
            if p.total("verl.phase.duration", phase=phase)
        },
    ),
    Row(
        "seconds between steps",
        lambda o: Timed(len(o.pauses), sum(o.pauses)),
        lambda p: p.total("verl.step.between.time"),
        own=True,
        bed=False,
    ),
    Row("turns", lambda o: len(o.lines("llm")), lambda p: p.total("verl.rollout.turn.duration"), own=True, bed=False),
    Row(
        "report: seconds of each step",
        time_steps,
        lambda p: {step["number"]: step["seconds"] for step in p.report["steps"] if not step["repeated"]},
    ),
    Row("report: seconds of each phase", time_phases, read_phases),
    Row(
        "report: trajectories of each step",
        lambda o: [len(o.samples_of(*each)) for each in o.trained],
        lambda p: [len(step["trajectories"]) for step in p.report["steps"] if not step["failed"]],
    ),
    Row("report: reward of each step", lambda o: o.by_step("critic/rewards/mean"), read_reward),
    Row(
        "explain: number of steps",
        lambda o: len(o.steps) + o.crashed_steps,
        lambda p: p.explain["counts"]["steps"],
        own=True,
    ),
    Row(
        "average reward",
        lambda o: o.by_step("critic/rewards/mean")[o.steps[-1]],
        lambda p: p.latest("verl.average_reward"),
        own=True,
    ),
    Row(
        "validations",
        lambda o: Timed(len(o.lines("validation")), sum(line["seconds"] for line in o.lines("validation"))),
        lambda p: Timed(p.total("verl.validation.duration"), p.seconds("verl.validation.duration")),
    ),
    Row(
        "checkpoints",
        lambda o: Timed(len(o.lines("checkpoint")), sum(line["seconds"] for line in o.lines("checkpoint"))),
        lambda p: Timed(p.total("verl.checkpoint.duration"), p.seconds("verl.checkpoint.duration")),
    ),
    Row(
        "weight syncs",
        count_syncs,
        lambda p: p.total("verl.weight_sync.duration"),
    ),
    Row(
        "bytes of a weight sync",
        lambda o: o.lines("sync")[-1]["bytes"],
        lambda p: p.latest("verl.weight_sync.size"),
    ),
    Row(
        "bytes of a weight sync, as verl logs them",
        lambda o: o.lines("sync")[-1]["bytes"] if o.by_step("checkpoint_engine/payload_mbytes") else None,
        lambda p: p.latest("verl.weight_sync.payload"),
    ),
    Row("memory of the host", measure_memory, read_memory),
    Row("CPU time of the host", lambda o: Between(0.97 * CPUS, 1.03 * CPUS), read_cpus),
    Row("seconds of the last weight sync of a replica", time_last_syncs, read_last_sync),
    Row(
        "seconds of logging",
        lambda o: Timed(len(o.lines("logged")), sum(line["seconds"] for line in o.lines("logged"))),
        lambda p: p.total("verl.logging.time"),
    ),
    Row(
        "time at which the last step ended",
        lambda o: Between(o.last_step_ended[0] - LATE, o.last_step_ended[1] + LATE),
        lambda p: p.latest("verl.training.last_step.timestamp"),
        own=True,
    ),
    Row(
        "time of the last checkpoint",
        lambda o: (
            Between(max(ends) - LATE, max(ends) + LATE)
            if (ends := [line["end"] for line in o.lines("checkpoint")])
            else None
        ),
        lambda p: p.latest("verl.checkpoint.last.timestamp"),
    ),
    Row(
        "work that is open at the end, and what went wrong",
        lambda o: {},
        read_left_over,
        own=True,
    ),
    Row("resumes", lambda o: o.resumes, lambda p: p.total("verl.training.resumes")),
    Row(
        "seconds of loading data",
        lambda o: Timed(
            len(found := [line for line in o.lines("load") if not line["error"]]),
            sum(line["seconds"] for line in found),
        ),
        lambda p: p.total("verl.data_loading.time"),
    ),
    Row("steps since the best reward", count_since_best, lambda p: read_followed(p, "verl.training.steps_since_best")),
    Row("trend of the reward", count_trend, lambda p: read_followed(p, "verl.training.trend")),
    Row(
        "time of the last steps against those before",
        count_change,
        lambda p: read_followed(p, "verl.training.change"),
    ),
    Row(
        "memory of the host, as verl logs it",
        lambda o: (
            o.by_step("actor/perf/cpu_memory_used_gb")[o.steps[-1]] * 2.0**30
            if o.by_step("actor/perf/cpu_memory_used_gb")
            else None
        ),
        lambda p: p.latest("verl.host.memory.used", update_role="actor"),
    ),
    # -- trajectories, calls, tokens --
    Row(
        "trajectories",
        of_both(lambda found: Timed(len(found), sum(each.seconds for each in found))),
        from_both(
            lambda p, validate: Timed(
                p.total("verl.rollout.trajectory.duration", validate=validate),
                p.seconds("verl.rollout.trajectory.duration", validate=validate),
            )
        ),
        own=True,
    ),
    Row(
        "turns of trajectories",
        of_both(lambda found: [len(found), float(sum(each.calls for each in found))]),
        from_both(
            lambda p, validate: [
                p.total("verl.rollout.turns", validate=validate),
                p.seconds("verl.rollout.turns", validate=validate),
            ]
        ),
        own=True,
    ),
    Row("how trajectories ended", of_both(count_ends), from_both(read_ends), own=True),
    Row(
        "explain: how trajectories ended",
        lambda o: dict(count_ends(o.of_training())),
        lambda p: p.explain["run"]["trajectories"]["ended"],
        own=True,
    ),
    Row("tokens", of_both(count_tokens), from_both(read_tokens), own=True),
    Row(
        "length of responses",
        of_both(lambda found: [len(found), float(sum(each.response for each in found))]),
        from_both(
            lambda p, validate: [
                p.total("verl.rollout.sequence.length", token_type="response", validate=validate),
                p.seconds("verl.rollout.sequence.length", token_type="response", validate=validate),
            ]
        ),
        own=True,
    ),
    Row(
        "LLM calls",
        lambda o: Timed(len(o.lines("llm")), sum(line["end"] - line["start"] for line in o.lines("llm"))),
        lambda p: Timed(p.total("gen_ai.client.inference.duration"), p.seconds("gen_ai.client.inference.duration")),
        own=True,
    ),
    Row(
        "LLM calls of validations",
        lambda o: sum(each.calls for each in o.of_training(validate=True)),
        lambda p: p.total("gen_ai.client.inference.duration", validate=True),
    ),
    Row(
        "tokens of LLM calls",
        lambda o: [sum(line[name] for line in o.lines("llm")) for name in ("prompt_tokens", "tokens")],
        lambda p: [p.total(f"gen_ai.client.inference.usage.{name}_tokens") for name in ("input", "output")],
        own=True,
    ),
    Row(
        "tool calls",
        lambda o: Timed(len(o.lines("tool")), sum(line["seconds"] for line in o.lines("tool"))),
        lambda p: Timed(p.total("verl.tool.call.duration"), p.seconds("verl.tool.call.duration")),
        own=True,
    ),
    Row(
        "tool calls, by the name of the conventions",
        lambda o: (
            Timed(len(o.lines("tool")), sum(line["seconds"] for line in o.lines("tool"))) if o.conventions else None
        ),
        lambda p: read_calls(p, "gen_ai.execute_tool.duration"),
        own=True,
        bed=False,
    ),
    Row(
        "trajectories, by the name of the conventions",
        lambda o: Timed(len(o.trajectories), sum(each.seconds for each in o.trajectories)) if o.conventions else None,
        lambda p: read_calls(p, "gen_ai.invoke_agent.duration"),
        own=True,
        bed=False,
    ),
    Row("trajectories that were dropped", lambda o: o.dropped, lambda p: p.total("verl.rollout.dropped")),
    Row(
        "CPU time and memory of the process",
        lambda o: [
            Between(line[name] - room, line[name] + room)
            for line in o.lines("ended")
            for name, room in (("cpu", 0.3), ("memory", 0.1 * line["memory"]))  # it is read once a second
        ],
        lambda p: [p.total("process.cpu.time"), p.latest("process.memory.usage")],
        own=True,
        bed=False,
    ),
    Row(
        "rewards",
        lambda o: Timed(len(o.lines("reward")), sum(line["seconds"] for line in o.lines("reward"))),
        lambda p: Timed(p.total("verl.reward.duration"), p.seconds("verl.reward.duration")),
    ),
    Row("scores by bin", count_bins, lambda p: p.by_label("verl.reward.samples", "reward.bin")),
    Row(
        "scores of validations",
        lambda o: len(o.of_training(validate=True)),
        lambda p: p.total("verl.reward.samples", validate=True),
    ),
    Row(
        "scores of the last step",
        lambda o: describe_scores(last_scores(o)),
        read_scores,
        own=True,
    ),
    Row(
        "percentiles of the scores of the last step",
        lambda o: name_percentiles(last_scores(o)),
        lambda p: {name: p.latest(f"verl.reward.score.{name}") for name in ("p10", "p50", "p90")},
        own=True,
    ),
    Row(
        "components of the rewards of the last step",
        lambda o: describe_components(o.samples_of(o.steps[-1])),
        read_components,
        own=True,
    ),
    Row("run log: components of the rewards of each step", by_step(describe_components), log_components),
    Row("verl's scalars", lambda o: PartOf(name_scalars(o)), read_scalars),
    Row("results of validations", name_results, read_results),
    Row(
        "groups of the last step",
        lambda o: split_groups(count_groups(o.groups_of(o.steps[-1]))),
        lambda p: split_groups(read_groups(p)) if p.has("verl.reward.groups") else None,
        own=True,
    ),
    Row("run log: samples of each step", by_step(len), lambda p: p.logged("rollout", "samples")),
    Row(
        "run log: groups without a signal", count_silent, lambda p: p.logged("rollout", "groups_without_signal") or None
    ),
    Row(
        "run log: mean score of each step",
        by_step(lambda samples: mean(sample.score for sample in samples)),
        lambda p: p.logged("rollout", "score_mean"),
    ),
    Row(
        "run log: spread of scores in each step",
        by_step(lambda samples: describe_scores([sample.score for sample in samples])["stddev"]),
        lambda p: p.logged("rollout", "score_std"),
    ),
    Row(
        "run log: mean reward of each step",
        by_step(lambda samples: mean(sample.reward for sample in samples)),
        lambda p: p.logged("rollout", "reward_mean"),
    ),
    Row(
        "run log: solved groups",
        lambda o: {step: count_groups(o.groups_of(step))["solved"] for step in sorted(set(o.steps))},
        lambda p: p.logged("rollout", "groups_solved") or None,
    ),
    Row(
        "run log: seconds since the first step of the attempt",
        lambda o: {step: Timed(1, seconds) for step, seconds in o.logged_after.items()},
        read_elapsed,
    ),
    Row(
        "explain: seconds before the first step of each attempt",
        lambda o: [
            Between(seconds - room, seconds + room) for seconds in o.start_ups for room in [start_room(seconds)]
        ],
        lambda p: [each["seconds"] for each in p.explain["run"]["start_up"]],
    ),
    Row("run log: fields of a step that have two values", lambda o: [], find_ambiguous),
    Row(
        "trajectories that are open, whenever that was read",
        by_process(count_open),
        lambda p: read_gauge(p, "verl.rollout.active"),
        own=True,
    ),
    Row(
        "age of the oldest open trajectory, whenever that was read",
        by_process(measure_oldest),
        lambda p: read_gauge(p, "verl.rollout.oldest.age"),
        own=True,
    ),
    # -- the order of generation and training --
    Row(
        "staleness of samples",
        lambda o: [len(o.samples), float(sum(sample.staleness for sample in o.samples))],
        lambda p: [p.total("verl.rollout.staleness"), p.seconds("verl.rollout.staleness")],
    ),
    Row(
        "explain: steps with fresh samples only",
        count_fresh,
        lambda p: found["fresh_steps"] if (found := p.explain["run"]["off_policy"]) else None,
    ),
    Row("bound of staleness", lambda o: o.bound, lambda p: p.latest("verl.limit", limit_name="staleness")),
    Row("weights that are behind", lambda o: 0, lambda p: p.latest("verl.rollout.weights.behind") or 0),
    Row(
        "seconds of generation",
        lambda o: (len(o.steps), generation(o)),
        lambda p: (p.total("verl.sample.generation"), p.seconds("verl.sample.generation")),
    ),
    Row(
        "groups that a step takes",
        lambda o: len(o.groups_of(o.steps[-1])) if o.has_buffer else None,
        lambda p: p.latest("verl.rollout.groups.wanted"),
    ),
    Row("groups in the replay buffer, whenever they were read", follow_buffer, read_buffer),
    Row(
        "longest trajectory of the last step",
        lambda o: Timed(1, slowest_of_last_step(o).seconds_of_sample),
        lambda p: p.latest("verl.rollout.tail.duration", aggregate="max"),
        own=True,
    ),
    Row(
        "95th percentile of the trajectories of the last step",
        lambda o: Timed(
            1,
            statistics.quantiles([each.seconds_of_sample for each in o.last_trajectories], n=20, method="inclusive")[
                -1
            ],
        ),
        lambda p: p.latest("verl.rollout.tail.duration", aggregate="p95"),
        own=True,
    ),
    Row(
        "median trajectory of the last step",
        lambda o: Timed(1, statistics.median(each.seconds_of_sample for each in o.last_trajectories)),
        lambda p: p.latest("verl.rollout.tail.duration", aggregate="p50"),
        own=True,
    ),
    Row(
        "LLM calls of the slowest trajectory of the last step",
        lambda o: OneOf([Timed(1, each.llm_seconds) for each in o.last_trajectories]),
        lambda p: p.latest("verl.rollout.slowest.duration", part="llm"),
    ),
    Row(
        "tokens of the slowest trajectory of the last step",
        lambda o: OneOf([[each.prompt, each.response] for each in o.last_trajectories]),
        lambda p: [p.latest("verl.rollout.slowest.tokens", token_type=kind) for kind in ("prompt", "response")],
    ),
    Row(
        "report: step of the slowest trajectories",
        lambda o: PartOf(steps_of_trajectories(o)),
        lambda p: {(each["uid"], each["index"]): each["step"] for each in p.report["trajectories"]},
        own=True,
    ),
    # -- devices --
    Row("GPUs of the run", lambda o: o.train_devices + o.rollout_devices, read_gpus),
    Row(
        "explain: devices",
        lambda o: o.train_devices + o.rollout_devices,
        lambda p: len(p.explain["run"]["gpu"]),
    ),
    Row("calls of ranks", time_methods, read_methods),
    Row("explain: seconds of training", time_training, lambda p: read_devices(p, "train")),
    Row("explain: seconds of serving", time_serving, lambda p: read_devices(p, "rollout", "validation")),
    Row("live: seconds of training", estimate_training, lambda p: p.total("verl.gpu.time", gpu_cause="train")),
    Row("live: seconds of generation", estimate_serving, lambda p: p.total("verl.gpu.time", gpu_cause="rollout")),
    Row(
        "share of the last step for its slowest trajectories",
        lambda o: Share(*o.last_tail),
        lambda p: p.latest("verl.rollout.tail.share"),
        own=True,
    ),
    Row(
        "share of the last step in which the trainer waited",
        lambda o: Share(*o.waited_in(o.steps[-1])) if o.rollout_devices else None,
        lambda p: read_waits(p) if p.has("verl.gpu.waiting.share") else None,
    ),
    Row(
        "explain: the rollouts are short of GPUs",
        is_short,
        lambda p: p.explain["run"]["balance"] and p.explain["run"]["balance"]["short"] == "rollouts",
    ),
    Row(
        "seconds for which steps were held",
        lambda o: AtMost(o.excess),
        lambda p: float(p.total("verl.step.held")),
    ),
    Row(
        "run log: number of the last step that was held",
        lambda o: AtMost(float(o.begun[-1])),
        lambda p: float(max(p.logged("held", "held_seconds"), default=0)),
    ),
    Row(
        "goodput",
        lambda o: Between(0.5 * o.goodput, 1.1 * o.goodput),  # less by what held the steps, which a busy machine does
        lambda p: p.latest("verl.goodput"),
    ),
    Row(
        "run log: tokens in a second for each GPU",
        lambda o: {
            step: Between(0.99 * rate, 1.01 * rate)
            for step, tokens in o.by_step("perf/total_num_tokens").items()
            if (rate := tokens / o.by_step("perf/time_per_step")[step] / (o.train_devices + o.rollout_devices))
        },
        lambda p: p.logged("training", "tokens_per_second_per_gpu"),
    ),
    Row(
        "compare: devices",
        lambda o: o.train_devices + o.rollout_devices,
        lambda p: p.compared["resources"]["a"]["gpus"],
    ),
    # -- tokens of the account --
    Row(
        "explain: tokens trained on",
        lambda o: sum(sample.generated for sample in o.kept),
        lambda p: p.explain["run"]["cost"]["trained_tokens"],
        own=True,
    ),
    Row(
        "explain: tokens of lost updates",
        lambda o: sum(sample.generated for sample in o.samples) - sum(sample.generated for sample in o.kept),
        lambda p: p.explain["run"]["cost"]["wasted_tokens"].get("lost", 0),
    ),
    Row(
        "explain: tokens of groups without a signal",
        count_silent_tokens,
        lambda p: p.explain["run"]["cost"]["wasted_tokens"].get("zero_variance"),
    ),
    Row(
        "explain: tokens generated",
        lambda o: sum(each.generated for each in o.of_training()),
        lambda p: p.explain["run"]["cost"]["generated_tokens"],
    ),
    Row(
        "explain: trajectories",
        lambda o: [len(o.trajectories), len(o.samples)],
        lambda p: [p.explain["counts"][name] for name in ("trajectories", "trained")],
        own=True,
    ),
    Row(
        "compare: tokens trained on in a second of a step",
        lambda o: Share(
            sum(sample.generated for sample in o.kept) / (seconds := sum(o.by_step("timing_s/step").values())),
            seconds,
        ),
        lambda p: p.compared["resources"]["a"]["trained_tokens_per_second"],
        own=True,
    ),
    # -- the live page --
    Row(
        "page: state, steps and last step in the list of runs",
        lambda o: [o.state, len(o.steps) + o.crashed_steps, o.begun[-1]],
        lambda p: [p.page[0][name] for name in ("state", "steps", "last_step")],
        own=True,
    ),
    Row(
        "page: numbers of the steps",
        lambda o: o.steps,
        lambda p: [
            number for number, failed in zip(p.page[2]["number"], p.page[2]["failed"], strict=True) if not failed
        ],
        own=True,
    ),
    Row(
        "page: trajectories",
        lambda o: [len(o.trajectories), len(o.samples)],
        lambda p: [p.page[1]["explain"]["counts"][name] for name in ("trajectories", "trained")],
        own=True,
    ),
    Row(
        "page: turns and tokens of the slowest trajectories",
        lambda o: PartOf(
            {(each.uid, each.index): [each.calls, [each.prompt, each.response]] for each in o.trajectories}
        ),
        lambda p: {
            (each["uid"], each["index"]): [each["turns"], [each["prompt_tokens"], each["response_tokens"]]]
            for each in p.page[1]["slowest"]
        },
        own=True,
    ),
    Row(
        "page: step of the slowest trajectories",
        lambda o: PartOf(steps_of_trajectories(o)),
        lambda p: {(each["uid"], each["index"]): each["step"] for each in p.page[1]["slowest"] if each["uid"]},
        own=True,
    ),
    # -- the boards --
    Row(
        "boards: state, step and reward of the run",
        lambda o: [
            {"finished": 2, "failed": 3}[o.state],
            o.begun[-1],
            float(o.by_step("critic/rewards/mean")[o.steps[-1]]),
        ],
        lambda p: [p.stat(title) for title in ("State", "Step", "Reward now")],
        own=True,
    ),
    Row(
        "boards: list of runs",
        lambda o: {
            "State": {"finished": 2, "failed": 3}[o.state],
            "Step": o.begun[-1],
            "Reward": float(o.by_step("critic/rewards/mean")[o.steps[-1]]),
            "Last step ended": Between(1e3 * (o.last_step_ended[0] - LATE), 1e3 * (o.last_step_ended[1] + LATE)),
        },
        lambda p: {name: p.panel("Runs")[name] for name in ("State", "Step", "Reward", "Last step ended")},
        own=True,
    ),
    Row(
        "boards: GPUs in the list of runs",
        lambda o: o.train_devices + o.rollout_devices,
        lambda p: int(p.panel("Runs")["GPUs"]),
    ),
    Row(
        "boards: scores of the last step",
        lambda o: {**describe_scores(last_scores(o)), **name_percentiles(last_scores(o))},
        lambda p: {
            **{name: p.panel("Reward")[name] for name in ("mean", "p10", "p90")},
            "stddev": p.stat("Spread of the reward"),
            **{
                name: p.panel("Scores of a step", "training")[legend]
                for name, legend in (("min", "smallest"), ("p50", "median"), ("max", "largest"))
            },
        },
        own=True,
    ),
    Row(
        "boards: groups of the last step",
        lambda o: split_groups(count_groups(o.groups_of(o.steps[-1]))),
        lambda p: split_groups(found) if (found := p.panel("Groups by outcome", "training")) else None,
        own=True,
    ),
    Row(
        "boards: components of the rewards of the last step",
        lambda o: {name: each["mean"] for name, each in describe_components(o.samples_of(o.steps[-1])).items()},
        lambda p: p.panel("Components of the reward", "training"),
        own=True,
    ),
    Row(
        "boards: seconds of a step",
        lambda o: in_window(count_ones(o.timers("step"))),
        lambda p: p.panel("Duration of a step").get("mean"),
        own=True,
    ),
    Row(
        "boards: seconds of a step in its phases",
        lambda o: {
            phase: in_window(count_ones(o.timers(phase)), partly=0) if o.by_step(f"timing_s/{phase}") else None
            for phase in PHASES
        },
        lambda p: {phase: p.panel("Time of a step, by phase").get(phase) for phase in PHASES},
    ),
    Row(
        "boards: tokens of a call",
        lambda o: [
            OneOf([None, Between(min(found), max(found))])
            for name in ("prompt_tokens", "tokens")
            if (found := [line[name] for line in o.lines("llm")])
        ],
        lambda p: [p.panel("Tokens of a call", "rollouts").get(name) for name in ("input", "output")],
        own=True,
    ),
    Row(
        "boards: staleness and its bound",
        lambda o: {
            "mean": in_window(sum_staleness(o), partly=1),
            "bound": o.bound,
        },
        lambda p: {name: p.panel("Staleness", "rollouts").get(name) for name in ("mean", "bound")},
    ),
    Row(
        "boards: verl's scalars",
        lambda o: {place: float(found[o.steps[-1]]) for place, key in PANELS.items() if (found := o.by_step(key))},
        lambda p: {place: found[place[2]] for place in PANELS if place[2] in (found := p.panel(*place[1::-1]))},
    ),
    Row(
        "boards: share of the last step in which the trainer waited",
        lambda o: Share(*o.waited_in(o.steps[-1])) if o.rollout_devices else None,
        lambda p: (
            sum(p.panel("Wait for the other side", "gpus").get(side, 0.0) for side in ("trainer", "both")) or None
        ),
    ),
    Row(
        "boards: names of older guides",
        lambda o: [mean(last_scores(o)), float(o.by_step("critic/rewards/mean")[o.steps[-1]])],
        lambda p: [p.stat("Reward mean", "monitor"), p.stat("Average reward", "monitor")],
        own=True,
    ),
    # -- TensorBoard --
    Row(
        "TensorBoard: verl's scalars",
        lambda o: {
            key: [(step, float(value)) for step, value in o.by_step(key).items()]
            for key in ("critic/score/mean", "critic/rewards/mean", "response_length/mean", "actor/pg_loss")
        },
        lambda p: {
            key: p.tensorboard.get(key)
            for key in ("critic/score/mean", "critic/rewards/mean", "response_length/mean", "actor/pg_loss")
        },
    ),
    Row(
        COMPONENT_TAG,
        lambda o: [(step, describe_components(o.scored_in(step))["acc"]["mean"]) for step in o.begun],
        lambda p: p.tensorboard.get("reward/acc_mean"),
        own=True,
    ),
    Row(
        "TensorBoard: mean of the scores of each step",
        lambda o: [(step, mean(each.score for each in o.samples_of(step))) for step in sorted(set(o.steps))],
        lambda p: [(step, value.sum / value.num) for step, value in p.tensorboard.get("rollout/reward_dist", ())],
    ),
]

OWN_LOOPS = ("own_asyncio", "own_threads", "own_failed", "own_ray")

TAIL = "share of the last step for its slowest trajectories"
LONGEST, P95, MEDIAN = (
    f"{name} of the last step"
    for name in ("longest trajectory", "95th percentile of the trajectories", "median trajectory")
)

UNCHECKED: dict[tuple[str, str], str] = {
    **{
        (family, "fully_async"): "the slowest are of validations, which the rollouter runs for no step"
        for family in ("report: step of the slowest trajectories", "page: step of the slowest trajectories")
    },
    **{
        (family, "crash"): "verl logs no timers of the step that raised"
        for family in ("seconds of phases", "boards: seconds of a step", "boards: seconds of a step in its phases")
    },
    ("seconds of generation", "own_fit"): "the trainer filters, and the bed does not know which trajectories",
    ("CPU time and memory of the process", "own_ray"): "its actors end without a stamp",
}
"""(family, mode) to the reason for which it is not checked there."""

ABSENT: dict[tuple[str, str], str] = {
    (
        "explain: tokens of groups without a signal",
        "kl",
    ): "traces have scores, and a penalty makes other rewards of them",
    **{
        (family, mode): "with a critic a sample has a signal of its own, whatever its group"
        for family in (
            "groups of the last step",
            "boards: groups of the last step",
            "run log: groups without a signal",
            "run log: solved groups",
        )
        for mode in ("critic", "resume")
    },
    (TAIL, "own_ray"): "the loop does not know when trajectories of actors ended",
    **{
        (family, mode): "the trainer gets a batch in which verl does not say how long each trajectory took"
        for family in (LONGEST, P95, MEDIAN)
        for mode in ("one_step_off", "legacy", "own_fit")
    },
}
"""(family, mode) to the reason for which the product does not have it there."""
