# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""rl-names.yaml: the names of the proposed RL convention beside ours, with the same values, on every path to Prometheus."""

import re
import time

import pytest

from tests.collector.tiers import COLLECTOR
from verl_otel.integrations.verl.scalars import metric_of
from verl_otel.semconv.metric_names import METRICS

yaml = pytest.importorskip("yaml")

DURATIONS = {
    "rl_loop_duration": ("verl_step_duration", {}),
    "rl_step_duration": ("verl_step_duration", {}),
    "rl_sample_duration": ("verl_sample_generation", {}),
    "rl_sync_duration": ("verl_weight_sync_duration", {}),
    "rl_reward_duration": ("verl_phase_duration", {"verl_phase": "reward"}),
    "rl_train_duration": ("verl_phase_duration", {"verl_phase": "update_actor|update_critic"}),
}
"""Each duration of the convention, ours, and the labels of its series."""
VALUES = {
    "rl_train_steps_total": "verl_training_steps_total",
    "rl_environment_reward_mean": "verl_average_reward",
    "rl_train_loss": "verl_actor_pg_loss",
    "rl_train_mfu": "verl_perf_mfu_actor",
    "rl_tokens_rate_per_gpu": "verl_perf_throughput",
}
OTHERS = {"rl_sample_episodes_total", "rl_train_own_total"}
ADDED = {"rl_system", "rl_system_version", "rl_run_id", "rl_loss_type"}
SCALARS = {
    "verl.actor.pg_loss": "actor/pg_loss",
    "verl.perf.mfu.actor": "perf/mfu/actor",
    "verl.perf.throughput": "perf/throughput",
}


def read_group(prometheus, name, **patterns):
    """Return the series of a metric: labels without what the convention adds to value. A bound is a number."""
    selector = ",".join(f'{key}=~"{value}"' for key, value in patterns.items())
    found = {}
    for labels, value in prometheus.query(f"{name}{{{selector}}}"):
        kept = {key: text for key, text in labels.items() if key not in ADDED | {"__name__"}}
        if "le" in kept:
            kept["le"] = float(kept["le"])
        found[frozenset(kept.items())] = value
    return found


def scale_bounds(series):
    """Return series of buckets with bounds in milliseconds."""
    return {
        frozenset((key, value * 1000 if key == "le" else value) for key, value in labels): count
        for labels, count in series.items()
    }


def names_of(prometheus):
    """Return the names of all series that begin with ``rl_``, without the suffixes of a histogram."""
    found = {labels["__name__"] for labels, _ in prometheus.query('{__name__=~"rl_.*"}')}
    return {re.sub(r"_milliseconds_(bucket|sum|count)$", "", name) for name in found}


@pytest.fixture(params=["scrape", "push", "gateway"])
def prometheus(request, start_tier, start_pipeline, start_prometheus, run_sender, wait_for):
    """A Prometheus that has what a training sent to a Collector with the overlay."""
    if request.param == "scrape":
        tier = start_tier("local", ["local.yaml", "rl-names.yaml"])
        store = start_prometheus(tier=tier)
    elif request.param == "gateway":
        tiers = start_pipeline("rl-names.yaml")
        tier, store = tiers.agent, start_prometheus(tier=tiers.gateway)
    else:
        store = start_prometheus()
        tier = start_tier(
            "local", ["local.yaml", "metrics-by-otlp.yaml", "rl-names.yaml"], OTELCOL_PROMETHEUS_OTLP=store.otlp_url
        )
    run_sender("send_rl_names", tier.http_url)
    wait_for(lambda: DURATIONS.keys() | VALUES.keys() | OTHERS <= names_of(store), 60, 0.5)
    return store


def find_differences(prometheus):
    """Return the series of the convention that are not ours with another name, by name: what was wanted, and what is there."""
    pairs = {}
    for name, (ours, labels) in DURATIONS.items():
        for suffix, factor in (("sum", 1000), ("count", 1)):
            wanted = read_group(prometheus, f"{ours}_seconds_{suffix}", **labels)
            scaled = {key: pytest.approx(value * factor, rel=1e-12) for key, value in wanted.items()}
            pairs[f"{name}_milliseconds_{suffix}"] = scaled
        buckets = read_group(prometheus, f"{ours}_seconds_bucket", **labels)
        pairs[f"{name}_milliseconds_bucket"] = scale_bounds(buckets)
    pairs |= {name: read_group(prometheus, ours) for name, ours in VALUES.items()}
    found = {name: read_group(prometheus, name) for name in pairs}
    return {name: (wanted, found[name]) for name, wanted in pairs.items() if not wanted or found[name] != wanted}


def test_every_name_has_the_value_of_ours(prometheus):
    """Durations are ours in milliseconds, bucket by bucket; counters and gauges are equal; labels of the board are there, and nothing else."""
    deadline = time.monotonic() + 60  # the two pipelines do not show a request in the same moment
    while different := find_differences(prometheus):
        assert time.monotonic() < deadline, different
        time.sleep(0.3)
    assert names_of(prometheus) == DURATIONS.keys() | VALUES.keys() | OTHERS
    assert prometheus.total("verl_training_steps_total") == 3
    assert prometheus.total("rl_sample_episodes_total") == 6  # without validations and failures
    assert [value for _, value in prometheus.query("rl_train_own_total")] == [7], "a metric of a user is sent once"
    for labels, _ in prometheus.query('{__name__=~"rl_.*", __name__!="rl_train_own_total"}'):
        assert (labels["rl_system"], labels["rl_run_id"]) == ("verl", labels["verl_run_id"])
        assert labels.get("rl_loss_type") == ("policy" if labels["__name__"] == "rl_train_loss" else None)
    series = prometheus.query('count({__name__=~"rl_.*"})')[0][1]
    assert series == 124 + 2, "the README's number with a critic, the episodes of one process, and the metric of a user"


def test_every_source_is_a_metric_of_ours():
    """A metric that is renamed in the catalogue fails here, and the README has each name of the file."""
    text = (COLLECTOR / "rl-names.yaml").read_text("utf-8")
    renamed = set(re.findall(r'metric\.name == "(verl\.[\w.]+?)(?:\.count)?"', text))
    for key in SCALARS.values():
        assert metric_of(key).name in SCALARS
    assert renamed <= METRICS.keys() | SCALARS.keys()
    kept = re.search(r'"\^verl\[\.\]\((.*)\)\$\$"', text)[1].replace("[.]", ".").split("|")
    assert {f"verl.{each}" for each in kept} == renamed | {"verl.phase.duration"}
    readme = (COLLECTOR / "README.md").read_text("utf-8")
    rows = {row[1]: row[2] for row in re.finditer(r"\| `(rl\.[\w.]+)` \| `(verl\.[\w.]+)`", readme)}
    assert set(rows.values()) == renamed
    written = set(re.findall(r'"(rl\.[\w.]+)"\)? where metric\.name', text))
    assert rows.keys() == written
