# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the time of each kind of span is called, and how the states of an engine divide its request."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.builders import forests as f
from verl_otel.analysis.traces import critical_path
from verl_otel.analysis.traces.critical_path import split_engine
from verl_otel.semconv.kinds import WORK

SECOND = 10**9
QUEUE, PREFILL, DECODE = (
    f"gen_ai__latency__{each}" for each in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
)


def segment_below(above, name, **attributes):
    """The segment of a span that lies inside another one."""
    inner = f.span(name, 2, 8, **attributes)
    outer = f.span(*above, 0, 10, inner) if isinstance(above, tuple) else f.span(above, 0, 10, inner)
    return next(each for each in critical_path.walk(outer, 0, 10) if each.start_ns <= 2 < each.end_ns)


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("verl.phase.update_actor", {}, ("phase", "update_actor")),
        ("verl.call update_actor", {}, ("call", "update_actor")),
        ("verl.worker Actor.update_actor", {}, ("worker", "update_actor")),
        ("verl.weight_sync", {}, ("weight_sync", "")),
        ("verl.checkpoint", {}, ("checkpoint", "")),
        ("verl.validation", {}, ("validation", "")),
        ("verl.trajectory", {}, ("trajectory", "")),
        ("chat qwen", {"gen_ai__operation__name": "chat"}, ("llm", "qwen")),
        ("chat", {"gen_ai__operation__name": "chat"}, ("llm", "")),
        ("chat", {}, ("phase", "chat")),
        ("text_completion qwen", {"gen_ai__request__model": "qwen"}, ("llm", "qwen")),
        ("verl.generate", {}, ("server", "")),
        ("llm_request", {}, ("server", "")),
        ("execute_tool search", {}, ("tool", "search")),
        ("verl.reward", {"verl__data__source": "toy"}, ("reward", "toy")),
        ("my tool", {"gen_ai__tool__name": "mine"}, ("tool", "mine")),
        ("openai", {"gen_ai__request__model": "gpt"}, ("llm", "gpt")),
        ("verl.consume", {}, ("phase", "gen")),
        ("load shards", {}, ("phase", "load shards")),
        ("chat history", {}, ("phase", "chat history")),
    ],
)
def test_a_span_says_what_its_time_is(name, attributes, expected):
    """Kind and name come from the span; a user's own span keeps its name and has the kind of what it lies in."""
    segment = segment_below("verl.phase.gen", name, **attributes)
    assert (segment.kind, segment.name) == expected
    assert segment.kind in WORK


@pytest.mark.parametrize("inner", ["POST", "GET http://x/7f3a", "sql"])
@pytest.mark.parametrize("outer", ["execute_tool search", "verl.generate", "verl.reward", "chat m"])
def test_what_happens_in_a_tool_is_the_tools(outer, inner):
    """People know the tool and not the client in it; engines write ids into the names of their spans."""
    inside = f.span(inner, 2, 8, at=4)
    root = f.span(outer, 0, 10, inside, gen_ai__operation__name="x")
    (before, within, after) = critical_path.walk(root, 0, 10)
    assert (within.kind, within.name) == (before.kind, before.name) == (after.kind, after.name)
    assert within.instance == "llm_server-1"


def test_a_span_below_nothing_known_is_unknown():
    """A user's own root says nothing about the training; nor does time outside of any span."""
    path = critical_path.walk(f.span("mine", 2, 8), 0, 10)
    assert [(each.kind, each.name) for each in path] == [("unknown", ""), ("unknown", "mine"), ("unknown", "")]


def test_vllm_says_its_three_states():
    """Queue, prefill and decode follow each other from the arrival on; sending the last tokens is the server's."""
    request = f.span("llm_request", 10, 20 * SECOND, at=3, **{QUEUE: 3.0, PREFILL: 2.0, DECODE: 10.0})
    root = f.span("verl.generate", 0, 21 * SECOND, request, at=3)
    path = critical_path.walk(root, 0, 21 * SECOND)
    assert [(each.kind, each.start_ns - 10, each.end_ns - 10) for each in path[1:5]] == [
        ("queue", 0, 3 * SECOND),
        ("prefill", 3 * SECOND, 5 * SECOND),
        ("decode", 5 * SECOND, 15 * SECOND),
        ("server", 15 * SECOND, 20 * SECOND - 10),
    ]


def test_sglang_does_not_say_its_queue():
    """Without a queue time the states are laid to the end of the request; SGLang's stages inside are not walked into."""
    stage = f.span("Scheduler [TP 0]", 1, 9 * SECOND, at=3)
    request = f.span(" Req 7f3a", 0, 10 * SECOND, stage, at=3, **{PREFILL: 1.0, DECODE: 6.0})
    path = critical_path.walk(f.span("verl.generate", 0, 10 * SECOND, request, at=3), 0, 10 * SECOND)
    assert [(each.kind, each.end_ns // SECOND) for each in path] == [("server", 3), ("prefill", 4), ("decode", 10)]


@pytest.mark.full
@example(0, 20, None, None, 1e300)
@given(
    st.integers(-5, 25),
    st.integers(0, 25),
    *[st.one_of(st.none(), st.floats(), st.just("x"), st.floats(0, 3e-8)) for _ in range(3)],
)
def test_states_divide_any_part_exactly(begin, length, queue, prefill, decode):
    """Whatever an engine wrote, the states cover the asked time once, in their order."""
    values = {key: value for key, value in ((QUEUE, queue), (PREFILL, prefill), (DECODE, decode)) if value is not None}
    request = f.span("llm_request", 0, 20, **values).span
    parts = list(split_engine(request, begin, begin + length))
    assert [begin, *(stop for _, _, stop in parts)] == [*(start for _, start, _ in parts), begin + length]
    order = ["server", "queue", "prefill", "decode", "server"]
    kinds = [kind for kind, _, _ in parts]
    assert all(kind in order for kind in kinds)
    middle = [kind for kind in kinds if kind != "server"]
    assert middle == sorted(middle, key=order.index)
