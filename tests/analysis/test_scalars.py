# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Values of a run become series: by name and labels, in the order of time, bounded."""

from verl_otel.analysis.io.otlp_json import PointRecord
from verl_otel.analysis.scalars import Columns


def points(name, values, labels=(), begin=0):
    """Values at the times 0, 1, 2 and so on."""
    return [PointRecord(name, labels, begin + time, float(value)) for time, value in enumerate(values)]


def test_series_are_told_apart_and_sorted():
    """Each name with each set of labels is a series; its values are in the order of time, wherever they were written."""
    columns = Columns()
    columns.add(points("b", [1, 2], (("k", "x"),)), "trainer-0")
    columns.add(points("b", [3], (("k", "y"),)), "trainer-0")
    late = Columns()
    late.add(points("a", [7, 8], begin=5), "trainer-0")
    columns.merge(late)
    columns.add(points("a", [1, 2]), "trainer-0")
    found = [(each.name, each.labels, each.times_ns, each.values) for each in columns.series()]
    assert found == [
        ("a", (), (0, 1, 5, 6), (1.0, 2.0, 7.0, 8.0)),
        ("b", (("k", "x"),), (0, 1), (1.0, 2.0)),
        ("b", (("k", "y"),), (0,), (3.0,)),
    ]


def test_other_processes_have_their_name_as_a_label():
    """Values that every rank has are not mixed; those of the trainer are the run's own."""
    columns = Columns()
    for instance in ("trainer-0", "actor-0", "actor-1"):
        columns.add(points("x", [1]), instance)
    assert [each.labels for each in columns.series()] == [(), (("instance", "actor-0"),), (("instance", "actor-1"),)]


def test_series_of_the_same_times_share_them():
    """All scalars of one log carry one time: it is kept once."""
    columns = Columns()
    for name in "ab":
        columns.add(points(name, [1, 2, 3]), "trainer-0")
    first, second = columns.series()
    assert first.times_ns is second.times_ns


def test_a_long_series_is_thinned():
    """Of more values than are kept every second one goes, again and again; the first and the last stay."""
    columns = Columns(max_points=100)
    for begin in range(0, 1000, 10):
        part = Columns()
        part.add(points("x", range(begin, begin + 10), begin=begin), "trainer-0")
        columns.merge(part)
    (series,) = columns.series()
    assert 50 <= len(series.values) <= 101
    assert (series.values[0], series.values[-1]) == (0.0, 999.0)
    assert list(series.times_ns) == sorted(series.times_ns) == list(map(int, series.values))


def test_too_many_series_are_left_out_and_counted():
    """More series than are kept cost their values, which are counted."""
    columns, other = Columns(max_series=2), Columns()
    for name in "abc":
        columns.add(points(name, [1, 2]), "trainer-0")
    other.add(points("d", [1]), "trainer-0")
    columns.merge(other)
    assert [each.name for each in columns.series()] == ["a", "b"]
    assert columns.left_out == 3
