# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is evaluated as Grafana does: variables, macros, windows, tables; and recorded runs as scrapes."""

import json

import pytest

from dashboards.evaluation import answers, interpolation, recording
from dashboards.evaluation.client import Prometheus

PERIOD = interpolation.Period(0, 3600, 10)


def values(**chosen):
    return interpolation.Values(chosen, {"run": ".*"}, PERIOD, frozenset({"run"}))


@pytest.mark.parametrize(
    ("text", "chosen", "expected"),
    [
        ('x{a=~"$run"}', ("r1",), 'x{a=~"r1"}'),
        ('x{a=~"$run|"}', ("r.1",), 'x{a=~"r\\\\.1|"}'),
        ('x{a=~"$run"}', (), 'x{a=~"()"}'),
        ('x{a=~"$run"}', ("r1", "r.2"), 'x{a=~"(r1|r\\\\.2)"}'),
        ('x{a=~"${run}"}', ("$__all",), 'x{a=~".*"}'),
        ("${run:pipe}", ("r.1", "r-2"), "r.1|r-2"),
        ("/d/x?${run:queryparam}", ("r1", "r2"), "/d/x?var-run=r1&var-run=r2"),
        ("rate(x[$__rate_interval])", ("r1",), "rate(x[40s])"),
        ("increase(x[$__range])", ("r1",), "increase(x[3600s])"),
        ('label_replace(x, "a", "$1", "b", "(.+)")', ("r1",), 'label_replace(x, "a", "$1", "b", "(.+)")'),
        ("$other and $runner", ("r1",), "$other and $runner"),
    ],
)
def test_variables_are_filled_in_as_grafana_does(text, chosen, expected):
    """One value as it is, several as an expression, all as the variable says; what is unknown stays."""
    assert values(run=chosen).fill(text) == expected


def test_a_pattern_stays_a_pattern():
    """The value of a variable that has one value is no text to be matched: that of GPUs is a pattern of names."""
    assert values(gpus=("hw_.+|verl_.+",)).fill('{__name__=~"$gpus"}') == '{__name__=~"hw_.+|verl_.+"}'


@pytest.mark.parametrize(("hours", "expected"), [(0.1, "5m"), (1, "5m"), (3, "15m"), (24, "2h"), (24 * 30, "1d")])
def test_the_window_grows_with_the_time_range(hours, expected):
    """`auto` is a twentieth of what is looked at, of the widths on offer, at least five minutes."""
    variable = {
        "type": "interval",
        "query": "5m,15m,30m,1h,2h,6h,12h,1d",
        "auto_count": 20,
        "auto_min": "5m",
        "name": "window",
    }
    board = {"templating": {"list": [variable]}}
    period = interpolation.Period(0, hours * 3600)
    assert interpolation.evaluate(board, Prometheus("http://127.0.0.1:1"), period, {}).chosen["window"] == (expected,)


def test_merge_joins_rows_by_what_they_share():
    """Rows of several queries meet where their labels are equal; a run without one of the values stays a row."""
    rows = [
        {"Time": 1.0, "run": "a", "project": "p", "Value #A": 1.0},
        {"Time": 1.0, "run": "b", "project": "p", "Value #A": 1.0},
        {"Time": 1.0, "run": "a", "Value #B": 7.0},
    ]
    merged = answers._merge(rows, {})
    assert merged == [
        {"Time": 1.0, "run": "a", "project": "p", "Value #A": 1.0, "Value #B": 7.0},
        {"Time": 1.0, "run": "b", "project": "p", "Value #A": 1.0},
    ]


def _line(name, kind, point):
    metric = {"name": name, "unit": "s" if kind == "histogram" else "", kind: {"dataPoints": [point]}}
    attributes = [
        {"key": key, "value": {"stringValue": value}}
        for key, value in {
            "service.name": "verl",
            "service.instance.id": "r/trainer-0",
            "verl.role": "trainer",
            "verl.run.id": "r",
        }.items()
    ]
    return json.dumps(
        {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": [metric]}]}]}
    )


def test_a_run_directory_becomes_scrapes(tmp_path):
    """Each series has the labels of the contract and, at every scrape, the value that it had then."""
    points = [{"timeUnixNano": str(int(time * 1e9)), "asDouble": value} for time, value in ((10.5, 1.0), (12.2, 2.0))]
    (tmp_path / "metrics-trainer-0.jsonl").write_text(
        "".join(_line("verl.average_reward", "gauge", point) + "\n" for point in points) + '{"resourceMetrics": [{"cut'
    )
    found = recording.read_run(tmp_path)
    (key,) = found
    assert key.name == "verl_average_reward"
    assert dict(key.labels) == {"job": "verl", "instance": "r/trainer-0", "verl_role": "trainer", "verl_run_id": "r"}
    out = tmp_path / "out.txt"
    assert recording.write([found], out, 1.0) == (11.0, 13.0)
    assert [line.rpartition("} ")[2] for line in out.read_text().splitlines()[:-1]] == [
        "1 11.000",
        "1 12.000",
        "2 13.000",
    ]
    assert out.read_text().endswith("# EOF\n")


def test_histograms_become_cumulative_buckets(tmp_path):
    """OTLP counts each bucket for itself, Prometheus all below it."""
    point = {
        "timeUnixNano": "1000000000",
        "explicitBounds": [1, 2.5],
        "bucketCounts": ["1", "2", "3"],
        "count": "6",
        "sum": 9.0,
    }
    (tmp_path / "metrics-trainer-0.jsonl").write_text(_line("verl.step.duration", "histogram", point) + "\n")
    found = {
        (key.name, dict(key.labels).get("le")): points[0].value for key, points in recording.read_run(tmp_path).items()
    }
    assert found == {
        ("verl_step_duration_seconds_bucket", "1.0"): 1,
        ("verl_step_duration_seconds_bucket", "2.5"): 3,
        ("verl_step_duration_seconds_bucket", "+Inf"): 6,
        ("verl_step_duration_seconds_count", None): 6,
        ("verl_step_duration_seconds_sum", None): 9.0,
    }
