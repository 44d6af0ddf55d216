# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a training's telemetry says, counted against what the bed and Ray recorded by themselves. Empty results are good."""

import statistics
from collections import Counter, defaultdict

from verl_otel.analysis.verdicts import blocked_loops

PREFIXES = ("actor_rollout_ref_", "actor_rollout_", "actor_", "critic_", "ref_", "rollout_")
"""What verl puts before a method's name in a worker that holds several roles."""

FEW = 1 / 10
"""Between the bed's stamp and ours another process may have the core, or a thread of the same one the interpreter: this part of the pairs
may be apart by `LATE` seconds. What is measured wrongly is wrong in all of them."""
LATE = 0.05


def is_close(ours, theirs):
    """Return whether two durations agree within 2 % or 5 ms."""
    return abs(ours - theirs) <= max(0.005, 0.02 * theirs)


def find_unlike(pairs):
    """Return the pairs of durations that disagree, unless they are few and not far apart."""
    wrong = [pair for pair in pairs if not is_close(*pair)]
    are_few = len(wrong) <= max(1, len(pairs) * FEW) and all(abs(ours - theirs) < LATE for ours, theirs in wrong)
    return [] if are_few else wrong


def group(spans):
    """Return the spans by the first word of their name."""
    found = defaultdict(list)
    for span in spans:
        found[span.name.partition(" ")[0]].append(span)
    return found


def find_orphans(spans):
    """Return what has no parent or link target although it names one, and ids that occur twice."""
    ids = Counter(span.id for span in spans)
    wrong = [("twice", span.name) for span in spans if ids[span.id] > 1]
    wrong += [("no parent", span.name) for span in spans if span.parent and span.parent not in ids]
    wrong += [("no target", span.name) for span in spans for _, target, _ in span.links if target not in ids]
    return wrong


def compare_counts(training, spans):
    """Return the kinds of spans of which there are more or fewer than the bed's own log has calls."""
    named = group(spans)
    ours = {
        "trajectory": len(named["verl.trajectory"]),
        "server": len(named["verl.generate"]),
        "score": len(named["verl.reward"]),
        "tool": len(named["execute_tool"]),
    }
    theirs = {kind: len(training.bed(kind)) for kind in ours}
    ours["chat"], theirs["chat"] = len(named["chat"]), theirs["server"]
    return {kind: (ours[kind], theirs[kind]) for kind in ours if ours[kind] != theirs[kind]}


def compare_workers(training, spans):
    """Return the worker methods that ran more or less often than Ray's timeline says."""
    worker_spans = [span for span in spans if span.name.startswith("verl.worker ")]
    ours = Counter(
        span.attributes["verl.worker.method"] for span in worker_spans if not span.attributes["verl.worker.nested"]
    )
    theirs = Counter()
    for name, count in training.timeline().items():
        prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
        is_worker = prefix or name in ours  # a worker with one role has its methods' names as they are
        if is_worker and "_dispatch_info" not in name and "_collect_info" not in name:
            theirs[name.removeprefix(prefix)] += count
    return {name: (ours[name], theirs[name]) for name in {*ours, *theirs} if ours[name] != theirs[name]}


def find_unconfirmed(training, steps, planted=()):
    """Return the verdicts on steps in which nothing was planted that verl's own timers do not confirm.

    On a busy machine a phase of a healthy step can really take longer. A verdict on it is right if verl's own timer of that phase exceeds its
    median over the run by nine tenths of what the verdict says. So can a process that gets no processor (`paused`): that is measured by the process
    itself, and is no statement on the training. Verdicts of every other kind are wrong.
    """
    scalars = training.scalars()

    def is_confirmed(verdict):
        if verdict.kind == "process" and verdict.cause == blocked_loops.PAUSED_KIND:
            return True
        key = f"timing_s/{verdict.subject}"
        seconds = [data[key] for data in scalars.values() if key in data]
        if verdict.kind != "phase" or not seconds:
            return False
        return scalars[verdict.step][key] - statistics.median(seconds) >= 0.9 * verdict.seconds

    return [
        verdict
        for step in steps
        for verdict in step.verdicts
        if step.number not in planted and not is_confirmed(verdict)
    ]


def read_consumed(spans):
    """Return (number of the consuming step, trace of the trajectory) for every link of a step to what it trained on."""
    named = group(spans)
    steps = {span.trace: span.attributes["verl.step.number"] for span in named["verl.step"]}
    return [
        (steps[span.trace], trace)
        for span in named["verl.consume"]
        for trace, _, attributes in span.links
        if attributes["verl.link.type"] == "consumed"
    ]


def find_unsubmitted(spans):
    """Return the trajectories that no step, validation or warm-up has submitted."""
    named = group(spans)
    roots = {span.trace for name in ("verl.step", "verl.validation", "verl.warmup") for span in named[name]}
    return [
        span.attributes["verl.sample.uid"]
        for span in named["verl.trajectory"]
        if not [trace for trace, _, link in span.links if link["verl.link.type"] == "submitted_by" and trace in roots]
    ]


def find_broken_trees(spans):
    """Return the trajectories without an LLM call that has a server side, or, if they succeeded, without a reward."""
    children = defaultdict(list)
    for span in spans:
        children[span.parent].append(span)

    def below(span, name):
        return [
            each for child in children[span.id] for each in (child, *below(child, name)) if each.name.startswith(name)
        ]

    wrong = []
    for root in group(spans)["verl.trajectory"]:
        calls = below(root, "chat")
        if not calls or not all(below(call, "verl.generate") for call in calls):
            wrong.append(("calls", root.attributes["verl.sample.uid"]))
        if root.attributes.get("verl.outcome") == "success" and len(below(root, "verl.reward")) != 1:
            wrong.append(("reward", root.attributes["verl.sample.uid"]))
    return wrong
