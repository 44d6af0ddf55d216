# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What really happened in a training: counted from the bed's log and verl's file logger, or from an own loop's log. Uses no code of verl-otel.

A step is what verl logs as one; in fully asynchronous training that is a version of the weights. It may consist of several updates. A step that was
trained twice, by two attempts of a run, is counted twice.
"""

import bisect
import functools
import json
import math
import statistics
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from tests.verl_cpu import cpu_log

PROMPT, ANSWER, RESPONSE = 12, 5, 13
"""Tokens of the own loop: of a prompt, of an answer of the model, and of a response, which has two answers and one of a tool."""
UNKNOWN = "None"
"""Uid of trajectories whose trainer gives samples a uid after they were generated. It trains in the same step."""
NOTHING = 1e-6
"""Advantages of a smaller size are zero."""
RIGHT = 1.0
"""A right answer has at least this score; a wrong one gets less, for its form."""
SLOWEST = 0.05
"""Share of the trajectories of a step that are its tail."""


class Sample(NamedTuple):
    """One sample that an update trained on."""

    step: int
    uid: str
    index: int | None
    """Number in the group of its prompt, where the update knows it; elsewhere a step trains on whole groups."""
    score: float
    """What the reward function returned."""
    reward: float
    """What is optimised."""
    generated: int
    """Tokens that the model wrote: verl's mask of the response is 1."""
    response: int
    """Tokens of the response, with answers of tools."""
    advantage: float
    """The largest, without its sign."""
    attempt: int
    """Which process trained it."""
    staleness: int
    """Versions of the weights between the policy that is updated and the one that generated the last token."""


class Trajectory(NamedTuple):
    """One trajectory, of a training or a validation."""

    uid: str
    index: int
    validate: bool
    start: float
    end: float
    seconds: float
    calls: int
    """Calls of the model."""
    llm_seconds: float
    prompt: int
    generated: int
    response: int
    submitted: int
    """Number of the step or validation that it was submitted for."""
    handed: float
    """When verl handed its samples over: a sample cannot carry what happens after that. The trajectory ends when they are written."""
    last_token: float
    """When its last call of the model ended."""
    pid: int
    """Process that ran it."""
    limit: float = math.inf
    """Tokens that a response may have."""

    @property
    def seconds_of_sample(self):
        """Seconds until its samples were handed over."""
        return self.seconds - (self.end - self.handed)


class Oracle:
    """The count of one training of the bed. Values are read when they are asked for."""

    def __init__(
        self,
        out,
        *,
        rollout_devices=0,
        train_devices=1,
        crashed_steps=0,
        resumes=0,
        has_buffer=True,
        bound=None,
        state="finished",
        filters=False,
        conventions=False,
    ):
        self.out = Path(out)
        self.has_buffer = has_buffer
        """Whether the trainer takes samples from verl's replay buffer."""
        self.bound = bound
        """The largest staleness that is trained on."""
        self.rollout_devices = rollout_devices
        """Devices that only generate."""
        self.train_devices = train_devices
        self.crashed_steps = crashed_steps
        """Steps that began and raised."""
        self.resumes = resumes
        self.state = state
        self.filters = filters
        """Whether the trainer leaves out samples of what it has generated."""
        self.conventions = conventions
        """Whether the names of the GenAI conventions are switched on."""

    def lines(self, kind):
        """Lines of the bed's log."""
        return cpu_log.read(self.out / "log", kind)

    # -- what verl's file logger has --

    @functools.cached_property
    def attempts(self):
        """Step to scalars of each attempt; where it logged a step several times, the last value of each key."""
        found = []
        for path in sorted(self.out.glob("scalars*.jsonl")):
            found.append({})
            for line in map(json.loads, path.read_text("utf-8").splitlines()):
                found[-1].setdefault(int(line["step"]), {}).update(line["data"])
        return found

    @property
    def scalars(self):
        """Step to scalars; of the last attempt that trained it. One that continues validates first, and logs this at the step before."""
        found = {}
        for attempt in self.attempts:
            for step, data in attempt.items():
                found[step] = data if "timing_s/step" in data else {**found.get(step, {}), **data}
        return found

    def by_step(self, key):
        """Value of a key by step. Timers of fully asynchronous training are those of the local steps that were a step."""
        name = key.removeprefix("timing_s/")
        local = self.lines("timers") if name != key else ()
        if not local:
            return {step: data[key] for step, data in self.scalars.items() if key in data}
        found = Counter()
        for line in local:
            if name in line["seconds"]:
                found[line["step"]] += line["seconds"][name]
        return dict(found)

    def timers(self, name):
        """Seconds of a timer of verl in each attempt, in the order of its steps; 0 in a step without."""
        if len(self.attempts) < 2:
            found = self.by_step(f"timing_s/{name}")
            return [[found.get(step, 0.0) for step in self.by_step("timing_s/step")]]
        return [
            [data.get(f"timing_s/{name}", 0.0) for data in attempt.values() if "timing_s/step" in data]
            for attempt in self.attempts
        ]

    @property
    def seconds(self):
        """Seconds of the steps that did not raise."""
        return [each for steps in self.timers("step") for each in steps]

    # -- steps and what they trained on --

    @functools.cached_property
    def updates(self):
        return sorted(self.lines("update"), key=lambda line: line["start"])

    @functools.cached_property
    def trained(self):
        """Number and attempt of the steps in the order in which they were trained."""
        return [each for each, _ in groupby(self.updates, lambda line: (line["step"], line["pid"]))]

    @property
    def steps(self):
        """Numbers of the steps in the order in which they were trained."""
        return [step for step, _ in self.trained]

    @functools.cached_property
    def samples(self):
        """Samples of all updates, in the order of training."""
        return [
            Sample(
                step=line["step"],
                uid=row["uid"],
                index=int(row["key"].split("_")[-2]) if "key" in row else None,
                score=row["score"],
                reward=row["reward"],
                generated=row["generated"],
                response=row["response"],
                advantage=row["advantage"],
                attempt=line["pid"],
                staleness=line["step"] - 1 - self._trained_before(row["last"], line),
            )
            for line in self.updates
            for row in line["rows"]
        ]

    def _trained_before(self, version, update):
        """Number of the last step that had been trained when the weights of a version were sent to the replicas, before an update of the same attempt.

        A trainer names versions as it likes. What counts is how many updates had ended, and of which steps these were.
        """
        updates = [line for line in self.updates if line["pid"] == update["pid"]]
        attempt = list(dict.fromkeys(line["pid"] for line in self.updates)).index(update["pid"])
        syncs = self.lines("sync")
        ranks = list(dict.fromkeys(line["pid"] for line in syncs if line["replica"] == syncs[0]["replica"]))
        sent = [
            line["start"]
            for line in syncs
            if line["version"] == version and line["start"] < update["start"]
            if len(ranks) == 1 or line["pid"] == ranks[attempt]
        ]
        number = bisect.bisect([line["end"] for line in updates], max(sent))
        if number == 0:
            return updates[0]["step"] - 1
        last = updates[number - 1]["step"]
        is_whole = number == len(updates) or updates[number]["step"] != last
        return last if is_whole else last - 1

    @property
    def begun(self):
        """Numbers of all steps that began, also of those that raised."""
        return sorted(set(self.steps))

    def samples_of(self, step, attempt=None):
        """Samples of a step; of its last training if there were two and none is asked for."""
        found = [sample for sample in self.samples if sample.step == step]
        attempt = found[-1].attempt if attempt is None else attempt
        return [sample for sample in found if sample.attempt == attempt]

    def scored_in(self, step):
        """`samples_of` a step, also if it raised after they had their scores."""
        return self.samples_of(step)

    @functools.cached_property
    def kept(self):
        """Samples whose updates are in the final weights: no later attempt has trained their step again."""
        return [sample for step in sorted(set(self.steps)) for sample in self.samples_of(step)]

    def groups_of(self, step):
        """Samples of a step by prompt."""
        found = {}
        for sample in self.samples_of(step):
            found.setdefault(sample.uid, []).append(sample)
        return found

    # -- trajectories --

    @functools.cached_property
    def trajectories(self):
        calls, outputs = {}, {line["id"]: line for line in self.lines("output")}
        handed = {line["id"]: line["time"] for line in self.lines("handed") if "id" in line}
        for line in self.lines("llm"):
            calls.setdefault(line["id"], []).append(line)
        return [
            Trajectory(
                uid=line["uid"],
                index=line["index"],
                validate=line["validate"],
                start=line["start"],
                end=line["end"],
                seconds=line["seconds"],
                calls=len(calls.get(line["id"], ())),
                llm_seconds=sum(call["seconds"] for call in calls.get(line["id"], ())),
                submitted=line["step"],
                handed=handed.get(line["id"], line["end"]),
                last_token=max((call["end"] for call in calls.get(line["id"], ())), default=line["end"]),
                pid=line["pid"],
                **{
                    name: outputs.get(line["id"], {}).get(name, 0)
                    for name in ("prompt", "generated", "response", "limit")
                },
            )
            for line in self.lines("trajectory")
        ]

    def of_training(self, validate=False):
        """Trajectories without those of validations, or only these."""
        return [each for each in self.trajectories if each.validate == validate]

    @property
    def dropped(self):
        """Number of trajectories that were generated for a step, and that it left out."""
        return len(self.of_training()) - len(self.samples) if self.filters else 0

    def trajectories_of(self, step, attempt=None):
        """Trajectories that a step trained on; attempts as in `samples_of`."""
        if all(each.uid == UNKNOWN for each in self.of_training()):
            return [each for each in self.of_training() if each.submitted == step]
        wanted = {(sample.uid, sample.index) for sample in self.samples_of(step, attempt)}
        uids = {uid for uid, index in wanted if index is None}
        return [each for each in self.of_training() if each.uid in uids or (each.uid, each.index) in wanted]

    def step_of(self, trajectory):
        """Step that trained on a trajectory, or that it validated; None if it was dropped."""
        if trajectory.validate or trajectory.uid == UNKNOWN:
            return trajectory.submitted
        for sample in self.samples:
            if sample.uid == trajectory.uid and sample.index in (None, trajectory.index):
                return sample.step
        return None

    def generation_of(self, step, attempt):
        """Seconds from the first start to the last token of the trajectories that a step trained on, and to the last hand-over of a sample."""
        trained = self.trajectories_of(step, attempt)
        start = min(each.start for each in trained)
        return max(each.last_token for each in trained) - start, max(each.handed for each in trained) - start

    @functools.cached_property
    def excess(self):
        """Seconds by which steps, and the times to the next ones, exceeded the shortest: no more was lost in a training without a fault.

        The first step has the start-up, and is compared with none before it.
        """
        starts = [min(line["start"] for line in found) for _, found in groupby(self.updates, lambda line: line["step"])]
        periods = [after - before for before, after in pairwise(starts)]
        seconds = list(self.by_step("timing_s/step").values())[1:]
        return sum(each - min(lengths) for lengths in (periods, seconds) for each in lengths)

    @property
    def last_trajectories(self):
        """Trajectories of the last step that generated, also if it raised after that."""
        return self.trajectories_of(self.steps[-1])

    @property
    def last_tail(self):
        """`tail_of` the last step that generated. It began after the updates of the step before."""
        begin = max((line["end"] for line in self.updates if line["step"] != self.steps[-1]), default=0.0)
        return self.tail_of(self.last_trajectories, self.by_step("timing_s/step")[self.steps[-1]], begin)

    @property
    def last_step_ended(self):
        """When the last step ended at the earliest, with its update, and at the latest, when it was logged."""
        return self.updates[-1]["end"], max(line["start"] for line in self.lines("logged"))

    @functools.cached_property
    def goodput(self):
        """Share of the time since the process that trains began that it spent in steps, if nothing held these; of the last attempt."""
        trainer = self.updates[-1]["pid"]
        begin = min(line["start"] for line in self.lines("process") if line["pid"] == trainer)
        updates = [line for line in self.updates if line["pid"] == trainer]
        seconds = self.by_step("timing_s/step")
        return sum(seconds[step] for step in {line["step"] for line in updates}) / (updates[-1]["end"] - begin)

    @functools.cached_property
    def start_ups(self):
        """Seconds from the first process of each attempt to the first step that it trained, which lasted until it was logged."""
        found = []
        lines = sorted(self.lines("logged"), key=lambda line: line["start"])
        for _, attempt in groupby((line for line in lines if line["step"] >= self.steps[0]), lambda line: line["pid"]):
            first = next(attempt)
            before = [line["end"] for line in lines if line["pid"] != first["pid"] and line["end"] < first["start"]]
            begin = min(line["start"] for line in self.lines("process") if line["start"] > max(before, default=0.0))
            found.append(first["start"] - self.by_step("timing_s/step")[first["step"]] - begin)
        return found

    @functools.cached_property
    def logged_after(self):
        """Step to the seconds by which it was logged after the first one of the last attempt."""
        lines = [line for line in self.lines("logged") if line["pid"] == self.updates[-1]["pid"]]
        at = {line["step"]: line["start"] for line in lines if (line["step"], line["pid"]) in self.trained}
        return {step: when - min(at.values()) for step, when in at.items()}

    @staticmethod
    def tail_of(trajectories, seconds, begin=0.0):
        """Share of a step in which all but its slowest trajectories had ended and the trainer waited for these, and the seconds of the step.

        A trainer does not wait for what ended before the step began; in it it waits for all that has not.
        """
        ends = sorted(max(begin, each.handed) for each in trajectories)
        return (ends[-1] - ends[-1 - math.ceil(SLOWEST * len(ends))]) / seconds, seconds

    def waited_in(self, step):
        """Share of a step in which the trainer waited for samples, by verl's timers, and the seconds of the step."""
        seconds = self.by_step("timing_s/step")[step]
        return self.by_step("timing_s/gen")[step] / seconds, seconds


def count_groups(groups):
    """Number of groups by outcome: ``signal`` if an advantage of the group is not zero, else ``solved`` if its answers are right, else ``failed``."""
    found = Counter()
    for group in groups.values():
        if any(abs(sample.advantage) > NOTHING for sample in group):
            found["signal"] += 1
        else:
            found["solved" if min(sample.score for sample in group) >= RIGHT else "failed"] += 1
    return found


def describe_scores(scores):
    """Mean, spread and extremes of scores."""
    return {
        "mean": statistics.fmean(scores),
        "stddev": statistics.pstdev(scores),
        "min": min(scores),
        "max": max(scores),
    }


def describe_components(samples):
    """Mean and extremes of the components of the reward: a right answer has 1, and the rest of its score is for its form."""
    components = {
        "acc": [float(sample.score >= RIGHT - NOTHING) for sample in samples],
        "form": [sample.score - (sample.score >= RIGHT - NOTHING) for sample in samples],
    }
    return {
        name: {"mean": statistics.fmean(values), "min": min(values), "max": max(values)}
        for name, values in components.items()
    }


class OwnLoop(Oracle):
    """The count of a loop of one's own (`own_loop`)."""

    @functools.cached_property
    def trained(self):
        return [(line["step"], 0) for line in self.whole]

    @property
    def last_trajectories(self):
        return [each for each in self.trajectories if each.submitted == self.begun[-1]]

    @property
    def last_tail(self):
        """Of the last step that did not raise: a step that is cut off is not judged."""
        last = self.whole[-1]
        return self.tail_of([each for each in self.trajectories if each.submitted == last["step"]], last["seconds"])

    @property
    def begun(self):
        return [line["step"] for line in self.lines("step")]

    @functools.cached_property
    def whole(self):
        """Steps that did not raise."""
        return [line for line in self.lines("step") if not line["error"]]

    @property
    def last_step_ended(self):
        end = self.whole[-1]["end"]
        return end, end

    @functools.cached_property
    def pauses(self):
        """Seconds between two steps."""
        return [after["start"] - before["end"] for before, after in pairwise(self.lines("step"))]

    def timers(self, name):
        return [[line["seconds"] for line in self.lines(name)]]

    @property
    def seconds(self):
        return list(self.by_step("timing_s/step").values())

    def by_step(self, key):
        if key == "timing_s/step":
            return {line["step"]: line["seconds"] for line in self.whole}
        return {step: statistics.fmean(each.reward for each in self.samples_of(step)) for step in self.steps}

    @functools.cached_property
    def scored(self):
        """Samples of all steps that began."""
        found = [
            Sample(
                line["step"], line["uid"], line["index"], line["score"], line["score"], 2 * ANSWER, RESPONSE, 0.0, 0, 0
            )
            for line in self.lines("own")
        ]
        means = {
            uid: statistics.fmean(each.score for each in found if each.uid == uid)
            for uid in {each.uid for each in found}
        }
        return [each._replace(advantage=abs(each.score - means[each.uid])) for each in found]

    @functools.cached_property
    def samples(self):
        return [each for each in self.scored if each.step in self.steps]

    def scored_in(self, step):
        return [each for each in self.scored if each.step == step]

    @functools.cached_property
    def trajectories(self):
        return [
            Trajectory(
                line["uid"], line["index"], False, line["start"], line["end"], line["seconds"],
                calls=2, llm_seconds=0.0, prompt=PROMPT, generated=2 * ANSWER, response=RESPONSE, submitted=line["step"],
                handed=line["end"], last_token=line["end"], pid=line["pid"],
            )
            for line in self.lines("own")
        ]  # fmt: skip
