# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents of a page: numbers are those of the commands, the size is bounded, nothing in them can leave its script element."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.page import embedded, explanations
from verl_otel.analysis import reader
from verl_otel.analysis.model import Activity, Segment, Series
from verl_otel.cli import page
from verl_otel.cli.demo.command import RECORDED
from verl_otel.cli.page import assembly, data
from verl_otel.cli.page.document import order_steps


@pytest.fixture(scope="module")
def recorded():
    """A recorded run in which a tool was slow."""
    return reader.read([RECORDED / "slow-tool"])[0]


def test_steps_whose_device_time_is_not_known_are_asked_for_again(recorded):
    """Of steps that are shown as soon as they have ended it becomes known when no span of them can follow."""
    waiting = tuple(step._replace(next_ns=0) if step.number > 3 else step for step in recorded.steps)
    found = [data.list_steps(recorded._replace(steps=steps))["settled"] for steps in (waiting, recorded.steps)]
    assert found == [3, 5]


def test_a_file_holds_what_the_server_answers(recorded):
    """Run, steps, scalars and the detail of each step, by the addresses of the live page."""
    documents = embedded.read(page.render(recorded))
    assert documents["run"] == "slow-tool"
    described = json.loads(json.dumps(data.describe_run(recorded)))
    assert documents["runs/slow-tool"] == {**described, "read": 1, "age": None, "log": []}
    assert documents["runs/slow-tool/steps?first=0"]["seconds"] == list(data.list_steps(recorded)["seconds"])
    assert documents["runs/slow-tool/scalars"] == json.loads(json.dumps(data.list_scalars(recorded)))
    for index in range(8):
        described = json.loads(json.dumps(data.describe_step(recorded, index), default=list))
        assert documents[f"runs/slow-tool/steps/{index}"] == described


@pytest.mark.full
def test_the_columns_of_a_step_sum_up_to_it():
    """Phases with the time in none are the step's seconds; the ledger is the GPUs' time."""
    run = explanations.make(30, gpus=4)
    found = data.list_steps(run)
    for index, step in enumerate(run.steps):
        for key, whole in (("phases", step.seconds), ("gpu", 4 * step.seconds)):
            assert math.isclose(sum(column[index] for column in found[key].values()), whole, abs_tol=2e-3), key


def test_start_up_and_slow_steps_are_marked():
    """The page knows which steps contain start-up and which are slow without a verdict."""
    run = explanations.with_slow_step(explanations.with_start_up(explanations.make(12, gpus=1), 200.0), 5, 40.0)
    shown = data.describe_run(run)
    assert (shown["start_up"], shown["unexplained"]) == ([0], [4])
    assert data.describe_run(explanations.make(12, gpus=1))["start_up"] == []


def test_only_what_is_unusual_is_a_finding():
    """A healthy run says where its slowest step spent its time, which needs no attention."""
    (healthy, *_), (held, *_) = (
        data.describe_run(explanations.make(12, gpus=1, **slow))["findings"] for slow in ({"slow": ()}, {})
    )
    assert (healthy["is_finding"], healthy["saved"], healthy["longer"]) == (False, None, None)
    assert (held["is_finding"], held["index"]) == (True, 6)
    assert held["saved"] > 20


def test_the_figure_of_a_finding_is_what_findings_are_ordered_by():
    """By how much the step took longer, whatever one of its causes cost: the same figure beside the finding and of the step."""
    run = explanations.make(12, gpus=1, slow=(5, 9))
    steps = list(run.steps)
    (verdict,) = steps[8].verdicts
    steps[8] = steps[8]._replace(verdicts=(verdict._replace(saved=verdict.saved + 60),))
    shown = data.describe_run(run._replace(steps=tuple(steps)))
    assert [line["index"] for line in shown["findings"]] == sorted(
        (4, 8), key=lambda index: -shown["longer"][str(index)]
    )
    assert [line["longer"] for line in shown["findings"]] == [
        pytest.approx(lost, abs=1e-4) for lost in shown["longer"].values()
    ]


def test_an_interrupted_step_has_not_failed():
    """The page has the word of the commands for how a step ended."""
    run = explanations.make(4, gpus=1)
    errors = {1: "ValueError", 2: "KeyboardInterrupt"}
    steps = [step._replace(failed=place in errors, error=errors.get(place, "")) for place, step in enumerate(run.steps)]
    columns = data.list_steps(run._replace(steps=tuple(steps)))
    assert columns["failed"] == ["", "FAILED", "INTERRUPTED", ""]


@pytest.mark.full
def test_a_long_run_stays_small(big):
    """10,000 steps of 1,000 trajectories with 150 scalars: below 5 MB, some hundred steps with their waterfalls."""
    text = page.render(big)
    assert len(text) < 5_000_000
    documents = embedded.read(text)
    assert documents[f"runs/{big.run_id}/steps?first=0"]["all"] == 10_000
    detailed = [address for address in documents if "/steps/" in address]
    assert len(detailed) > 100
    (first, *_) = documents[f"runs/{big.run_id}"]["findings"]
    assert f"runs/{big.run_id}/steps/{first['index']}" in detailed


@pytest.mark.full
@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
    )
)
def test_nothing_in_the_data_ends_its_script_element(thing):
    """Whatever the names of a run are: the block holds no < > & and nothing but ASCII, and says the same when it is parsed."""
    text = assembly.encode(thing)
    assert not set(text) & set("<>&")
    assert text.isascii()
    assert json.loads(text) == thing


def test_numbers_that_json_does_not_know_are_none():
    """NaN and infinity of scalars, scores and events do not break the page."""
    run = explanations.make(4, gpus=1, scalars=0)
    odd = Series("verl.odd", (), tuple(step.end_ns for step in run.steps), (float("nan"), 1.0, float("inf"), 2.0))
    slow = run.slowest[0]._replace(score=float("nan"))
    crash = explanations.troubled(run).events[0]._replace(detail={"a": float("inf"), "id": 2**100})
    run = run._replace(series=(*run.series, odd), slowest=(slow,), events=(crash,))
    (line,) = data.list_scalars(run, ["verl.odd"])
    described = data.describe_run(run)
    assert line["y"] == [None, 1, None, 2]
    assert described["slowest"][0]["score"] is None
    assert described["explain"]["events"][0]["detail"] == {"a": None, "id": str(2**100)}
    json.dumps(described, allow_nan=False)


def test_lines_are_over_steps_where_these_are_known():
    """A scalar that is logged with each step is drawn over the numbers of steps, any other over seconds."""
    run = explanations.make(10, gpus=1, scalars=8)
    other = Series("verl.other", (("a", "b"),), (run.start_ns + 10**9, run.start_ns + 3 * 10**9), (1.0, 2.0))
    lines = data.list_scalars(run._replace(series=(*run.series, other)))
    assert (lines[0]["by_steps"], lines[0]["x"]) == (True, list(range(1, 11)))
    assert (lines[-1]["by_steps"], lines[-1]["x"], lines[-1]["labels"]) == (False, [1, 3], {"a": "b"})


@pytest.mark.full
def test_a_document_is_bounded():
    """A crash record of any size becomes a small one."""
    deep = {"stack": "line\n" * 10**5, "list": list(range(10**5)), "deep": {"a": {"b": {"c": {"d": {"e": 1}}}}}}
    assert len(json.dumps(data.clean(deep))) < 40_000


KINDS = ("decode", "tool", "worker")


def path_of(lengths):
    """A critical path of parts of these lengths."""
    at, found = 1_000, []
    for index, length in enumerate(lengths):
        found.append(Segment(at, at + length, KINDS[index % 3], f"n{index}"))
        at += length
    return found


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200), st.integers(3, 60))
def test_a_shortened_path_has_the_same_ends_and_no_gap(lengths, limit):
    """A path of at most so many parts; they touch, and reach from its start to its end."""
    path = path_of(lengths)
    kept = data.shorten(path, limit)
    assert len(kept) <= max(limit, 1)
    assert (kept[0].start_ns, kept[-1].end_ns) == (path[0].start_ns, path[-1].end_ns)
    assert all(one.end_ns == other.start_ns for one, other in itertools.pairwise(kept))


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=200, unique=True), st.integers(3, 60))
def test_the_longest_part_stays_as_it_is(lengths, limit):
    """Whoever looks for what took longest finds it with its own name and ends."""
    path = path_of(lengths)
    longest = max(path, key=lambda each: each.end_ns - each.start_ns)
    assert longest in data.shorten(path, limit)


@pytest.mark.full
@given(st.lists(st.integers(0, 1000), max_size=80), st.integers(1, 20))
def test_the_longest_activities_stay_in_their_order(lengths, limit):
    """As many activities as fit; none that is left out is longer than one that is kept."""
    every = [Activity("tool", "t", "a", at, at + length) for at, length in enumerate(lengths)]
    kept = data.choose_longest(every, limit)
    assert kept == [each for each in every if each in kept][: len(kept)]
    assert len(kept) == min(limit, len(every))
    left = sorted(each.end_ns - each.start_ns for each in every)[: len(every) - len(kept)]
    assert not left or max(left) <= min(each.end_ns - each.start_ns for each in kept)


@pytest.mark.full
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=300), st.integers(1, 50))
def test_a_thinned_line_has_the_means_of_neighbours(values, limit):
    """Each point is the mean of its neighbours; what is no number is left out of it."""
    xs, means = data.thin(list(range(len(values))), values, limit)
    assert len(xs) == len(means) <= limit
    for place, begin in enumerate(xs):
        end = xs[place + 1] if place + 1 < len(xs) else len(values)
        mine = [each for each in values[begin:end] if math.isfinite(each)]
        if not mine:
            assert means[place] is None
        else:
            assert math.isclose(means[place], math.fsum(mine) / len(mine), rel_tol=1e-4, abs_tol=1e-300)


def test_failed_and_held_steps_are_wanted_first_and_others_are_spread():
    """The order of detail: failed, held, and in between steps from all over the run; each once."""
    steps = list(explanations.make(64, gpus=1, members=2, scalars=0, slow=(30,)).steps)
    steps[50] = steps[50]._replace(failed=True)
    order = list(order_steps(steps))
    assert sorted(order) == list(range(64))
    assert set(order[:3]) >= {50, 29}
    early = sorted(order[:24])
    assert max(other - one for one, other in itertools.pairwise(early)) <= 24


def test_steps_without_a_path_come_last():
    """Detail goes to steps of which there is any."""
    steps = explanations.make(20, gpus=1, members=2, scalars=0, whole=lambda number: number % 4 == 0).steps
    assert all(steps[index].path for index in list(order_steps(steps))[:5])
