# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The table of verbs: which span, which metric, which labels and attributes come out of each."""

import asyncio
from typing import Any, NamedTuple

import pytest

import verl_otel
from verl_otel.model import HistogramValue
from verl_otel.semconv.spans import CLIENT, INTERNAL, SERVER


class Row(NamedTuple):
    """What one verb does."""

    make: Any
    name: str
    kind: int
    metric: str
    labels: dict[str, str]
    attributes: dict[str, Any]


TABLE = {
    "step": Row(lambda: verl_otel.step(3), "verl.step", INTERNAL, "verl.step.duration", {}, {"verl.step.number": 3}),
    "phase": Row(
        lambda: verl_otel.phase("adv"),
        "verl.phase.adv",
        INTERNAL,
        "verl.phase.duration",
        {"verl.phase": "adv"},
        {"verl.phase": "adv"},
    ),
    "rollout": Row(verl_otel.rollout, "verl.phase.gen", INTERNAL, "verl.sample.generation", {}, {"verl.phase": "gen"}),
    "trajectory": Row(
        lambda: verl_otel.trajectory("uid-1", 2, step=3, agent="react", validate=True),
        "verl.trajectory",
        INTERNAL,
        "verl.rollout.trajectory.duration",
        {"verl.agent": "react", "verl.validate": "true"},
        {
            "gen_ai.operation.name": "invoke_agent",
            "verl.sample.uid": "uid-1",
            "verl.rollout.index": 2,
            "verl.step.number": 3,
            "verl.agent": "react",
            "gen_ai.agent.name": "react",
            "verl.validate": True,
        },
    ),
    "turn": Row(
        lambda: verl_otel.turn(4), "verl.turn", INTERNAL, "verl.rollout.turn.duration", {}, {"verl.turn.index": 4}
    ),
    "llm": Row(
        lambda: verl_otel.llm("qwen", provider="vllm"),
        "chat qwen",
        CLIENT,
        "gen_ai.client.inference.duration",
        {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "qwen"},
        {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "qwen"},
    ),
    "llm, text": Row(
        lambda: verl_otel.llm("qwen", operation="text_completion"),
        "text_completion qwen",
        CLIENT,
        "gen_ai.client.inference.duration",
        {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "verl", "gen_ai.request.model": "qwen"},
        {"gen_ai.operation.name": "text_completion", "gen_ai.request.model": "qwen"},
    ),
    "tool": Row(
        lambda: verl_otel.tool("python"),
        "execute_tool python",
        INTERNAL,
        "verl.tool.call.duration",
        {"gen_ai.tool.name": "python"},
        {"gen_ai.tool.name": "python", "gen_ai.operation.name": "execute_tool"},
    ),
    "reward": Row(
        lambda: verl_otel.reward("math"),
        "verl.reward",
        INTERNAL,
        "verl.reward.duration",
        {"verl.data.source": "math"},
        {"verl.data.source": "math"},
    ),
    "update": Row(
        lambda: verl_otel.update("actor"),
        "verl.worker actor",
        SERVER,
        "verl.worker.calls",
        {"verl.worker.method": "actor"},
        {"verl.update.role": "actor"},
    ),
    "span": Row(lambda: verl_otel.span("load", attributes={"path": "/x"}), "load", INTERNAL, "", {}, {"path": "/x"}),
}


def found(captured, row, labels=None):
    """Check that the metric of a row was recorded once with its labels."""
    wanted = row.labels if labels is None else labels
    points = [point for point in captured.points if point.instrument.name == row.metric]
    assert [dict(point.labels) for point in points] == ([wanted] if row.metric else [])
    for point in points:
        assert (point.value.samples if isinstance(point.value, HistogramValue) else point.value) == 1


FORMS = [
    (verb, form) for verb in TABLE for form in ("block", "function", "coroutine") if verb != "update" or form == "block"
]
"""A decorated update has the name of its method."""


@pytest.mark.parametrize(("verb", "form"), FORMS)
def test_each_verb_in_each_form(recorded, verb, form):
    """As a block, and as a decorator of a function or a coroutine function, a verb makes the span, the metric and the labels of its row."""
    row = TABLE[verb]

    async def coroutine():
        return "result"

    with verl_otel.span("around"):
        if form == "block":
            with row.make():
                pass
        elif form == "function":
            assert row.make()(lambda: "result")() == "result"
        else:
            assert asyncio.run(row.make()(coroutine)()) == "result"
    span = recorded.span(row.name)
    assert span.kind == row.kind
    assert {key: span.attributes.get(key) for key in row.attributes} == row.attributes
    found(recorded, row)


BARE = {
    "step": (verl_otel.step, "verl.step", "verl.step.duration", {}),
    "rollout": (verl_otel.rollout, "verl.phase.gen", "verl.sample.generation", {}),
    "turn": (verl_otel.turn, "verl.turn", "verl.rollout.turn.duration", {}),
    "llm": (
        verl_otel.llm,
        "chat",
        "gen_ai.client.inference.duration",
        {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "verl"},
    ),
    "tool": (verl_otel.tool, "execute_tool do_work", "verl.tool.call.duration", {"gen_ai.tool.name": "do_work"}),
    "reward": (verl_otel.reward, "verl.reward", "verl.reward.duration", {}),
    "update": (verl_otel.update, "verl.worker Owner.do_work", "verl.worker.calls", {"verl.worker.method": "do_work"}),
    "span": (verl_otel.span, None, "", {}),
}


@pytest.mark.parametrize("verb", BARE)
@pytest.mark.parametrize("brackets", [False, True])
def test_a_verb_without_arguments(recorded, verb, brackets):
    """`@verb` and `@verb()` do the same, and take the name from the function where one is needed."""
    decorate, name, metric, labels = BARE[verb]

    class Owner:
        @(decorate() if brackets else decorate)
        def do_work(self):
            return 5

    assert Owner().do_work() == 5
    (span,) = recorded.spans
    assert span.name == (name or Owner.do_work.__qualname__)
    found(recorded, Row(None, "", 0, metric, labels, {}))


def test_a_rollout_in_the_trainers_gen_is_one_span(recorded):
    """A rollout inside the trainer's own phase `gen` adds to it and makes no span of its own."""

    @verl_otel.rollout
    def generate_sequences(prompts):
        return prompts

    with verl_otel.step(1), verl_otel.phase("gen"):
        generate_sequences([1, 2, 3])
    assert sorted(span.name for span in recorded.spans) == ["verl.phase.gen", "verl.step"]
    assert recorded.span("verl.phase.gen").attributes["verl.batch.size"] == 3
    assert recorded.value("verl.sample.generation") == recorded.value("verl.phase.duration") == 1


def test_a_rollout_elsewhere_is_a_phase_of_its_own(recorded):
    """A rollout outside the trainer's `gen`, even outside a step, is phase `gen`."""
    with verl_otel.rollout():
        pass
    with verl_otel.step(1), verl_otel.phase("adv"), verl_otel.rollout():
        pass
    assert [span.name for span in recorded.spans].count("verl.phase.gen") == 2
    assert recorded.value("verl.sample.generation") == 1  # of the step: both


@pytest.mark.parametrize("verb", ["rollout", "trajectory", "llm", "tool", "reward", "update", "span"])
def test_an_extractor_of_the_user_replaces_ours(recorded, verb):
    """`extract` is given the arguments by name and the result, and what it returns is on the span; ours is not called."""
    decorate = getattr(verl_otel, verb)

    @decorate(extract=lambda arguments, result: {"mine": f"{arguments['a']} {arguments['b']} {result['score']}"})
    def function(a, *, b=2):
        return {"score": 1.0}

    function(1)
    (span,) = recorded.spans
    assert span.attributes["mine"] == "1 2 1.0"
    assert "verl.reward.score" not in span.attributes


def test_what_the_decorator_says_wins_over_what_is_extracted(recorded):
    """An attribute that the decorator was given is not replaced by the extractor."""

    @verl_otel.reward("math")
    def compute_score(data_source, solution):
        return 1.0

    compute_score("other", "4")
    assert recorded.span("verl.reward").attributes["verl.data.source"] == "math"


async def run_coroutine_steps(step):
    @step
    async def run_step():
        pass

    for _ in range(2):
        await run_step()


def run_blocks(step):
    for _ in range(2):
        with step():
            pass


def run_functions(step):
    @step
    def run_step():
        pass

    run_step()
    run_step()


@pytest.mark.parametrize("run", [run_blocks, run_functions, lambda step: asyncio.run(run_coroutine_steps(step))])
def test_steps_without_a_number_are_counted(recorded, run):
    """From 1, and on from a number that was given."""
    run(verl_otel.step)
    with verl_otel.step(10):
        pass
    run(verl_otel.step)
    assert [span.attributes["verl.step.number"] for span in recorded.spans] == [1, 2, 10, 11, 12]
