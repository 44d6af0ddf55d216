# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What users get for their own tests: the fixture `verl_otel_capture` and the context manager `capture`."""

import pytest

import verl_otel
from verl_otel.recording.state import RECORDER
from verl_otel.testing import capture


@verl_otel.reward("math")
def compute_score(data_source, solution, ground_truth):
    return float(solution == ground_truth)


def test_the_example_of_the_documentation(verl_otel_capture):
    """The fixture is there as soon as verl-otel is installed, and shows what was recorded."""
    compute_score("math", "4", "4")
    assert verl_otel_capture.span("verl.reward").attributes["verl.reward.score"] == 1.0
    assert verl_otel_capture.value("verl.reward.samples", verl_reward_bin="1") == 1


def test_two_tests_do_not_see_each_other(verl_otel_capture):
    """Each capture begins with nothing."""
    assert verl_otel_capture.spans == []
    assert verl_otel_capture.points == []


def test_spans_are_kept_in_the_order_in_which_they_ended():
    """All spans of the block are there, also those that were looked at before."""
    with capture() as captured:
        with verl_otel.span("a"):
            pass
        assert [span.name for span in captured.spans] == ["a"]
        with verl_otel.span("b"):
            pass
        assert [span.name for span in captured.spans] == ["a", "b"]
    assert [span.name for span in captured.spans] == ["a", "b"]


def test_the_latest_point_of_each_series_counts():
    """Of each series there is one point, with its latest value."""
    with capture() as captured:
        verl_otel.counter("testing.done").add(1)
        assert captured.value("testing.done") == 1
        verl_otel.counter("testing.done").add(2)
        assert captured.value("testing.done") == 3
        assert len(captured.points) == 1


@pytest.mark.parametrize("number", [0, 2])
def test_a_span_that_is_not_there_once_is_an_error(recorded, number):
    """Asking for one span when there is none or more says how many there are, and which."""
    for _ in range(number):
        with verl_otel.span("same"):
            pass
    with verl_otel.span("other"):
        pass
    with pytest.raises(LookupError, match=rf"{number} spans named 'same'.*other"):
        recorded.span("same")


def test_a_value_is_found_by_some_of_its_labels(recorded):
    """Labels that are not given may be anything, as long as one series fits."""
    done = verl_otel.counter("testing.labels")
    done.add(1, key="a", other="x")
    done.add(2, key="b", other="x")
    assert recorded.value("testing.labels", key="b") == 2
    with pytest.raises(LookupError, match=r"2 series 'testing\.labels'"):
        recorded.value("testing.labels", other="x")
    with pytest.raises(LookupError, match="0 series"):
        recorded.value("testing.labels", key="c")


def test_the_value_of_a_histogram_is_its_number_of_measurements(recorded):
    """The value of a histogram is how often it was recorded to."""
    verl_otel.histogram("testing.histogram").record(5)
    verl_otel.histogram("testing.histogram").record(7)
    assert recorded.value("testing.histogram") == 2


def test_captures_do_not_nest():
    """A capture inside another one, or beside a running session, is refused."""
    with capture(), pytest.raises(RuntimeError, match="already on"), capture():
        pass
    assert not RECORDER.on


def test_a_failing_test_switches_recording_off():
    """Recording is off after the block, also when it was left by an exception."""
    with pytest.raises(ValueError), capture():
        raise ValueError
    assert not RECORDER.on
    compute_score("math", "1", "1")
    with capture() as captured:
        assert captured.spans == []


def test_decorators_of_the_user_are_captured_in_any_form(verl_otel_capture):
    """Blocks, functions and instruments that were made before the test are captured in it."""
    with verl_otel.step(1), verl_otel.phase("gen"):
        compute_score("math", "1", "2")
    step, phase = verl_otel_capture.span("verl.step"), verl_otel_capture.span("verl.phase.gen")
    assert phase.parent_id == step.span_id
    assert verl_otel_capture.span("verl.reward").parent_id == phase.span_id
