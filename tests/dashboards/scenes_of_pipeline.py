# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Alerts of the way that the telemetry takes."""

from tests.dashboards.scenes import Says, Scene
from tests.dashboards.trainings import MINUTE, WORKER, Training, of_process, watch

GATEWAY = 'job="otelcol",instance="gateway"'
EXPORTER = {"instance": "gateway", "exporter": "otlp/tempo"}


def parts(*pieces):
    """Return values from (how many, value) pieces."""
    return [value for count, value in pieces for _ in range(count)]


def collector(name, values):
    return {f'{name}{{{GATEWAY},exporter="otlp/tempo",data_type="traces"}}': values}


def drops():
    """The counter of a process begins with its first loss."""
    name = f'verl_otel_spans_dropped_total{{{WORKER},reason="queue full"}}'
    return Scene(
        "verl-otel drops spans",
        {name: [None] * 40 + [50] * 81},
        {19: set(), 23: {"TelemetryDropped"}, 28: {"TelemetryDropped"}, 32: set()},
        (
            of_process(
                24,
                "TelemetryDropped",
                "actor_rollout_ref-0",
                "verl-otel dropped 50 spans or points in 10 minutes (queue full)",
                reason="queue full",
            ),
        ),
    )


def targets():
    """A worker cannot be reached, twice briefly and then for long; at last its run has ended, and nobody asks for it."""
    up = parts((20, 1), (4, 0), (16, 1), (20, 0), (20, 1), (61, 0))
    return Scene(
        "a target is down",
        {**watch([Training(MINUTE, finish=40 * MINUTE)], 70), f"up{{{WORKER}}}": up},
        {9: set(), 12: set(), 25: {"TargetDown"}, 29: {"TargetDown"}, 32: set(), 50: set(), 69: set()},
        (
            of_process(
                26,
                "TargetDown",
                "actor_rollout_ref-0",
                "Prometheus cannot reach it, though its run goes on",
                job="verl",
                verl_role="actor_rollout_ref",
            ),
        ),
    )


def queue():
    """At 60 % for long, then at 80 %: something is sent all the time."""
    return Scene(
        "a queue of the Collector fills",
        {
            **collector("otelcol_exporter_queue_size", parts((40, 600), (40, 800), (41, 100))),
            **collector("otelcol_exporter_queue_capacity", [1000] * 121),
            **collector("otelcol_exporter_sent_spans", [100 * n for n in range(121)]),
        },
        {19: set(), 24: set(), 27: {"CollectorQueueFilling"}, 39: {"CollectorQueueFilling"}, 42: set()},
        (Says(30, "CollectorQueueFilling", EXPORTER, "Collector gateway: the queue of otlp/tempo is 80% full"),),
    )


def losses():
    """One failed batch is over soon; a stream of them is not. With and without the suffix of counters, and two kinds at once."""
    failed = [*parts((20, 0), (20, 30)), *(30 + 30 * n for n in range(40)), *parts((41, 1200))]
    return Scene(
        "the Collector loses items",
        {
            **collector("otelcol_exporter_send_failed_spans", failed),
            **collector("otelcol_exporter_enqueue_failed_metric_points_total", failed),
            **collector("otelcol_exporter_sent_spans", [100 * n for n in range(121)]),
        },
        {9: set(), 14: set(), 19: set(), 30: {"CollectorDropping"}, 39: {"CollectorDropping"}, 47: set()},
        (Says(30, "CollectorDropping", EXPORTER, "Collector gateway: otlp/tempo refuses or loses 2 items per second"),),
    )


def outage():
    """Nothing is sent for three minutes, and later for twenty; an exporter with nothing to do sends nothing either."""
    sent = [*range(40), *parts((6, 40)), *range(40, 80), *parts((40, 80)), *range(80, 120), *parts((40, 120))]
    waiting = parts((40, 0), (6, 5), (40, 0), (40, 7), (80, 0))
    return Scene(
        "an exporter is down",
        {
            **collector("otelcol_exporter_queue_size", waiting),
            **collector("otelcol_exporter_queue_capacity", [1000] * 206),
            **collector("otelcol_exporter_sent_spans", sent),
        },
        {19: set(), 23: set(), 45: set(), 55: {"ExporterDown"}, 62: {"ExporterDown"}, 66: set(), 100: set()},
        (
            Says(
                58,
                "ExporterDown",
                EXPORTER,
                "Collector gateway: otlp/tempo has sent nothing for 5 minutes, and 7 items wait",
            ),
        ),
    )


def logs():
    """An exporter of logs always has something to send, and sends it."""
    return Scene(
        "an exporter sends logs",
        {
            **collector("otelcol_exporter_queue_size", [1] * 61),
            **collector("otelcol_exporter_queue_capacity", [1000] * 61),
            **collector("otelcol_exporter_sent_log_records", [10 * n for n in range(61)]),
        },
        {30: set(), 60: set()},
        (),
    )


def gone():
    return Scene(
        "the Collector is down",
        {f"up{{{GATEWAY}}}": parts((20, 1), (2, 0), (20, 1), (20, 0), (19, 1))},
        {9: set(), 11: set(), 15: set(), 24: {"CollectorDown"}, 30: {"CollectorDown"}, 32: set()},
        (
            Says(
                25,
                "CollectorDown",
                {"job": "otelcol", "instance": "gateway"},
                "Collector gateway: Prometheus cannot reach it; what runs send to it waits in their processes, then is lost",
            ),
        ),
    )


def pushed():
    """A pushed run has no `up`; killed, its series end for Prometheus some minutes later."""
    return Scene(
        "a pushed run is killed",
        watch([Training(MINUTE, kill=30 * MINUTE)], 50, pulled=False),
        {29: set(), 37: {"RunVanished"}},
    )


SCENES = [drops(), targets(), queue(), losses(), outage(), logs(), gone(), pushed()]
