# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus names are those that the Collector and Prometheus derive (strategy UnderscoreEscapingWithSuffixes)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.exporting_records import steady, texts
from verl_otel.model import Instrument
from verl_otel.prometheus_names import label_name, metric_name
from verl_otel.semconv.metric_names import METRICS

METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
kinds = st.sampled_from(["histogram", "counter", "updown", "gauge"])
units = st.one_of(st.sampled_from(["", "1", "s", "By", "%", "{token}", "{token}/s", "By/s", "m/s"]), texts)


def name_of(name, kind, unit):
    return metric_name(Instrument(name, kind, unit, ""))


@pytest.mark.parametrize(
    ("name", "kind", "unit", "expected"),
    [
        # the contract's own
        ("verl.step.duration", "histogram", "s", "verl_step_duration_seconds"),
        ("verl.phase.duration", "histogram", "s", "verl_phase_duration_seconds"),
        ("verl.sample.generation", "histogram", "s", "verl_sample_generation_seconds"),
        ("verl.training.steps", "counter", "{step}", "verl_training_steps_total"),
        ("verl.training.last_step.timestamp", "gauge", "s", "verl_training_last_step_timestamp_seconds"),
        ("verl.rollout.tail.share", "gauge", "1", "verl_rollout_tail_share_ratio"),
        ("verl.gpu.memory.used", "updown", "By", "verl_gpu_memory_used_bytes"),
        ("verl.gpu.time", "counter", "s", "verl_gpu_time_seconds_total"),
        ("verl.worker.call.time", "counter", "s", "verl_worker_call_time_seconds_total"),
        ("verl.reward.samples", "counter", "{sample}", "verl_reward_samples_total"),
        ("verl.phase.active", "updown", "{phase}", "verl_phase_active"),
        ("verl.rollout.sequence.length", "histogram", "{token}", "verl_rollout_sequence_length"),
        ("verl.average_reward", "gauge", "", "verl_average_reward"),
        ("verl.run.info", "gauge", "", "verl_run_info"),
        # training scalars have no unit and keep their words
        ("verl.actor.pg_loss", "gauge", "", "verl_actor_pg_loss"),
        ("verl.critic.rewards.mean", "gauge", "", "verl_critic_rewards_mean"),
        ("verl.val-core.math.acc.mean@8", "gauge", "", "verl_val_core_math_acc_mean_8"),
        ("verl.timing_s/gen", "gauge", "", "verl_timing_s_gen"),
        # what may stand in a name
        ("8bit.loss", "gauge", "", "_8bit_loss"),
        ("a..b__c--d//e", "gauge", "", "a_b_c_d_e"),
        (".a.", "gauge", "", "a"),
        ("ns:a.b", "gauge", "", "ns:a_b"),
        ("größe", "gauge", "", "gr_e"),
        # what may stand in a unit
        ("a", "gauge", "%", "a_percent"),
        ("a", "gauge", "{token}/s", "a_per_second"),
        ("a", "gauge", "By/s", "a_bytes_per_second"),
        ("a", "gauge", "{token}/{step}", "a"),
        ("a", "gauge", "parsec", "a_parsec"),
        ("a", "gauge", "m/min", "a_meters_per_min"),
        ("a", "gauge", "m/m", "a_meters_per_minute"),
        ("a", "gauge", " s ", "a_seconds"),
        ("a", "gauge", "/s", "a_per_second"),
        ("a", "gauge", "ms", "a_milliseconds"),
        # a suffix that is there already is not repeated
        ("a.seconds", "histogram", "s", "a_seconds"),
        ("a.bytes.read", "counter", "By", "a_bytes_read_total"),
        ("a.total", "counter", "", "a_total"),
        ("total.a", "counter", "", "a_total"),
        ("a.ratio", "gauge", "1", "a_ratio"),
        ("ratio.a", "gauge", "1", "a_ratio"),
        # a count of unit 1 is no ratio
        ("a", "counter", "1", "a_total"),
        ("a", "histogram", "1", "a"),
        ("a", "updown", "1", "a"),
        # the name has the words of the unit itself, or half of a brace
        ("tokens.per.worker", "gauge", "By/s", "tokens_per_worker_bytes_per_second"),
        ("a.second", "gauge", "By/s", "a_second_bytes_per_second"),
        ("a", "gauge", "TBy", "a_terabytes"),
        ("a", "gauge", "s}", "a"),
    ],
)  # fmt: skip
def test_the_table_of_names(name, kind, unit, expected):
    """The names of the contract, of training scalars and of corner cases are those of the Collector."""
    assert name_of(name, kind, unit) == expected


@pytest.mark.full
@steady
@given(texts, kinds, units)
def test_a_name_is_always_valid(name, kind, unit):
    """Any name with a letter in it gives a valid Prometheus name, the same each time, without repeated separators."""
    metric = name_of(f"{name}v", kind, unit)
    assert METRIC.fullmatch(metric)
    assert name_of(f"{name}v", kind, unit) == metric
    assert "__" not in metric
    assert not metric.endswith("_")


@pytest.mark.full
@steady
@given(texts.map(lambda text: f"{text}a"), kinds)
def test_a_name_stays_as_it_is_when_it_is_derived_again(name, kind):
    """A name that was derived already, taken as the name of an instrument without unit, is not changed any more."""
    once = name_of(name, kind, "")
    assert name_of(once, kind, "") == once


@pytest.mark.parametrize("name", ["@", "奖励", ""])
def test_a_name_without_letters_is_valid(name):
    """A name of which nothing is left still gives a valid Prometheus name."""
    assert METRIC.fullmatch(name_of(name, "gauge", ""))


def test_every_metric_of_the_catalogue_has_its_own_name():
    """No two metrics of the catalogue share a Prometheus name, and all names are valid."""
    names = [name_of(row.name, row.kind, row.unit) for row in METRICS.values()]
    assert len(set(names)) == len(names)
    assert all(METRIC.fullmatch(name) for name in names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("verl.phase", "verl_phase"),
        ("error.type", "error_type"),
        ("gen_ai.request.model", "gen_ai_request_model"),
        ("8bit", "key_8bit"),
        ("_x", "key_x"),
        ("", "key_"),
        ("__reserved", "__reserved"),
        ("a-b/c", "a_b_c"),
        ("größe", "gr__e"),
    ],
)
def test_the_table_of_labels(name, expected):
    """Labels have underscores for what Prometheus does not allow, and `key_` before a digit or a single underscore."""
    assert label_name(name) == expected


@pytest.mark.full
@steady
@given(texts.filter(bool))
def test_a_label_is_always_valid(name):
    """Any text gives a valid label name, the same each time."""
    label = label_name(name)
    assert LABEL.fullmatch(label)
    assert label_name(name) == label
