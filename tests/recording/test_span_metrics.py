# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What an ended span counts besides its duration."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verl_otel
from verl_otel.model import Instrument
from verl_otel.recording import span_metrics
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.series import Histogram
from verl_otel.recording.span import Span
from verl_otel.semconv import attributes as attr


def names(captured):
    return {point.instrument.name for point in captured.points}


def test_a_step_counts_itself_and_says_when_it_ended(recorded, monkeypatch):
    """A completed step adds one to the steps, and the time of its end is a gauge."""
    monkeypatch.setattr("verl_otel.recording.span.wall_offset_ns", lambda: 0)
    for number in (1, 2):
        with verl_otel.step(number) as step:
            pass
    assert recorded.value("verl.training.steps") == 2
    assert recorded.value("verl.training.last_step.timestamp") == pytest.approx(step.stop)


def test_a_checkpoint_says_when_it_was_saved(recorded, monkeypatch):
    """A checkpoint that was saved leaves the time of its end; one that failed does not."""
    monkeypatch.setattr("verl_otel.recording.span.wall_offset_ns", lambda: 0)
    with pytest.raises(OSError), Span(CallSite("checkpoint", hook=True)):
        raise OSError
    assert "verl.checkpoint.last.timestamp" not in names(recorded)
    with Span(CallSite("checkpoint", hook=True)) as saved:
        pass
    assert recorded.value("verl.checkpoint.last.timestamp") == pytest.approx(saved.stop)
    assert recorded.value("verl.checkpoint.duration", error_type="OSError") == 1


def test_only_the_phase_gen_is_sample_generation(recorded):
    """The generation of samples is the phase `gen` and no other."""
    with verl_otel.step(1), verl_otel.phase("gen"):
        pass
    with verl_otel.step(2), verl_otel.phase("adv"):
        pass
    assert recorded.value("verl.sample.generation") == 1


def test_a_nested_worker_method_counts_no_time_twice(recorded):
    """A worker method inside another one of the same worker is a span and no call of its own."""
    outer = CallSite("worker", "verl.worker W.outer", attributes={attr.WORKER_METHOD: "outer"}, hook=True)
    inner = CallSite("worker", "verl.worker W.inner", attributes={attr.WORKER_METHOD: "inner"}, hook=True)
    with Span(outer), Span(inner) as nested:
        nested.set_attribute(attr.WORKER_NESTED, value=True)
    assert len(recorded.spans) == 2
    assert recorded.value("verl.worker.calls") == 1
    assert recorded.value("verl.worker.call.time", verl_worker_method="outer") >= 0


@pytest.mark.parametrize("tokens", [None, "text", math.nan])
def test_tokens_that_are_no_number_are_not_counted(recorded, tokens):
    """A trajectory that does not know its tokens counts none, and fails nothing."""
    with verl_otel.trajectory("uid") as span:
        if tokens is not None:
            span.set_attribute(attr.PROMPT_TOKENS, tokens)
    totals = [point.value for point in recorded.points if point.instrument.name == "verl.rollout.tokens"]
    assert sum(totals) == 0


def test_labels_are_texts_in_the_order_of_the_catalogue(recorded):
    """Labels are texts, truth values in lower case, and come in the order of the catalogue; absent ones are left out."""
    with verl_otel.trajectory("uid", agent="react", validate=False):
        pass
    with verl_otel.trajectory("uid"):
        pass
    labels = {point.labels for point in recorded.points if point.instrument.name == "verl.rollout.trajectory.duration"}
    assert labels == {(("verl.agent", "react"), ("verl.validate", "false")), (("verl.validate", "false"),)}


def test_each_score_is_one_sample(recorded):
    """Each score that is a number is one sample, in the bin of its value, which has a readable name."""
    with verl_otel.reward("math") as span:
        span.set_attribute(attr.REWARD_SCORES, (-2.0, -1.0, 0.0, 0.1, math.nan, 1.0, 1.01, 5.0))
    points = [point for point in recorded.points if point.instrument.name == "verl.reward.samples"]
    bins = {dict(point.labels)["verl.reward.bin"]: point.value for point in points}
    assert bins == {"-1": 2, "0": 1, "0.25": 1, "1": 1, "+Inf": 2}


def test_a_site_may_have_a_histogram_of_its_own(recorded):
    """A site that brings its own histogram is measured there and not in that of its verb, and has its exemplar there."""
    mine = Histogram(Instrument("mine", "histogram", "s", ""), (), (1.0,))
    with Span(CallSite("tool", "execute_tool x", series=mine)):
        pass
    (span,) = recorded.spans
    mine.fold()
    assert mine.point(1).value.samples == 1
    assert mine.point(1).exemplars[0].span_id == span.span_id
    assert "verl.tool.call.duration" not in names(recorded)


label_values = st.sampled_from(["1", "true", 1, True, 1.0, ("1",), "python", None])


@given(st.lists(st.tuples(label_values, label_values), min_size=1, max_size=12))
def test_labels_of_a_call_are_not_mixed_up(calls):
    """Spans of one site whose labels are equal and of different types, such as 1 and True, have the series of their own labels."""
    site = CallSite("tool", "execute_tool x", attributes={attr.GEN_AI_OPERATION: "execute_tool"})
    for name, outcome in calls:
        own = {key: value for key, value in ((attr.GEN_AI_TOOL, name), (attr.OUTCOME, outcome)) if value is not None}
        span = Span(site, own)
        series = span_metrics._find(span, "")
        assert series.labels == span_metrics._select_labels(span.attributes, site.spec.labels)
        assert series is span_metrics._find(span, "")


def test_tokens_of_calls_are_not_mixed_up(recorded):
    """Calls of one site that name another model count for that model; the others for the one of the site."""
    site = CallSite("llm", "chat a", attributes={attr.GEN_AI_MODEL: "a"})
    for own in ({}, {attr.GEN_AI_MODEL: "b"}, {}, {attr.GEN_AI_MODEL: "b"}, {}):
        with Span(site, {**own, attr.GEN_AI_INPUT_TOKENS: 7}):
            pass
    usage = "gen_ai.client.inference.usage.input_tokens"
    assert [recorded.value(usage, gen_ai_request_model=model) for model in "ab"] == [3 * 7, 2 * 7]


def test_the_cache_of_series_is_bounded(recorded, monkeypatch):
    """Labels beyond the bound are looked up each time, and count all the same."""
    monkeypatch.setattr(span_metrics, "MAX_CACHED", len(span_metrics._cache) + 1)
    for model in ("bounded-a", "bounded-b", "bounded-c"):
        with verl_otel.llm(model) as span:
            span.set_attribute(attr.GEN_AI_INPUT_TOKENS, 7)
    assert len(recorded.spans) == 3
    assert len(span_metrics._cache) == span_metrics.MAX_CACHED
    usage = "gen_ai.client.inference.usage.input_tokens"
    for model in ("bounded-a", "bounded-b", "bounded-c"):
        assert recorded.value(usage, gen_ai_request_model=model) == 7
