# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A real training through a real agent and a real gateway into a real Prometheus, compared with what it wrote, and with what verl and the bed wrote."""

import time

import pytest

from tests.builders.training_logs import find_unexpected
from tests.collector import trajectories
from tests.collector.tiers import read_spans
from tests.end_to_end import counts, pipeline_values
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
ONLY_SCRAPED = {
    "service_name": "is job",
    "service_instance_id": "is instance",
    "exported_verl_role": "the target has it, and the page as well",
    "exported_verl_run_id": "as exported_verl_role",
    "process_pid": "gateway.yaml takes away what changes with each start of a process",
    "ray_actor_id": "as process_pid",
    "ray_job_id": "as process_pid",
    "verl_run_attempt": "as process_pid",
}
"""Labels of ``target_info`` that a scrape has more, and why."""
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
    found = {name for name, _ in pipeline_values.last_values(piped.pipeline.watcher, "real")}
    table = pipeline_values.golden()
    missing = {name for name in METRICS if not {table[name][0], table[name][0] + "_count"} & found}
    assert missing <= ABSENT.keys()
    assert {"verl.otel.errors", "verl.otel.spans.dropped", "verl.otel.points.dropped"} <= missing


def test_every_value_is_queried_back(piped):
    """The last value of each gauge, the total of each counter, count and sum of each histogram are those in the files of their process."""
    wanted = pipeline_values.expect(piped.folder)
    assert len(wanted) > 250
    assert len({name for name, _ in wanted}) > 120
    assert not pipeline_values.find_wrong(wanted, pipeline_values.last_values(piped.pipeline.watcher, "real"))


def test_totals_equal_the_beds_own_log(piped):
    """Trajectories, LLM calls, tool calls, rewards, steps and checkpoints are as many, and as long, as the bed itself wrote down."""
    of = {kind: piped.bed(kind) for kind in ("trajectory", "server", "tool", "score", "reward")}
    totals = {
        "verl_rollout_trajectory_duration_seconds_count{}": len(of["trajectory"]),
        "verl_rollout_turns_count{}": len(of["trajectory"]),
        "gen_ai_client_inference_duration_seconds_count{}": len(of["server"]),
        "verl_tool_call_duration_seconds_count{}": len(of["tool"]),
        "verl_reward_duration_seconds_count{}": len(of["score"]),
        "verl_reward_samples_total{}": len(of["score"]),
        "verl_training_steps_total{}": len([number for number in piped.scalars() if number > 0]),
        "verl_checkpoint_duration_seconds_count{}": len(list((piped.out / "checkpoints").glob("global_step_*"))),
        "verl_run_state{}": 2,
    }
    assert min(totals.values()) > 1
    for name, total in totals.items():
        assert ask(piped, f"sum(last_over_time({name}[1h]))") == total, name
    seconds = ask(piped, "sum(last_over_time(verl_rollout_trajectory_duration_seconds_sum{}[1h]))")
    theirs = sum(each["seconds"] for each in of["trajectory"])
    assert counts.is_close(seconds, theirs)


def test_pushed_and_scraped_series_are_the_same(piped):
    """Agent, gateway and Prometheus make the same names and the same label sets of a process as a scrape of its own /metrics."""
    span = piped.began, time.time()
    pushed, scraped = (
        pipeline_values.all_series(each, "real", *span) for each in (piped.pipeline.watcher, piped.pipeline.beside)
    )
    ours, theirs = pipeline_values.own_series(pushed), pipeline_values.own_series(scraped)
    assert len(ours) > 500
    assert ours == theirs
    for name, labels in ours:
        assert {"job", "instance", "verl_role", "verl_run_id"} <= dict(labels).keys(), name


def test_target_info_differs_by_what_is_known(piped):
    """Of ``target_info`` a scrape has some labels more, `ONLY_SCRAPED`; all others are equal."""
    span = piped.began, time.time()
    pushed, scraped = (
        {
            frozenset((key, value) for key, value in labels if key not in ONLY_SCRAPED)
            for name, labels in pipeline_values.all_series(each, "real", *span)
            if name == "target_info"
        }
        for each in (piped.pipeline.watcher, piped.pipeline.beside)
    )
    assert len(pushed) >= 5
    assert pushed == scraped


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
