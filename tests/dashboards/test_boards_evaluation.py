# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is evaluated as Grafana does: variables, macros, windows, tables; and recorded runs as scrapes."""

import pytest

from dashboards.evaluation import interpolation
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
