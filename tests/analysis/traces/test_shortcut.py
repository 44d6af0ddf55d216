# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The shortcut finds what the long way finds, or leaves a trace to it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_otel.analysis.io.completeness import Tally
from verl_otel.analysis.io.packing import unpack
from verl_otel.analysis.slice_summary import trajectories_of
from verl_otel.analysis.traces import span_roles, tree
from verl_otel.analysis.traces.fast_path import FastPath
from verl_otel.model import SpanRecord

INSTANCES = ("agent_loop-0", "llm_server-0", "reward-0")
ENGINE = {"gen_ai.latency.time_in_model_prefill": 1e-9, "gen_ai.latency.time_in_model_decode": 4e-9}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "verl", "gen_ai.request.model": "m"}
KINDS = [
    ("chat m", 3, CHAT),
    ("chat m", 3, {**CHAT, "gen_ai.provider.name": "openai"}),
    ("chat m", 3, {}),
    ("verl.generate", 2, {}),
    ("verl.generate", 2, ENGINE),
    ("llm_request", 2, {**ENGINE, "gen_ai.latency.time_in_queue": 1e-9}),
    ("execute_tool search", 1, {"gen_ai.tool.name": "search"}),
    ("mine", 1, {"gen_ai.tool.name": "search", "error.type": "E"}),
    ("verl.turn", 1, {"verl.turn.index": 1}),
    ("verl.turn", 1, {"verl.turn.index": 2.0}),
    ("verl.turn", 1, ENGINE),
    ("verl.turn", 3, CHAT),
    ("verl.reward", 1, {"verl.data.source": "toy"}),
    ("verl.consume", 1, ENGINE),
    ("verl.weight_sync", 1, {}),
    ("load", 1, {}),
    ("other", 3, {"gen_ai.request.model": "m"}),
    ("other", 3, ENGINE),
]
ODD = [
    ("verl.phase.gen", 1, {}),
    ("chat m", 3, {**CHAT, "verl.open.age": 1.0}),
    ("verl.call m", 3, {"verl.call.blocking": False}),
    ("verl.trajectory", 1, {}),
]
ROOT = {"verl.sample.uid": "u", "verl.step.number": 3, "verl.reward.score": 0.5, "verl.response.tokens": 7}


def spans_of(kinds, backwards):
    """A trajectory's spans in any order: a root, and spans below it or below each other; some seem to end before they begin."""
    times = st.tuples(st.integers(-2, 20), st.integers(-2 if backwards else 0, 12))
    one = st.tuples(st.sampled_from(kinds), times, st.integers(0, 2), st.integers(0, 8), st.sampled_from([0, 1]))
    return st.lists(one, max_size=9).flatmap(lambda made: st.permutations(list(enumerate(made, 1)))).map(plant)


def plant(numbered):
    """Spans that are written, the root somewhere among them; span n lies below one that is older, or below none that is there."""
    written = []
    for number, ((name, kind, attributes), (start, length), process, above, flags) in numbered:
        parent = 100 + above % number if above < 8 else 999
        record = SpanRecord(
            7, 100 + number, parent, name, kind, start, start + length, attributes, (), (), 0, "", flags, ""
        )
        written.append((record, process))
    root = SpanRecord(7, 100, 0, "verl.trajectory", 1, 0, 16, ROOT, (), (), 0, "", 1, "")
    return [*written[:2], (root, 0), *written[2:]]


def go_both_ways(written, ahead=None):
    """What the shortcut finds and what the long way does, each with what it counted."""
    short, long = Tally("vllm"), Tally("vllm")
    found = FastPath(INSTANCES, ahead, short).take(written)
    trace = tree.assemble(7, written, INSTANCES, ahead)
    long.add(trace)
    (expected,) = trajectories_of(trace)
    return found, short, expected, long, trace


def same(first, second):
    """Whether two trajectories are equal in everything, also in what is found out about them on the way."""
    return unpack(first) == unpack(second) and first.use == second.use and first.calls == second.calls


@pytest.mark.full
@given(spans_of(KINDS, backwards=False), st.booleans())
@settings(deadline=None, max_examples=300)
def test_it_leads_to_the_same_place(written, skewed):
    """Of a tree of anything that a trajectory may hold it finds what the long way finds, and counts the same gaps."""
    ahead = (lambda process, _: process * 3) if skewed else None
    found, short, expected, long, trace = go_both_ways(written, ahead)
    if trace.orphans:
        assert found is None
        return
    assert found is not None
    assert same(found, expected)
    assert vars(short) == vars(long)


@pytest.mark.full
@given(spans_of([*KINDS, *ODD], backwards=True))
@settings(deadline=None, max_examples=300)
def test_it_is_never_wrong(written):
    """Whatever it is given, it finds the same as the long way or nothing, and then it has counted nothing."""
    found, short, expected, long, _ = go_both_ways(written)
    if found is None:
        assert vars(short) == vars(Tally("vllm"))
    else:
        assert same(found, expected)
        assert vars(short) == vars(long)


def test_a_span_that_is_there_twice_is_left_to_the_long_way():
    """So are two roots, a circle and spans that are nested deeper than functions can be."""
    (root,) = plant([])
    child = (root[0]._replace(span_id=101, parent_id=100, name="load"), 0)
    assert FastPath(INSTANCES, None, Tally()).take([root, child]) is not None
    for more in ([child], [(root[0]._replace(span_id=102), 0)], [(child[0]._replace(span_id=103, parent_id=103), 0)]):
        assert FastPath(INSTANCES, None, Tally()).take([root, child, *more]) is None
    deep = [(child[0]._replace(span_id=number + 1, parent_id=number), 0) for number in range(100, 3000)]
    assert FastPath(INSTANCES, None, Tally()).take([root, *deep]) is None


def test_roles_are_not_mixed_up_however_many_there_are(monkeypatch):
    """What is known is forgotten when it is too much; attributes that are gone do not lend their place to others."""
    monkeypatch.setattr(span_roles, "MAX_ROLES", 3)
    shortcut = FastPath(INSTANCES, None, Tally())
    for number in itertools.islice(itertools.cycle(range(7)), 50):
        (root,) = plant([])
        tool = root[0]._replace(
            span_id=101, parent_id=100, name="execute_tool", attributes={"gen_ai.tool.name": str(number)}
        )
        found = shortcut.take([root, (tool, 0)])
        assert [each.name for each in found.activities] == [str(number)]
        assert len(shortcut._roles) <= 3
