# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is open now, what we cost, and what happens when an exporter cannot do its work."""

import logging
import urllib.request

import pytest

import verl_otel
from verl_otel import session
from verl_otel.session import self_metrics


def record(count, first=0):
    """Steps that take no time."""
    for number in range(first, first + count):
        with verl_otel.step(number):
            pass


def values(files, metric, **labels):
    """The values of a metric, in the order of time."""
    points = [point for point in files.points(metric) if labels.items() <= point.labels.items()]
    return [point.value for point in sorted(points, key=lambda point: point.time)]


def scrape():
    """The text of this process's /metrics after a drain."""
    session.flush()
    (exporter,) = (
        exporter for exporter in session.current_session().outputs.exporters if exporter.name == "prometheus"
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=60) as answer:
        return answer.read().decode()


def test_open_phases_are_counted_and_go_back_to_zero(start):
    """verl.phase.active is 1 while a phase is open and 0 afterwards; it does not vanish."""
    files = start(drain_interval=60)
    with verl_otel.step(1), verl_otel.phase("health_gen"):
        session.flush()
    session.flush()
    assert values(files, "verl.phase.active", **{"verl.phase": "health_gen"}) == [1, 0]


def test_a_value_that_stays_is_written_once(start):
    """What has not changed since the last collection is in the file already."""
    files = start(drain_interval=60)
    with verl_otel.step(1), verl_otel.phase("gen"):
        session.flush()
        session.flush()
    assert values(files, "verl.phase.active") == [1]


def test_open_trajectories_are_counted_and_the_oldest_has_an_age(start):
    """verl.rollout.active and the age of the oldest follow what is open; both are 0 when all have ended."""
    files = start(drain_interval=60)
    outer = verl_otel.trajectory("a", 0).__enter__()
    with verl_otel.trajectory("b", 0):
        session.flush()
    session.flush()
    outer.close()
    session.flush()
    assert values(files, "verl.rollout.active") == [2, 1, 0]
    first, second, last = values(files, "verl.rollout.oldest.age")
    assert 0 < first < second
    assert last == 0


def test_our_own_failures_are_counted_by_place(start, swallow):
    """A failure of ours is swallowed, said once and counted in verl.otel.errors."""
    session.add_describer(lambda: {}["missing"])
    files = start()
    record(1)
    verl_otel.shutdown()
    assert files.names() == ["verl.step"]
    assert files.last("verl.otel.errors", reason="resource") == 1


@pytest.mark.full
def test_a_full_memory_drops_and_counts(start):
    """More spans than may wait are dropped and counted, the measurements are all there."""
    files = start(drain_interval=60, memory_mib=1)
    record(3000)
    verl_otel.shutdown()
    kept = len(files.names())
    assert 100 < kept < 3000
    assert files.last("verl.otel.spans.dropped", reason="memory") == 3000 - kept
    assert files.last("verl.training.steps") == 3000


@pytest.mark.parametrize("broken", ["otlp", "prometheus"])
def test_an_exporter_that_cannot_start_is_left_out_with_one_line(start, monkeypatch, caplog, broken):
    """An address of another machine or of no protocol costs that exporter, with one line in the log; the others work."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "pigeon://carrier")
    files = start(exporters=f"{broken},file", prometheus_host="192.0.2.1")
    record(5)
    verl_otel.shutdown()
    assert files.names() == ["verl.step"] * 5
    (line,) = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert line.startswith(f"verl-otel: exporter {broken} cannot start and is left out: ")


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("https://gateway:4318/v1/traces answers HTTP 401", "HTTP 401"),
        ("https://gateway:4317/v1/traces answers gRPC UNAUTHENTICATED", "gRPC UNAUTHENTICATED"),
        ("queue full", "queue full"),
        ("cannot write /runs/r1: no space", "cannot write /runs/r1"),
    ],
)
def test_the_reason_of_a_loss_is_a_label_without_addresses(start, reason, label):
    """What an exporter says of a loss is a label of few values: no address, no details."""
    start(exporters="file,prometheus")
    record(1)
    session.flush()
    session.current_session().outputs.exporters[0].drop("spans", 3, reason)
    assert f'verl_otel_spans_dropped_total{{reason="file: {label}"}} 3.0' in scrape()


def test_an_exporter_that_raises_keeps_no_other_from_working(start, swallow, monkeypatch, capsys, wait_for):
    """While one exporter raises whatever it likes, the others go on sending."""

    def fail(_self):
        raise RuntimeError("broken")

    monkeypatch.setattr("verl_otel.exporting.files.FileExporter.poll", fail)
    start(exporters="file,console", drain_interval=0.05)
    record(1)
    shown = []
    wait_for(lambda: shown.append(capsys.readouterr().err) or "verl.step" in "".join(shown))


@pytest.mark.full
def test_scrapes_beside_a_provider_of_the_user_say_nothing(run):
    """Where the user has a meter provider of his own, scraping ours writes nothing into the training's log."""
    code = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
metrics.set_meter_provider(MeterProvider())
import urllib.request
import verl_otel
from verl_otel import session
verl_otel.init(exporters="prometheus")
with verl_otel.step(1):
    pass
session.flush()
address = f"http://127.0.0.1:{session.current_session().outputs.exporters[0].port}/metrics"
assert b"verl_training_steps_total 1.0" in urllib.request.urlopen(address).read()
"""
    result = run(code)
    assert result.code == 0, result.err
    assert not result.err


def spend(meter, *shares, now=1000.0, seconds=5.0):
    """Have telemetry take shares of a core, each for ten minutes, measured every ten seconds."""
    for share in shares:
        for _ in range(60):
            meter.update(now, seconds)
            now, seconds = now + 10, seconds + 10 * share


def test_the_used_part_of_the_budget_is_that_of_the_last_minute(caplog):
    """A cost of before does not count; nothing is logged below the budget."""
    meter = self_metrics.OverheadMeter(0.01)
    spend(meter, 0.001, 0.009)
    assert meter.used == pytest.approx(0.9)
    meter.restart(0.0, 100.0)
    spend(meter, 0.002)
    assert meter.used == pytest.approx(0.2)
    assert caplog.records == []


def test_more_than_the_budget_is_logged_once(caplog):
    """One line has the cost, the limit and the setting; without a budget there is none, and no share of it is known."""
    meter, without = self_metrics.OverheadMeter(0.01), self_metrics.OverheadMeter(0)
    for each in (meter, without):
        spend(each, 0.02)
    (record,) = caplog.records
    assert all(word in record.getMessage() for word in ("2.0 %", "1.0 %", "VERL_OTEL_CPU_BUDGET"))
    assert (meter.used, without.used) == (pytest.approx(2.0), None)


@pytest.mark.full
def test_a_session_measures_its_overhead(start, wait_for, monkeypatch):
    """What recording, draining and exporting cost is in the metrics, and what part of the budget it is."""
    monkeypatch.setattr(self_metrics, "WINDOW_SECONDS", 0.1)
    files = start(drain_interval=0.05, metric_interval=50, cpu_budget=1e-6)

    def work():
        record(50)
        return files.last("verl.otel.budget.used")

    assert wait_for(work) > 1
    assert min(files.last("verl.otel.overhead", reason=reason) for reason in ("recording", "drain")) > 0
    assert files.last("verl.otel.export.duration", exporter="file")
