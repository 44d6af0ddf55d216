# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether what was reported of a fault names it rightly."""

from itertools import pairwise
from statistics import median
from typing import NamedTuple

from tests.end_to_end.faults.kinds import ASYNCHRONOUS, CRASHED, DATA, HUNG, NO_CPU, SLOW, VALIDATE_EVERY, of_mode

LATE = 60
"""Seconds after a fault within which an event counts as its own."""
SPILL = 1
"""Steps after one with a fault that do not count as healthy: the rest of what was started may still run."""
AHEAD = 4
"""Asynchronous steps after that of wrong data which may train on it."""
FELT = 0.5
"""Share of the seconds of a fault by which an asynchronous step must be longer than the median for the fault to be felt."""


class Judgement(NamedTuple):
    """What became of one fault."""

    kind: str
    step: int
    seconds: float
    found: bool
    """Something was reported of its step, or at its time."""
    named: bool
    """And it was the right thing: the first verdict, or an event."""
    delay: float | None
    """Seconds until an event named it; None: no event reports it, or it was not named."""
    reported: str
    """What was reported."""
    together: bool = False
    """Whether another fault was planted in its step. Then any of its verdicts may name it."""
    felt: bool = True
    """Whether it made a step longer. In asynchronous modes other work may go on meanwhile, and then there is nothing to report."""


def judge(result, kinds=None):
    """Yield a judgement of each fault of a training that was reached in it, by the kinds of faults by name; None: those of its mode of verl."""
    for fault, reached in zip(result["faults"], result["reached"], strict=True):
        if reached is None:
            continue
        kind = (kinds or of_mode(find_mode(result)))[fault["kind"]]
        of_series = {SLOW: _judge_step, HUNG: _judge_event, CRASHED: _judge_event, DATA: _judge_data}[kind.series]
        yield Judgement(**fault, **of_series(kind, result, fault, reached), together=_is_together(result, fault))


def find_mode(result):
    """Return what was trained."""
    return result.get("mode", "sync")


def find_held(result, fault, reached):
    """Return the steps that a fault may hold: its own, in asynchronous modes those that were running while it lasted, by their ends in the bed's log."""
    if find_mode(result) not in ASYNCHRONOUS:
        return [fault["step"]]
    if reached is None:
        return []
    return [number for number, begin, end in _read_ends(result) if end > reached and begin < reached + fault["seconds"]]


def find_felt(result, fault, reached):
    """Return the step that a fault made longer, or None: the longest that it may hold, if that is longer than the median by `FELT` of it.

    Compared are steps that end with a validation or a checkpoint, or those that do not.
    """
    held = find_held(result, fault, reached)
    if find_mode(result) not in ASYNCHRONOUS:
        return held[0]
    seconds = {number: end - begin for number, begin, end in _read_ends(result)}
    is_last = lambda number: number % VALIDATE_EVERY == 0  # noqa: E731 - of two calls alike
    longer = {
        step: seconds[step] - median(each for number, each in seconds.items() if is_last(number) == is_last(step))
        for step in held
    }
    step = max(longer, key=longer.get, default=None)
    return step if step is not None and longer[step] >= FELT * fault["seconds"] else None


def _read_ends(result):
    """Return number, begin and end of each step but the first, which has no begin in the log."""
    ends = sorted((int(number), end) for number, end in result["ends"].items())
    return [(number, begin, end) for (_, begin), (number, end) in pairwise(ends)]


WAITED = 0.5
"""Share of the seconds of a verdict that a process had no CPU for which a thread of the training waited for one longer than in the median step. Then it
is right also where nothing was planted. Whose program took the CPU does not matter."""
BUSY = 0.5
"""Share of the CPUs that other programs take, at which the same holds in results from before the waits were measured."""


def find_false_events(result):
    """Return the stalls and crashes that were reported of a training without a fault."""
    return [] if result["faults"] else [event for event in result["events"] if event["kind"] in ("stall", "crash")]


def find_false(result):
    """Return the number of healthy steps of a training, the false verdicts on them, and the number of those that a measured lack of CPU explains."""
    held = {
        step + more
        for fault, reached in zip(result["faults"], result["reached"], strict=True)
        for step in find_held(result, fault, reached)
        for more in range(SPILL + 1)
    }
    healthy = [(int(number), step) for number, step in result["steps"].items() if int(number or 0) not in held]
    healthy = [(number, step) for number, step in healthy if not step.get("error")]
    found = [(number, step, verdict) for number, step in healthy for verdict in step["verdicts"]]
    false = [(number, verdict) for number, step, verdict in found if not _had_no_cpu(result, step, verdict)]
    return len(healthy), false, len(found) - len(false)


def _had_no_cpu(result, step, verdict):
    """Return whether a verdict says that a process had no CPU, and the bed has measured that, too."""
    if verdict[2] != NO_CPU:
        return False
    if "waited" not in step:
        return step.get("others", 0.0) >= BUSY
    usual = median(each["waited"] for each in result["steps"].values() if "waited" in each)
    return step["waited"] - usual >= WAITED * verdict[5]


def count_verdicts(results):
    """Return by kind of verdict how many were right, and of how many, as [right, of].

    Of a step with slow faults the first verdict counts, which is right if it names one of them; each verdict on a healthy step is wrong.
    """
    counts = {}
    for result in results:
        planted, kinds = {}, of_mode(find_mode(result))
        for fault, reached in zip(result["faults"], result["reached"], strict=True):
            if reached is not None and kinds[fault["kind"]].series == SLOW:
                planted.setdefault(find_felt(result, fault, reached), []).extend(kinds[fault["kind"]].right)
        first = [(verdict, right) for step, right in planted.items() for verdict in find_first(result, step, right)]
        for verdict, right in [*first, *((verdict, ()) for _, verdict in find_false(result)[1])]:
            count = counts.setdefault(verdict[0], [0, 0])
            count[0] += any(_fits(verdict, each) for each in right)
            count[1] += 1
    return counts


def find_first(result, step, right):
    """Return the first verdict on a step, if there is one: what is named.

    That a process had no CPU is passed over where the bed has measured that: it is right, too.
    """
    known = result["steps"].get(str(step), {})
    counted = [
        verdict
        for verdict in known.get("verdicts", [])
        if not _had_no_cpu(result, known, verdict) or any(_fits(verdict, each) for each in right)
    ]
    return counted[:1]


def _is_together(result, fault):
    return sum(other["step"] == fault["step"] for other in result["faults"]) > 1


def _judge_step(kind, result, fault, reached):
    step = find_felt(result, fault, reached)
    verdicts = result["steps"].get(str(step), {}).get("verdicts", [])
    counted = verdicts if _is_together(result, fault) else find_first(result, step, kind.right)
    named = any(_fits(verdict, right) for verdict in counted for right in kind.right)
    return {
        "found": bool(verdicts),
        "named": named,
        "delay": None,
        "reported": "; ".join(" ".join(map(str, filter(None, verdict))) for verdict in verdicts[:3]),
        "felt": step is not None,
    }


def _fits(verdict, right):
    """Return whether a verdict is of a kind and a cause, and has a name in its name; of a paused process in that of the process, too.

    After ``@`` stands the function in which its line has to be.
    A process that was paused between two steps, as during a validation, is the cause of a verdict on that time.
    """
    right, _, function = right.partition("@")
    if function and not str(verdict[-1]).endswith(f" in {function}"):
        return False
    of_kind, of_cause, *name = right.split(" ", 2)
    named = verdict[2:4] if of_kind == "process" else verdict[2:3]
    kinds = (of_kind, "between") if of_kind == "process" else (of_kind,)
    return verdict[0] in kinds and verdict[1] == of_cause and (not name or any(name[0] in each for each in named))


def _judge_event(kind, result, _, reached):
    events = [event for event in result["events"] if reached <= event["time"] <= reached + LATE]
    reported = [f"{event['kind']} {event['instance']} {event['span']}".strip() for event in events]
    for right in kind.right:
        what, _, rest = right.partition(" ")
        if what == "failed":
            naming = [line for line in result["lines"] if rest in line]
            return {
                "found": result["state"] == "failed",
                "named": bool(naming),
                "delay": None,
                "reported": "; ".join(result["lines"][:3]),
            }
        instance, _, span = rest.partition(" ")
        for event in events:
            if event["kind"] == what and event["instance"].startswith(instance) and event["span"].startswith(span):
                return {"found": True, "named": True, "delay": event["time"] - reached, "reported": "; ".join(reported)}
    return {"found": bool(events), "named": False, "delay": None, "reported": "; ".join(reported)}


def _judge_data(kind, result, fault, _):
    numbers = range(fault["step"], fault["step"] + 1 + (AHEAD if find_mode(result) in ASYNCHRONOUS else 0))
    judged = [_judge_trained(kind, result["steps"].get(str(number), {})) for number in numbers]
    return max(judged, key=lambda each: (each["named"], each["found"]))


def _judge_trained(kind, step):
    """Return whether a step names wrong data that it trained on."""
    (right,) = kind.right
    if right.endswith(" failed"):
        named = any(name in right for name in step.get("failed", ()))
        return {
            "found": named or "failed" in step.get("wasted", {}),
            "named": named,
            "delay": None,
            "reported": str(step.get("wasted", "")),
        }
    share = step.get("wasted", {}).get(right, 0) / max(1, step.get("trained", 0))
    return {"found": share > 0, "named": share == 1, "delay": None, "reported": str(step.get("wasted", ""))}
