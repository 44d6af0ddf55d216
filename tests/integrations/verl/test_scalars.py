# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From the keys of ``Tracking.log`` to gauges: names, values, validation labels, bounds."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel.exporting import files
from verl_otel.exporting.otlp import protobuf
from verl_otel.integrations.verl import scalars
from verl_otel.integrations.verl.scalars import Validation, make_points, split_validation
from verl_otel.model import Instrument, Resource, Scope
from verl_otel.prometheus_names import metric_name
from verl_otel.recording import callsite
from verl_otel.semconv.metric_names import METRICS


@pytest.fixture(autouse=True)
def fresh():
    """Begin with no key seen."""
    state = (scalars._names, scalars._taken, scalars._seen)
    for each in state:
        each.clear()
    yield
    for each in state:
        each.clear()


def names(*keys):
    """The metric names of keys, in their order."""
    return [scalars.metric_of(key).name for key in keys]


@pytest.mark.parametrize(
    ("key", "name", "prometheus"),
    [
        ("actor/pg_loss", "verl.actor.pg_loss", "verl_actor_pg_loss"),
        ("perf/mfu/actor-1", "verl.perf.mfu.actor-1", "verl_perf_mfu_actor_1"),
        ("prompt length (max)", "verl.prompt_length__max_", "verl_prompt_length_max"),
        ("größe/ß", "verl.gr__e._", "verl_gr_e"),
        ("response_length/clip%", "verl.response_length.clip_", "verl_response_length_clip"),
        ("training/global_step", "verl.training.global_step", "verl_training_global_step"),
        ("training/step", "verl.scalar.training.step", "verl_scalar_training_step"),
        ("step/duration", "verl.scalar.step.duration", "verl_scalar_step_duration"),
        ("average_reward", "verl.scalar.average_reward", "verl_scalar_average_reward"),
    ],
)
def test_names(key, name, prometheus):
    """Each key has the name of the contract: odd characters become ``_``, names of the catalogue are given way to."""
    instrument = scalars.metric_of(key)
    assert (instrument.name, metric_name(instrument)) == (name, prometheus)
    assert (instrument.kind, instrument.unit) == ("gauge", "")
    assert scalars.metric_of(key) is instrument


def test_keys_that_collide_in_prometheus_are_kept_apart():
    """Keys that would have the same Prometheus name get names of their own, in the order in which they came."""
    made = names("a/b", "a.b", "a_b", "a-b", "a/b")
    assert made == ["verl.a.b", "verl.scalar.a.b", "verl.scalar.a_b.2", "verl.scalar.a-b.3", "verl.a.b"]
    keys = ("a/b", "a.b", "a_b", "a-b", "kl", "kl%", "kl/")
    assert len({metric_name(scalars.metric_of(key)) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "key",
    [
        "training_step",
        "training_steps",
        "training/steps_total",
        "step/duration/seconds",
        "step/duration/seconds/count",
    ],
)
def test_keys_that_collide_with_the_catalogue_in_prometheus_give_way(key):
    """A key never has the Prometheus name of a metric of the catalogue."""
    rows = {metric_name(Instrument(row.name, row.kind, row.unit, "")) for row in METRICS.values()}
    shown = metric_name(scalars.metric_of(key))
    assert shown.removesuffix("_count") not in rows
    assert f"{shown}_total" not in rows


def test_more_than_a_thousand_keys(caplog):
    """A thousand keys are kept; the rest is left out with one line, and the known ones go on."""
    points = make_points({f"user/metric_{number}": number for number in range(1100)}, 1)
    assert [point.value for point in points] == [*range(1000)]
    assert len(make_points({"user/metric_0": 5, "user/metric_1099": 6, "new": 7}, 2)) == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "more than 1000 different keys in Tracking.log" in line


class Tensor:
    """A tensor without dimensions, as torch has them."""

    def __init__(self, value, is_cpu=True):
        self.value, self.is_cpu = value, is_cpu

    def item(self):
        assert self.is_cpu, "reading this one makes the host wait for the device"
        return self.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (3, 3),
        (True, 1),
        (np.float32(0.25), 0.25),
        (np.int64(7), 7),
        (np.bool_(True), 1),
        (np.array(2.5), 2.5),
        (float("inf"), float("inf")),
    ],
)
def test_values_that_are_numbers(value, expected):
    """Python's and numpy's numbers are recorded unchanged; a truth value is 1 or 0."""
    (point,) = make_points({"x": value}, 42)
    assert point.value == expected
    assert type(point.value) is (int if isinstance(expected, int) else float)
    assert (point.time_ns, point.labels) == (42, ())


@pytest.mark.parametrize(
    "value", ["1.5", b"1", None, [1.0], {}, np.array([1.0, 2.0]), object(), Tensor("x"), Tensor(1.0, is_cpu=False)]
)
def test_values_that_are_no_numbers_are_left_out(value):
    """Texts, collections and tensors on a device are no scalars; the numbers beside them are recorded."""
    assert [point.value for point in make_points({"x": value, "y": 2.0}, 1)] == [2.0]


def test_nan_is_kept():
    """NaN is recorded: it is what a trainer must see."""
    (point,) = make_points({"x": float("nan")}, 1)
    assert point.value != point.value


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400], ids=["above", "below", "beyond floats"])
def test_integers_beyond_64_bits_can_be_exported(value):
    """An integer that OTLP cannot hold does not keep the others from being exported."""
    points = make_points({"seed": value, "loss": 1.0}, 1)
    assert protobuf.encode_metrics(Resource({}), Scope("s"), points)
    (metrics,) = (
        each["metrics"]
        for each in files.metrics_object(Resource({}), Scope("s"), points)["resourceMetrics"][0]["scopeMetrics"]
    )
    for metric in metrics:
        for point in metric["gauge"]["dataPoints"]:
            if "asInt" in point:
                struct.pack("<q", int(point["asInt"]))
    assert json.dumps(metrics)
    assert all(float(point.value) is not None for point in points)


@pytest.mark.parametrize(
    ("key", "name", "labels", "factor"),
    [
        ("timing_s/agent_loop/slowest/tool_calls", "verl.rollout.slowest.duration", {"verl.part": "tool"}, 1),
        ("timing_s/agent_loop/slowest/prompt_length", "verl.rollout.slowest.tokens", {"verl.token.type": "prompt"}, 1),
        ("timing_s/agent_loop/slowest/num_preempted", "verl.rollout.slowest.preemptions", {}, 1),
        ("timing_s/agent_loop/num_preempted/max", "verl.rollout.trajectory.preemptions", {"verl.aggregate": "max"}, 1),
        ("checkpoint_engine/payload_mbytes", "verl.weight_sync.payload", {}, 2**20),
        (
            "actor/perf/max_memory_reserved_gb",
            "verl.gpu.memory.peak",
            {"verl.update.role": "actor", "verl.memory.type": "reserved"},
            2**30,
        ),
        ("critic/perf/cpu_memory_used_gb", "verl.host.memory.used", {"verl.update.role": "critic"}, 2**30),
    ],
)
def test_a_unit_that_a_key_gets_wrong_is_said_right_besides(key, name, labels, factor):
    """Counts under ``timing_s`` are counts, ``gb`` and ``mbytes`` are bytes: as a metric of the catalogue, beside the scalar."""
    converted, plain = make_points({key: 3.5}, 1)
    assert (converted.instrument.name, dict(converted.labels), converted.value) == (name, labels, 3.5 * factor)
    assert (plain.instrument.name, plain.value) == ("verl." + key.replace("/", "."), 3.5)


def test_tensors_on_the_cpu_are_numbers():
    """Torch's numbers have their value, whatever their type; two numbers are none."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    given = {
        "half": torch.tensor(0.25).half(),
        "bfloat16": torch.tensor(0.25).bfloat16(),
        "int": torch.tensor(4),
        "bool": torch.tensor(True),
        "grad": torch.tensor(1.5, requires_grad=True),
        "one": torch.tensor([1.0]),
        "two": torch.tensor([1.0, 2.0]),
    }
    assert [point.value for point in make_points(given, 1)] == [0.25, 0.25, 4, 1, 1.5, 1.0]


def test_phases_are_not_said_twice():
    """``timing_s`` of what was a phase in this process, and of the step, is left out; of others it is kept."""
    callsite.phase_site("known_phase", hook=True)
    data = {"timing_s/known_phase": 1.0, "timing_s/step": 2.0, "timing_s/unknown": 3.0, "timing_per_token_ms/gen": 4.0}
    assert [point.value for point in make_points(data, 1)] == [3.0, 4.0]


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("val-core/gsm8k/acc/mean@1", ("gsm8k", "acc", "mean@1")),
        ("val-core/openai/gsm8k/acc/best@4/mean", ("openai/gsm8k", "acc", "best@4/mean")),
        ("val-aux/math/reward/std@8", ("math", "reward", "std@8")),
        ("val-aux/a/b/c/reward/maj@2/std", ("a/b/c", "reward", "maj@2/std")),
        ("val-aux/math@home/reward/mean@2", ("math@home", "reward", "mean@2")),
    ],
)
def test_validation_keys(key, parts):
    """A validation key becomes one metric with the data source, the variable and the aggregate as labels."""
    assert split_validation(key) == Validation(*parts)
    (point,) = make_points({key: 0.5}, 1)
    assert point.instrument.name == "verl.validation.score"
    assert point.labels == tuple(zip(METRICS["verl.validation.score"].labels, parts, strict=True))


@pytest.mark.parametrize(
    "key", ["val-aux/num_turns/mean", "val-core/x", "val-core/", "val/test/acc/mean@1", "val-core/a/b"]
)
def test_keys_that_are_no_validation_keys(key):
    """Keys of another form are ordinary scalars."""
    assert split_validation(key) is None
    (point,) = make_points({key: 0.5}, 1)
    assert point.instrument.name.startswith("verl.val")
    assert point.labels == ()


WORD = st.text(st.characters(exclude_characters="/@", exclude_categories=["Cs"]), min_size=1, max_size=8)
AGGREGATE = st.builds(
    lambda kind, count, rest: f"{kind}@{count}{rest}", WORD, st.integers(1, 99), st.sampled_from(["", "/mean", "/std"])
)


@pytest.mark.full
@given(st.lists(WORD, min_size=1, max_size=4), WORD, AGGREGATE, st.sampled_from(["val-core", "val-aux"]))
def test_splitting_inverts_joining(source, variable, aggregate, section):
    """Whatever slashes a data source holds, the three parts are found again."""
    key = "/".join([section, *source, variable, aggregate])
    assert split_validation(key) == Validation("/".join(source), variable, aggregate)


@pytest.mark.full
@given(st.text(max_size=40))
def test_any_key_has_a_valid_name_or_none(key):
    """No key raises, and every name is one that OpenTelemetry and Prometheus accept."""
    for point in make_points({key: 1.0}, 1):
        assert set(point.instrument.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-/")
        assert metric_name(point.instrument).replace("_", "a").isalnum()


def test_data_sources_are_bounded():
    """More combinations of source, variable and aggregate than a metric may have become ``other``."""
    points = make_points({f"val-core/source{number}/acc/mean@1": number for number in range(300)}, 1)
    labels = [dict(point.labels) for point in points]
    assert len({tuple(each.items()) for each in labels}) == 201
    assert labels[199]["verl.data.source"] == "source199"
    assert set(labels[-1].values()) == {"other"}
    (known,) = make_points({"val-core/source0/acc/mean@1": 1}, 2)
    assert dict(known.labels)["verl.data.source"] == "source0"
