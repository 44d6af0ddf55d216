# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded steps for the tests of levers: planned as the pieces of each trajectory, and made as the analysis keeps them."""

from typing import NamedTuple

from tests.builders import forests as f
from verl_otel.analysis.bounded_steps import RecentSteps
from verl_otel.analysis.traces.tree import Node

GEN = 2
"""Nanoseconds from the start of a planned step to that of its rollouts."""


class PlannedTrajectory(NamedTuple):
    """A trajectory of a planned step: when it begins after the phase, its pieces (kind, length), and the replica that answers it."""

    start: int
    pieces: tuple
    at: int = 3


def roll(begin, pieces, *, at=3, trace=None, submitter=0, name="t"):
    """A trajectory whose pieces follow each other: ``llm``, ``tool``, ``reward`` and ``own``."""
    children, reached = [], begin
    for kind, length in pieces:
        end = reached + length
        if kind == "llm":
            children.append(f.chat(reached, end, served=(reached, end), at=at))
        elif kind == "tool":
            children.append(f.tool(name, reached, end))
        elif kind == "reward":
            children.append(f.reward(reached, end))
        reached = end
    return f.roll(begin, reached, *children, trace=trace)._replace(submitter=submitter)


def record(steps, *, train=10, between=4, shuffle=lambda members: members, limit=1_000, resumed_at=None, pause=0):
    """Steps one after the other: each submits its trajectories, waits for all of them, trains, and logs.

    Args:
        steps: The planned trajectories of each step.
        train: Length of the update in nanoseconds.
        between: Time to the next step.
        shuffle: Order in which members are given to the analysis.
        limit: Trajectories that are kept.
        resumed_at: Place of the step with which a second attempt begins; None: there is one attempt.
        pause: Nanoseconds between the two attempts.
    """
    recent, begin = RecentSteps(limit), 0
    for number, planned in enumerate(steps):
        root = f.step(begin, begin + 1, number=number + 1)
        trace = root.span.trace_id
        members = [
            roll(begin + GEN + each.start, each.pieces, at=each.at, trace=1_000_000 + 100 * number + index, submitter=trace)
            for index, each in enumerate(planned)
        ]  # fmt: skip
        end = max([begin + GEN, *(member.end_ns for member in members)])
        phases = [f.phase("gen", begin + GEN, end, f.consume(end, *members)), f.phase("update_actor", end, end + train)]
        root = Node(root.span._replace(end_ns=end + train), root.instance, root.process, phases)
        next_ns = end + train + between
        attempt = 2 if resumed_at is not None and number >= resumed_at else 1
        step = f.tell(root, members)._replace(next_ns=next_ns, attempt=attempt)
        recent.add(step, tuple(shuffle(members)), (root,), is_last=number + 1 in (len(steps), resumed_at))
        begin = next_ns + (pause if number + 1 == resumed_at else 0)
    return recent.all()
