# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A real training through a real agent and a real gateway into a real Prometheus: its metrics, the traces that are kept, exemplars and alerts.

That every value arrives, pushed or scraped, is tested with the whole catalogue (`tests/collector/test_metrics.py`); totals are counted by
`tests.recount`.
"""

import pytest

from tests.builders import golden_names
from tests.builders.training_logs import find_unexpected
from tests.collector import trajectories
from tests.collector.tiers import read_spans
from tests.end_to_end import counts
from verl_otel.semconv.metric_names import METRICS

pytestmark = [pytest.mark.verl, pytest.mark.collector]

NO_GPU = "the bed trains on a CPU, and its machine may have no GPU and no InfiniBand"
ABSENT = {
    **{name: NO_GPU for name in METRICS if name.startswith(("hw.", "verl.gpu.")) and name != "verl.gpu.time"},
    "verl.otel.errors": "nothing of verl-otel failed",
    "verl.otel.spans.dropped": "nothing was dropped",
    "verl.worker.restarts": "no worker died",
    "verl.otel.points.dropped": "nothing was dropped",
    "verl.otel.logs.dropped": "nothing was dropped",
    "verl.stalls": "nothing stood still",
    "verl.step.held": "no step was held",
    "verl.training.change": "compares with more steps than this run has",
    "verl.otel.budget.used": "is known after a minute, which this run may not take",
    "verl.event_loop.blocked": "no event loop was blocked",
    "gen_ai.execute_tool.duration": "a second name, by OTEL_SEMCONV_STABILITY_OPT_IN only",
    "gen_ai.invoke_agent.duration": "as gen_ai.execute_tool.duration",
    "verl.rollout.preemptions": "the engine of the bed puts no request back",
    "verl.weight_sync.payload": "the bed has no weight sync that sends changes only",
}
"""Metrics of the catalogue that this run need not have, and why."""
HISTOGRAM = "verl_rollout_trajectory_duration_seconds_bucket"
SLOW_SECONDS, SHARE = 120, 5
"""What gateway.yaml keeps by default: trajectories of so many seconds, and so many of a hundred."""


def ask(piped, expression):
    """Return the single value of an expression about the run; every selector in it is ``NAME{}``."""
    inner = expression.replace("{}", '{verl_run_id="real"}')
    ((_, value),) = piped.pipeline.watcher.query(inner)
    return value


def test_training_succeeds(piped):
    """Telemetry in three ways at once says nothing in the log of a training, which ends well."""
    assert piped.returncode == 0, piped.log[-3000:]
    assert find_unexpected(piped.log) == []


def test_every_metric_of_the_catalogue_is_there(piped):
    """Prometheus knows each metric that the run can produce by its golden name; of what the run cannot produce we know why."""
    series = piped.pipeline.watcher.query('last_over_time({verl_run_id="real"}[1h])')
    found = {labels["__name__"] for labels, _ in series}
    table = golden_names.read()
    missing = {name for name in METRICS if not {table[name][0], table[name][0] + "_count"} & found}
    assert missing <= ABSENT.keys()
    assert {"verl.otel.errors", "verl.otel.spans.dropped", "verl.otel.points.dropped"} <= missing


@pytest.fixture(scope="module")
def recorded(piped):
    """Every span that the run wrote into its files, by trace and id."""
    return trajectories.group(read_spans(sorted(piped.folder.glob("traces-*.jsonl"))))


@pytest.fixture(scope="module")
def wanted(recorded):
    """The traces that the gateway has to keep."""
    return {
        trace_id for trace_id, spans in recorded.items() if trajectories.is_kept(trace_id, spans.values(), SLOW_SECONDS, SHARE)
    }  # fmt: skip


@pytest.fixture(scope="module")
def kept(piped, wanted, wait_for):
    """What the gateway has kept, by trace and id, when all is there that has to be."""
    found = lambda: trajectories.group(piped.pipeline.gateway.spans())  # noqa: E731 - asked twice
    wait_for(lambda: wanted <= found().keys(), 60, 0.5)
    return found()


def test_the_gateway_keeps_the_right_traces_whole(recorded, wanted, kept):
    """Steps, failures, marks and the share: those traces and no others, with every span of every process."""
    assert kept.keys() == wanted
    assert len(wanted) < len(recorded)
    for trace_id in wanted:
        assert kept[trace_id].keys() == recorded[trace_id].keys()


def test_exemplars_lead_to_trajectories(piped, recorded):
    """Each exemplar of the trajectory histogram is a trajectory of the run, in its own bucket, as long as the bed measured it."""
    theirs = {(each["uid"], each["index"]): each["seconds"] for each in piped.bed("trajectory")}
    spans = {span.trace: span for span in piped.spans() if span.name == "verl.trajectory"}
    found = piped.pipeline.watcher.exemplars(f'{HISTOGRAM}{{verl_run_id="real"}}', 3600)
    assert len(found) >= 4
    for series, labels, seconds in found:
        assert seconds <= float(series["le"])
        assert labels["span_id"] in recorded[labels["trace_id"]]
        said = spans[labels["trace_id"]].attributes
        assert counts.is_close(seconds, theirs[said["verl.sample.uid"], said["verl.rollout.index"]])


def test_the_slowest_trajectory_is_one_click_away(piped, kept):
    """The exemplar of the top bucket is the slowest trajectory of the run, by the bed's own log, and its trace was kept."""
    slowest = max(piped.bed("trajectory"), key=lambda each: each["seconds"])
    found = piped.pipeline.watcher.exemplars(f'{HISTOGRAM}{{verl_run_id="real"}}', 3600)
    series, labels, _ = max(found, key=lambda each: each[2])
    assert float(series["le"]) == max(float(each["le"]) for each, _, _ in found)
    (root,) = [span for span in piped.spans() if span.trace == labels["trace_id"] and span.name == "verl.trajectory"]
    assert (root.attributes["verl.sample.uid"], root.attributes["verl.rollout.index"]) == (
        slowest["uid"],
        slowest["index"],
    )
    assert root.id in kept[labels["trace_id"]]


def test_exemplars_lead_to_traces_that_were_kept(piped, wanted):
    """Those of steps, of phases and of trajectories, in whatever bucket: what is shown there is marked."""
    of = lambda name: {labels["trace_id"] for _, labels, _ in piped.pipeline.watcher.exemplars(name, 3600)}  # noqa: E731
    for name in ("verl_step_duration_seconds_bucket", "verl_phase_duration_seconds_bucket", HISTOGRAM):
        found = of(f'{name}{{verl_run_id="real"}}')
        assert found
        assert found <= wanted


def test_no_alert_fires(piped):
    """A healthy run is silent, pushed and scraped, from its start to after its end, and so are those who carry its telemetry."""
    watcher, beside = piped.pipeline.watcher, piped.pipeline.beside
    assert ask(piped, "max(max_over_time(run:verl_training_step:max{}[1h]))") == 8, "the rules have not seen the run"
    assert beside.query('max_over_time(run:verl_training_step:max{verl_run_id="real"}[1h])')
    fired = [alert for server in (watcher, beside) for run in ("real", "") for alert in server.fired(run)]
    notified = piped.pipeline.alertmanager.alerts("real")
    # The memory of the host is also that of the tests which run beside this one.
    assert not [alert for alert in (*fired, *notified) if "HostMemorySlope" not in str(alert)]
