# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trees of spans for the tests of critical paths and verdicts: told in a line each, or made by Hypothesis as nasty as it likes."""

import itertools
from typing import NamedTuple

from hypothesis import strategies as st

from verl_otel.analysis.model import Activity, Step, Trajectory
from verl_otel.analysis.traces import critical_path
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import LinkRecord, SpanRecord

_IDS = itertools.count(1)
INSTANCES = ("trainer-0", "actor-0", "agent_loop-0", "llm_server-0", "llm_server-1", "reward-0")


def span(name, start, end, *children, at=0, trace=1, links=(), **attributes):
    """A span of process ``at`` with what lies below it; ``__`` stands for a dot in attributes."""
    values = {key.replace("__", "."): value for key, value in attributes.items()}
    made = tuple(LinkRecord(each, 0, {"verl.link.type": "consumed"}) for each in links)
    record = SpanRecord(trace, next(_IDS), 0, name, 1, start, end, values, made, (), 0, "", 1, "")
    return Node(record, INSTANCES[at], at, sorted(children, key=lambda child: child.span.start_ns))


def step(start, end, *children, number=1):
    """A step of the trainer."""
    return span("verl.step", start, end, *children, trace=next(_IDS), verl__step__number=number)


def phase(key, start, end, *children):
    """One of its phases."""
    return span(f"verl.phase.{key}", start, end, *children)


def call(method, start, end, *children, blocking=True):
    """A worker group's call."""
    return span(f"verl.call {method}", start, end, *children, verl__call__blocking=blocking)


def worker(method, start, end, *children, at=1):
    """A method on a rank."""
    return span(f"verl.worker Worker.{method}", start, end, *children, at=at)


def consume(at, *trajectories):
    """The trainer takes trajectories."""
    return span("verl.consume", at, at, links=[each.trace_id for each in trajectories])


def roll(start, end, *children, uid="u", index=0, whole=True, trace=None):
    """A trajectory with its path."""
    trace = trace or next(_IDS)
    root = span("verl.trajectory", start, end, *children, at=2, trace=trace)
    served = tuple(
        Activity("server", "", child.instance, child.span.start_ns, child.span.end_ns)
        for child in walk(root)
        if child.span.name == "verl.generate"
    )
    head = Trajectory(trace, uid, index, 1, False, start, end, None, False, whole, (), root.instance)
    return head._replace(activities=served, path=critical_path.of_trajectory(root))


def walk(root):
    """A span and all below it."""
    yield root
    for child in root.children:
        yield from walk(child)


def chat(start, end, *, served=None, at=3):
    """An LLM call; ``served``: from when to when its server worked on it."""
    below = [span("verl.generate", *served, at=at)] if served else []
    return span("chat m", start, end, *below, at=2, gen_ai__operation__name="chat")


def tool(name, start, end, *children):
    """A tool call."""
    return span(f"execute_tool {name}", start, end, *children, at=2, gen_ai__tool__name=name)


def turn(index, start, end, *children):
    """A turn."""
    return span("verl.turn", start, end, *children, at=2, verl__turn__index=index)


def reward(start, end, at=5):
    """A reward."""
    return span("verl.reward", start, end, at=at, verl__data__source="toy")


def tell(root, members, number=None):
    """A step's facts, with its critical path."""
    number = root.span.attributes.get("verl.step.number") if number is None else number
    ids = tuple(each.trace_id for each in members)
    path = critical_path.of_step(root, {each.trace_id: each for each in members}, ids)
    record = root.span
    return Step(number, record.trace_id, record.start_ns, record.end_ns, False, (), 0.0, ids, 0, 0, 0, path=path)


# -- anything at all --


class Seed(NamedTuple):
    """What Hypothesis draws of a span."""

    name: str
    at: int
    start: int
    length: int
    blocking: bool
    children: tuple["Seed", ...]


NAMES = ("load", "verl.call m", "verl.worker W.m", "verl.weight_sync", "execute_tool t", "verl.phase.p", "verl.turn")


def seeds(names=NAMES, leaves=14):
    """Spans in spans: early, late, shifted, overlapping, empty and backwards."""
    fields = {
        "name": st.sampled_from(names),
        "at": st.integers(0, 2),
        "start": st.integers(-3, 24),
        "length": st.integers(-2, 14),
        "blocking": st.booleans(),
    }
    leaf = st.builds(Seed, **fields, children=st.just(()))
    grow = lambda below: st.builds(Seed, **fields, children=st.lists(below, max_size=4).map(tuple))  # noqa: E731
    return st.recursive(leaf, grow, max_leaves=leaves)


def plant(seed, *, shift=0, rename=(0, 1, 2)):
    """The tree of a seed."""
    below = [plant(child, shift=shift, rename=rename) for child in seed.children]
    begin = seed.start + shift
    return span(seed.name, begin, begin + seed.length, *below, at=rename[seed.at], verl__call__blocking=seed.blocking)


def forests(names=NAMES):
    """Steps with anything below them."""
    return st.lists(seeds(names), max_size=5).map(lambda below: Seed("verl.step", 0, 0, 24, True, tuple(below)))
