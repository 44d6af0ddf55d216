# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0

import itertools
import re
from pathlib import Path

import pytest

import verl_otel
from verl_otel._internal import error_boundary
from verl_otel.model import Instrument, Point, cut
from verl_otel.prometheus_names import label_name
from verl_otel.recording import collection, series
from verl_otel.recording.series import MAX_SERIES, Counter, Histogram, bound_labels
from verl_otel.semconv.metric_names import MAX_LABEL_BYTES, MAX_LABELS

_number = itertools.count()


@pytest.fixture
def fresh():
    """Return a metric name that nobody has used in this process."""
    return f"test.registry.{next(_number)}"


def find(kind, name, labels=()):
    return series.find(kind, Instrument(name, "counter", "", ""), labels, (1.0,))


@pytest.mark.full
@pytest.mark.parametrize("more", [0, 1, 300])
def test_too_many_label_values_become_other(no_series, recorded, fresh, more):
    """200 sets of labels have their own series; all that come later share one whose labels are `other`."""
    done = verl_otel.counter(fresh)
    for number in range(MAX_SERIES + more):
        done.add(1, key=f"value {number}", second=number)
    done.add(1, key="value 0", second=0)
    points = {point.labels: point.value for point in recorded.points if point.instrument.name == fresh}
    other = (("key", "other"), ("second", "other"))
    assert len(points) == MAX_SERIES + (more > 0)
    assert points.get(other, 0) == more
    assert points[("key", "value 0"), ("second", "0")] == 2
    assert sum(points.values()) == MAX_SERIES + more + 1


@pytest.mark.full
def test_too_many_label_names_are_bounded(no_series, recorded, fresh):
    """An instrument whose label names are different at every call does not grow without bound, either."""
    done = verl_otel.counter(fresh)
    for number in range(5 * MAX_SERIES):
        done.add(1, **{f"key_{number}": "value"})
    points = [point for point in recorded.points if point.instrument.name == fresh]
    assert len(points) <= 2 * MAX_SERIES
    assert sum(point.value for point in points) == 5 * MAX_SERIES


@pytest.mark.full
def test_too_many_names_are_bounded(no_series, recorded, fresh, monkeypatch, caplog):
    """Beyond a number of names nothing new is recorded, which is said once; what was there goes on, and so does the catalogue."""
    monkeypatch.setattr(series._Registry, "kinds", {})
    monkeypatch.setattr(series, "MAX_METRICS", 3)
    error_boundary.reset()
    for number in (0, 1, 2, 3, 4, 2):
        verl_otel.counter(f"{fresh}.{number}").add(1)
    with verl_otel.timed(f"{fresh}.timer"), verl_otel.tool("python"):
        pass
    verl_otel.counter("verl.not.ours").bind().add(1)
    points = {point.instrument.name: point.value for point in recorded.points}
    assert points.pop("verl.tool.call.duration").samples == 1
    assert points == {f"{fresh}.0": 1, f"{fresh}.1": 1, f"{fresh}.2": 2}
    assert len(series._Registry.sizes) == len(series._Registry.kinds) == 4
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "verl-otel: more than 3 metrics of your own"
    ]


def test_a_series_that_is_broken_costs_itself_only(recorded, fresh, monkeypatch, swallow):
    """Where the fold of one series raises, the drain hands out the spans and all other series, and counts the failure."""
    error_boundary.reset()
    broken = find(Histogram, fresh)
    broken.record(1.0)
    fold = Histogram.fold
    monkeypatch.setattr(Histogram, "fold", lambda each: 1 / 0 if each is broken else fold(each))
    with verl_otel.step(1):
        verl_otel.counter(f"{fresh}.other").add(2)
    assert len(recorded.spans) == 1
    assert recorded.value(f"{fresh}.other") == 2
    assert error_boundary.counts()["fold"] > 0
    assert not broken.lock.is_held
    error_boundary.reset()


def test_a_metric_exists_once_it_has_a_series(fresh):
    """A metric exists in a process as soon as something there has recorded to it."""
    assert not series.exists(fresh)
    find(Counter, fresh)
    assert series.exists(fresh)


SHIPPED = [Path(__file__).parents[2] / "collector" / name for name in ("prometheus.yml", "compose.yaml")]
LONG = ["x" * 5000, "\u20ac" * 5000, "\U0001f600" * 5000, "\ud800" * 5000, "x" + "\u20ac" * 5000]


def shipped(name):
    """Return the lowest value of a limit in the scrape jobs that we ship."""
    return min(int(each) for path in SHIPPED for each in re.findall(rf"{name}: (\d+)", path.read_text()))


@pytest.fixture
def labels_of(recorded):
    """Return the labels of every point of a metric."""
    return lambda name: [dict(point.labels) for point in recorded.points if point.instrument.name == name]


def check(labels):
    assert len(labels) <= shipped("label_limit") / 2
    for name, value in labels.items():
        assert len(value.encode("utf-8", "replace")) <= shipped("label_value_length_limit") / 2
        assert len(label_name(name)) <= shipped("label_value_length_limit") / 2
        assert not label_name(name).startswith("__")


@pytest.mark.parametrize("text", LONG, ids=["ascii", "three bytes", "four bytes", "surrogates", "mixed"])
def test_no_label_of_a_users_metric_is_longer_than_prometheus_takes(labels_of, text):
    """Whatever names and values a user gives to labels, Prometheus takes them with the limits that we ship."""
    verl_otel.counter("test.labels.counter").add(1, reason=text, **{text[:3000]: "value"})
    verl_otel.histogram("test.labels.histogram").record(1, **{f"label{number}": text for number in range(100)})
    verl_otel.gauge("test.labels.gauge").set(1, __name__=text, __address__="x")
    verl_otel.counter("test.labels.bound").bind(reason=text).add(1)
    for name in ("counter", "histogram", "gauge", "bound"):
        found = labels_of(f"test.labels.{name}")
        assert found
        for labels in found:
            check(labels)


@pytest.mark.parametrize("text", LONG, ids=["ascii", "three bytes", "four bytes", "surrogates", "mixed"])
def test_no_label_of_a_verb_is_longer_than_prometheus_takes(recorded, text):
    """Names of tools, models, agents, data sources and methods are cut before they become labels and names of spans."""
    with verl_otel.trajectory("uid", agent=text), verl_otel.llm(text, provider=text, operation=text):
        pass
    with verl_otel.tool(text), verl_otel.reward(text), verl_otel.update(text), verl_otel.phase(text):
        pass
    with verl_otel.span(text) as span:
        span.update_name(text)
    kind = type(text.encode("utf-8", "replace").decode()[:2000].replace("?", "q"), (Exception,), {})
    with pytest.raises(kind), verl_otel.tool("failing"):
        raise kind
    for point in recorded.points:
        check(dict(point.labels))
    assert all(len(span.name) <= 300 for span in recorded.spans)


def test_labels_of_points_that_are_made_as_a_whole_are_bounded(recorded, labels_of):
    """Points that do not come from a series, such as the scores of a validation, have bounded labels, too."""
    collection.add_points([Point(Instrument("test.points", "gauge", "", ""), (("source", "x" * 5000),), 1, 1, 1.0)])
    assert labels_of("test.points") == [{"source": "x" * MAX_LABEL_BYTES}]


def test_labels_within_the_limits_stay_as_they_are():
    """What Prometheus takes is not changed, and is the same object."""
    labels = (("name", "value"), ("other", "\u20ac" * (MAX_LABEL_BYTES // 3)))
    assert bound_labels(labels) is labels
    assert len(bound_labels(tuple((f"n{number}", "") for number in range(100)))) == MAX_LABELS


@pytest.mark.parametrize("text", LONG)
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 255, 256])
def test_text_is_cut_by_bytes_and_never_inside_a_character(text, most):
    """Cut text has at most so many bytes, is the beginning of the whole, and is not cut again."""
    made = cut(text, most)
    assert len(made.encode()) <= most
    assert text.encode("utf-8", "replace").startswith(made.encode())
    assert cut(made, most) == made
