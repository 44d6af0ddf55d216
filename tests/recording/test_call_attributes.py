# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the verbs read by themselves from arguments and results."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import verl_otel


class Scored(NamedTuple):
    """What a reward function of the user may return."""

    score: float
    extra: Any


class Unsized:
    """A batch whose length fails, as that of a batch that lives elsewhere."""

    def __len__(self):
        raise RuntimeError("not here")


class Tensor:
    """Looks like a tensor on an accelerator; reading it would make the host wait."""

    is_cpu, ndim = False, 1
    was_read = False

    def item(self):
        Tensor.was_read = True
        return 1.0

    tolist = __float__ = item


@pytest.mark.parametrize(
    ("result", "score"),
    [
        (1.5, 1.5),
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.array(0.25), 0.25),
        ({"score": 0.5, "acc": True}, 0.5),
        ({"reward_score": 0.5}, 0.5),
        ({"score": np.float64(0.5)}, 0.5),
        ({"score": {"score": 0.5}}, 0.5),
        ((0.5, {"extra": 1}), 0.5),
        (Scored(0.5, None), 0.5),
        (float("nan"), "nan"),
    ],
)
def test_a_score_is_found(recorded, result, score):
    """The score of a reward function is found in a number, a mapping or a tuple, and the result is handed on untouched."""
    assert verl_otel.reward("math")(lambda: result)() is result
    assert str(recorded.span("verl.reward").attributes["verl.reward.score"]) == str(score)
    counted = [point.value for point in recorded.points if point.instrument.name == "verl.reward.samples"]
    assert counted == ([] if score == "nan" else [1])


@pytest.mark.parametrize("result", [[0.0, 1.0, 0.5], np.array([0.0, 1.0, 0.5]), {"scores": [0.0, 1.0, 0.5]}])
def test_scores_are_found(recorded, result):
    """A list or an array of scores is counted score by score."""
    verl_otel.reward("math")(lambda: result)()
    assert recorded.span("verl.reward").attributes["verl.reward.scores"] == (0.0, 1.0, 0.5)
    bins = {dict(point.labels)["verl.reward.bin"]: point.value for point in recorded.points if point.labels[1:]}
    assert bins == {"0": 1, "0.5": 1, "1": 1}


@pytest.mark.parametrize("result", [None, "text", (), [], {}, {"other": 1}, object(), Tensor(), np.zeros((2, 2))])
def test_no_score_is_no_error(recorded, result):
    """A result without a score, or one on an accelerator, is handed on, and nothing is counted or read."""
    assert verl_otel.reward("math")(lambda: result)() is result
    assert not {"verl.reward.score", "verl.reward.scores"} & set(recorded.span("verl.reward").attributes)
    assert not Tensor.was_read
    assert "verl.reward.samples" not in {point.instrument.name for point in recorded.points}


def test_every_score_of_a_batch_is_counted(recorded):
    """Of a batch of 1,000 scores, 1,000 samples are counted, though the attribute holds the first 128."""
    verl_otel.reward("math")(lambda: [1.0] * 1000)()
    assert len(recorded.span("verl.reward").attributes["verl.reward.scores"]) == 128
    assert recorded.value("verl.reward.samples") == 1000


def test_the_data_source_is_read_from_the_arguments(recorded):
    """A reward function that was given no source is labelled by its argument `data_source`."""

    @verl_otel.reward
    def compute_score(data_source, solution):
        return 1.0

    compute_score("gsm8k", "4")
    assert recorded.value("verl.reward.duration", verl_data_source="gsm8k") == 1
    assert recorded.value("verl.reward.samples", verl_data_source="gsm8k", verl_reward_bin="1") == 1
    assert recorded.span("verl.reward").attributes["verl.reward.function"] == compute_score.__qualname__


OPENAI = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    "result",
    [
        OPENAI,
        SimpleNamespace(usage=SimpleNamespace(prompt_tokens=7, completion_tokens=3), finish_reason="stop"),
        SimpleNamespace(usage=OPENAI["usage"], stop_reason="stop", finish_reason="other"),
    ],
)
def test_the_usage_of_an_openai_answer_is_found(recorded, result):
    """Tokens and finish reason of an OpenAI-style answer are on the span, and the tokens in the metric."""
    assert verl_otel.llm("qwen")(lambda: result)() is result
    attributes = recorded.span("chat qwen").attributes
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (7, 3)
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert recorded.value("gen_ai.client.inference.usage.input_tokens", gen_ai_request_model="qwen") == 7


def test_the_output_of_verls_server_is_found(recorded):
    """Prompt and answer of verl's `TokenOutput` are counted by their ids, preemptions too."""

    @verl_otel.llm("qwen")
    def generate(prompt_ids):
        return SimpleNamespace(token_ids=[1, 2], stop_reason="length", num_preempted=3)

    generate([1, 2, 3])
    attributes = recorded.span("chat qwen").attributes
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (3, 2)
    assert recorded.value("verl.rollout.preemptions") == 3


@pytest.mark.parametrize(
    "result",
    [
        {"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}},
        SimpleNamespace(token_ids=[1], extra_fields={"num_cached_tokens": 4}),
        SimpleNamespace(num_cached_tokens=4),
    ],
    ids=["OpenAI", "verl", "vLLM"],
)
def test_the_input_tokens_of_a_cache_are_found(recorded, result):
    """On the span and in the metric of the conventions; an answer that has none adds no series."""
    verl_otel.llm("qwen")(lambda: OPENAI)()
    assert recorded.span("chat qwen").attributes.get("gen_ai.usage.cache_read.input_tokens") is None
    verl_otel.llm("other")(lambda: result)()
    assert recorded.span("chat other").attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert recorded.value("gen_ai.client.inference.usage.cache_read.input_tokens") == 4


def test_a_trajectorys_output_is_found(recorded):
    """Messages, tokens, reward and model versions of verl's `AgentLoopOutput` are on the span and in the metrics."""

    @verl_otel.trajectory
    def run():
        return SimpleNamespace(
            num_turns=4,
            prompt_ids=[0] * 10,
            response_ids=[0] * 20,
            response_mask=[1] * 8 + [0] * 7 + [1] * 5,
            reward_score=0.5,
            extra_fields={"min_global_steps": 1, "max_global_steps": 3},
        )

    run()
    attributes = recorded.span("verl.trajectory").attributes
    expected = {
        "verl.messages": 4,
        "verl.prompt.tokens": 10,
        "verl.response.tokens": 20,
        "verl.generated.tokens": 13,
        "verl.reward.score": 0.5,
        "verl.model.version.min": 1,
        "verl.model.version.max": 3,
    }
    assert {key: attributes[key] for key in expected} == expected
    assert "verl.turns" not in attributes
    assert tokens_of(recorded) == {"prompt": 10, "generated": 13, "observation": 7}
    assert recorded.value("verl.rollout.sequence.length", verl_token_type="prompt") == 1


def tokens_of(recorded):
    """Return the counters of tokens by type."""
    points = [point for point in recorded.points if point.instrument.name == "verl.rollout.tokens"]
    return {dict(point.labels)["verl.token.type"]: point.value for point in points}


class Strange:
    """A mask that cannot be counted."""

    is_cpu = property(lambda _: 1 / 0)

    def __len__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("mask", "generated"),
    [
        ([1, 0, 1, 1], 3),
        ((1, 0, 0), 1),
        ([True, False], 1),
        ([], 0),
        (np.array([1, 0, 1]), 2),
        (np.array([[1.0, 0.0], [1.0, 1.0]]), 3),
        (None, None),
        ("11", None),
        (7, None),
        (Strange(), None),
    ],
)
def test_what_the_model_wrote_is_counted_by_the_mask(recorded, mask, generated):
    """Any mask is counted that is in the memory of the host; what is none is no error."""
    output = {"response_ids": [0] * 4, "response_mask": mask}
    assert verl_otel.trajectory(lambda: output)() is output
    assert recorded.span("verl.trajectory").attributes.get("verl.generated.tokens") == generated


def test_a_response_without_a_mask_counts_as_generated(recorded):
    """Nobody says which tokens a tool wrote, so the model wrote all of them."""
    verl_otel.trajectory(lambda: {"prompt_ids": [0] * 3, "response_ids": [0] * 20})()
    assert tokens_of(recorded) == {"prompt": 3, "generated": 20}


@pytest.mark.parametrize(
    ("batch", "attributes"),
    [([1, 2, 3], {"verl.batch.size": 3}), (SimpleNamespace(), {}), (Unsized(), {}), ("text", {}), (None, {})],
)
def test_the_size_of_a_batch_is_found(recorded, batch, attributes):
    """The size of a batch is its length; a batch without one is no error."""

    @verl_otel.update("actor")
    def update_actor(batch):
        return batch

    assert update_actor(batch) is batch
    found = recorded.spans[0].attributes
    assert {key: value for key, value in found.items() if key.startswith("verl.batch")} == attributes


def test_tokens_and_losses_of_verls_batches_are_found(recorded):
    """Tokens come from where verl puts them; losses and norms from the metrics of the result."""

    class DataProto:
        def __init__(self, **meta_info):
            self.meta_info = meta_info

        def __len__(self):
            return 2

    @verl_otel.update("critic")
    def update_critic(data):
        return DataProto(metrics={"critic/loss": np.float32(0.5), "critic/grad_norm": 1.5})

    update_critic(DataProto(global_token_num=[100, 200]))
    attributes = recorded.spans[0].attributes
    assert (attributes["verl.batch.size"], attributes["verl.batch.tokens"]) == (2, 300)
    assert (attributes["verl.loss"], attributes["verl.grad_norm"]) == (0.5, 1.5)


@pytest.mark.parametrize("extract", [lambda *_: 1 / 0, lambda *_: 5, lambda: None, lambda *_: [1]])
def test_a_failing_extractor_costs_nothing_but_one_line(recorded, caplog, extract):
    """An extractor that fails is said once; the call's result, its span and its metric are as without it."""
    function = verl_otel.tool("python", extract=extract)(lambda: "result")
    assert [function() for _ in range(3)] == ["result"] * 3
    assert len(caplog.records) == 1
    assert "extractor of execute_tool python failed" in caplog.text
    assert len(recorded.spans) == 3
    assert recorded.value("verl.tool.call.duration") == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_extractor_still_ends_the_span(recorded, is_outside, error):
    """An interrupt that arrives while the extractor runs passes, and the span is closed on its way."""

    def interrupted(*_):
        raise error

    with pytest.raises(error):
        verl_otel.tool("python", extract=interrupted)(lambda: 1)()
    assert len(recorded.spans) == 1
    assert is_outside()


@pytest.mark.parametrize("value", [None, {}, {"key": None}])
def test_an_extractor_may_find_nothing(recorded, value):
    """An extractor that returns nothing, or None for an attribute, sets none."""
    verl_otel.span("s", extract=lambda *_: value)(lambda: 1)()
    assert recorded.span("s").attributes == {}
