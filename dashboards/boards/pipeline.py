# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Pipeline health: does everything that is measured arrive, and what does measuring cost?

The Collector and Prometheus know no runs: their panels show all that this Prometheus scrapes. Releases of the Collector differ in whether
counters end in ``_total``; both are asked.
"""

from __future__ import annotations

from typing import Final

from dashboards.parts import panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric
from dashboards.parts.panels import Panel
from dashboards.parts.queries import grouped, query
from dashboards.parts.thresholds import find_threshold


def _collector(name: str, by: str = "instance") -> str:
    """Return a counter of the Collector, for a second, with or without `_total`."""
    return f'sum by ({by}) (rate({{__name__=~"otelcol_{name}(_total)?"}}[rate]))'


def overhead() -> Panel:
    """What does measuring cost?"""
    text = (
        "CPU time of draining, exporting and recording, as a share of one core, by process. Recording, in the training's own threads, is "
        "reckoned by its number of events."
    )
    target = grouped("sum", "instance", f"rate({metric.OTEL_OVERHEAD}{{process}}[rate])")
    return panels.timeseries(
        "Our own CPU time", text, "percentunit", target, low=0, steps=((None, "transparent"), (0.01, "orange"))
    )


def exporting() -> Panel:
    """How long does sending take?"""
    text = "Time spent sending, as a share of the time, by exporter. It is spent on threads of its own and waits mostly; near 1 the exporter cannot keep up."
    target = grouped(
        "sum", f"{label.RUN_ID}, {label.ROLE}, exporter", f"rate({metric.OTEL_EXPORT_DURATION}{{process}}[rate])"
    )
    return panels.timeseries("Time spent sending", text, "percentunit", target, low=0)


def budget() -> Panel:
    """Does verl-otel stay within its budget?"""
    text = (
        "CPU time of verl-otel as a share of its budget, by process. Above 1 it keeps fewer spans of single calls until it is below again; "
        "metrics, and traces of steps and trajectories, are always kept."
    )
    steps = ((None, "transparent"), (1, "orange"))
    target = grouped("max", "instance", f"{metric.OTEL_BUDGET_USED}{{process}}")
    return panels.timeseries("Budget used", text, "percentunit", target, low=0, steps=steps)


def dropped() -> Panel:
    """Was something dropped?"""
    text = "Spans, measurements and log records that were recorded and could not be kept or sent, since the start, by reason. Nothing is dropped in silence."
    spans = query(
        f"sum by ({label.RUN_ID}, {label.ROLE}, reason) ({metric.OTEL_SPANS_DROPPED}{{process}})",
        f"{legend.RUN_ID} {legend.ROLE} spans: {{{{reason}}}}",
    )
    points = query(
        f"sum by ({label.RUN_ID}, {label.ROLE}, reason) ({metric.OTEL_POINTS_DROPPED}{{process}})",
        f"{legend.RUN_ID} {legend.ROLE} points: {{{{reason}}}}",
    )
    logs = query(
        f"sum by ({label.RUN_ID}, {label.ROLE}, reason) ({metric.OTEL_LOGS_DROPPED}{{process}})",
        f"{legend.RUN_ID} {legend.ROLE} log records: {{{{reason}}}}",
    )
    return panels.timeseries("Dropped", text, "short", spans, points, logs, width=12, low=0)


def errors() -> Panel:
    """Did verl-otel fail?"""
    text = (
        "Failures of verl-otel itself, since the start, by place. Each is logged once; training is not touched by them."
    )
    target = grouped("sum", f"{label.RUN_ID}, {label.ROLE}, reason", f"{metric.OTEL_ERRORS}{{process}}")
    return panels.timeseries("Own failures", text, "short", target, width=12, low=0)


def targets() -> Panel:
    """Does each process answer?"""
    text = "Targets of the run that Prometheus could scrape (1) or not (0). Processes that have ended leave the list: they are no failure. Empty where metrics are pushed."
    return panels.timeseries(
        "Targets of the run", text, "none", grouped("min", "instance", "up{process}"), low=0, high=1
    )


def scrapes() -> Panel:
    """How long does a scrape take?"""
    text = "Time that each target took to answer. Above the scrape interval there are holes."
    return panels.timeseries(
        "Duration of scrapes",
        text,
        "s",
        grouped("max", "instance", "scrape_duration_seconds{process}"),
        low=0,
    )


def series() -> Panel:
    """How many series does a run have?"""
    text = "Samples of one scrape, by role: nearly the number of series. A slope means a label whose values do not end."
    target = grouped("sum", f"{label.RUN_ID}, {label.ROLE}", "scrape_samples_scraped{process}")
    return panels.timeseries("Series of the run", text, "short", target, low=0)


def received() -> Panel:
    """What does the Collector receive?"""
    text = "Spans and measurements that the Collector accepted, for a second, of all runs."
    spans = query(_collector("receiver_accepted_spans"), "{{instance}} spans")
    points = query(_collector("receiver_accepted_metric_points"), "{{instance}} points")
    return panels.timeseries("Collector: accepted", text, "short", spans, points, low=0)


def refused() -> Panel:
    """What does the Collector turn away?"""
    text = "What the Collector refused, for a second: its memory limiter holds it off, and senders try again. Lasting refusals become drops at the sender."
    spans = query(_collector("receiver_refused_spans"), "{{instance}} spans")
    points = query(_collector("receiver_refused_metric_points"), "{{instance}} points")
    return panels.timeseries("Collector: refused", text, "short", spans, points, low=0)


def sent() -> Panel:
    """Does the Collector get rid of it?"""
    text = "What the Collector sent and could not send, for a second, by exporter. What failed for good is lost."
    targets = [
        query(
            _collector(f"exporter_{what}_{kind}", "instance, exporter"),
            f"{{{{instance}}}} {{{{exporter}}}} {kind}, {suffix}",
        )
        for what, suffix in (("sent", "sent"), ("send_failed", "failed"))
        for kind in ("spans", "metric_points")
    ]
    return panels.timeseries("Collector: sent", text, "short", *targets, low=0)


def queues() -> Panel:
    """How full are the Collector's queues?"""
    text = "Filled share of each exporter's queue. At 1 the Collector drops or refuses, as it is configured."
    size = "max by (instance, exporter, data_type) (otelcol_exporter_queue_size)"
    room = "(max by (instance, exporter, data_type) (otelcol_exporter_queue_capacity) > 0)"
    steps = ((None, "transparent"), (find_threshold("queue"), "red"))
    target = query(f"{size} / {room}", "{{instance}} {{exporter}} {{data_type}}")
    return panels.timeseries("Collector: queues", text, "percentunit", target, low=0, high=1, steps=steps)


def sampling() -> Panel:
    """What does tail sampling do?"""
    text = (
        "Trajectories that wait because nothing has spoken for them yet, and those that were dropped, since the start of the Collector, because more waited than it "
        "may hold: OTELCOL_WAITING_TRACES is too small. What was decided in time, either way, is in neither."
    )
    # Its own counter of drops counts, with this sampling strategy, traces that were kept, too.
    waiting = _tail_sampling("sampling_traces_on_memory")
    come, decided = _tail_sampling("new_trace_id_received"), _tail_sampling("global_count_traces_sampled")
    dropped = f"{come} - on (instance) ({decided} or on (instance) {come} * 0) - on (instance) {waiting}"
    return panels.timeseries(
        "Collector: tail sampling",
        text,
        "short",
        query(waiting, "{{instance}} waiting"),
        query(dropped, "{{instance}} dropped, had no room"),
        low=0,
    )


def _tail_sampling(name: str) -> str:
    """Return a number of the sampler since the Collector began, with or without `_total`."""
    return f'sum by (instance) ({{__name__=~"otelcol_processor_tail_sampling_{name}(_total)?"}})'


def memory() -> Panel:
    """How much memory does the Collector take?"""
    text = "Resident memory of each Collector. At its limit it refuses."
    target = grouped("max", "instance", '{__name__=~"otelcol_process_memory_rss(_bytes)?"}')
    return panels.timeseries("Collector: memory", text, "bytes", target, low=0)


def storage() -> Panel:
    """How much does Prometheus hold?"""
    text = "Series in Prometheus's memory, of everything that it scrapes, and exemplars that it keeps."
    targets = [
        grouped("max", "instance", "prometheus_tsdb_head_series", "series"),
        grouped("max", "instance", "prometheus_tsdb_exemplar_exemplars_in_storage", "exemplars"),
    ]
    return panels.timeseries("Prometheus: series", text, "short", *targets, low=0)


def rules() -> Panel:
    """Do the rules work?"""
    text = "Evaluations of rules that failed, and scrapes that were thrown away since they had too many samples, for a second. Both should be 0."
    failed = grouped("sum", "instance", "rate(prometheus_rule_evaluation_failures_total[rate])", "rules")
    big = grouped("sum", "instance", "rate(prometheus_target_scrapes_exceeded_sample_limit_total[rate])", "scrapes")
    return panels.timeseries("Prometheus: failures", text, "short", failed, big, low=0)


BOARD: Final = Board(
    name="pipeline",
    title="verl / Pipeline health",
    text="Does everything that is measured arrive, and what does measuring cost?",
    rows=(
        Row("verl-otel", (overhead, budget, exporting, dropped, errors)),
        Row("Scrapes", (targets, scrapes, series)),
        Row("Collector", (received, refused, sent, queues, sampling, memory)),
        Row("Prometheus", (storage, rules)),
    ),
    variables=(
        variables.data_source,
        *variables.RUNS,
        variables.role,
        variables.instance,
    ),
)
