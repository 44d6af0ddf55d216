# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The data of a page: sums are those of the explanation, the size is bounded, nothing in it can leave its script element."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.page import explanations
from verl_otel.analysis.model import Activity, Cost, DeviceTime, Segment, Series, Verdict
from verl_otel.cli import explain
from verl_otel.cli.documents import explain as document
from verl_otel.cli.page import data
from verl_otel.semconv.kinds import GPU_CAUSES


@pytest.mark.full
def test_the_columns_of_a_step_sum_up_to_it():
    """Phases with the time in none, and the groups of the critical path, are the step's seconds; the ledger is the GPUs' time."""
    run = explanations.make(30, gpus=4)
    found = data.build(run)["steps"]
    for index, step in enumerate(run.steps):
        for key, whole in (("phases", step.seconds), ("groups", step.seconds), ("gpu", 4 * step.seconds)):
            columns = found[key]["columns"]
            assert math.isclose(sum(each[index] for each in columns) / found["unit"], whole, abs_tol=1e-4), key


def test_more_keys_than_fit_share_the_last_column():
    """A hundred phases have twelve columns and one for the rest; the sum stays."""
    run = explanations.make(3, gpus=1, members=2, scalars=0)
    step = run.steps[0]
    many = tuple(step.phases[0]._replace(key=f"p{index}", seconds=index / 1e3) for index in range(100))
    found = data.build(run._replace(steps=(step._replace(phases=many, no_phase=0.0),)))["steps"]
    assert found["phases"]["keys"][-1] == "other"
    assert len(found["phases"]["keys"]) == data.KEYS + 1
    assert sum(each[0] for each in found["phases"]["columns"]) == round(sum(range(100)) / 1e3 * found["unit"])


@pytest.mark.full
@given(st.lists(st.dictionaries(st.sampled_from(sorted(GPU_CAUSES)), st.integers(0, 10**13)), min_size=1, max_size=300))
def test_the_ledger_sums_all_gpus_and_lists_the_least_productive(windows):
    """The total is over all GPUs, however many are listed; who is listed is no more productive than who is not."""
    devices = [DeviceTime(f"gpu{index}", each) for index, each in enumerate(windows)]
    found = data.of_devices(devices, data.Names(), 20)
    assert found["count"] == len(devices)
    assert len(found["rows"]) == min(20, len(devices))
    for place, cause in enumerate(GPU_CAUSES):
        assert abs(found["total"][place] - sum(each.get(cause, 0) for each in windows) / 1000) <= 1


def test_the_page_and_explain_give_the_same_share_of_wasted_tokens():
    """Tokens that were trained on without a signal are wasted, but they were generated only once."""
    run = explanations.make(3)
    costs = ({"zero_variance": 600}, {"zero_variance": 200, "dropped": 1000}, {"truncated": 200})
    steps = (step._replace(cost=Cost(60.0, 1000, wasted)) for step, wasted in zip(run.steps, costs, strict=True))
    run = run._replace(steps=tuple(steps), unused={"aborted": 1000})
    page, explained = data.build(run)["cost"], document.make_explain(run, run.steps).run.cost
    assert page["generated"] == explained.generated_tokens == 5000
    assert dict(page["wasted"]) == explained.wasted_tokens
    assert sum(tokens for _, tokens in page["wasted"]) / page["generated"] == 0.6
    assert "800 of 5,000 tokens (16%) trained on without a signal" in explain.render(run)


def test_the_page_and_explain_give_the_same_saving_of_a_step():
    """Two verdicts on different phases add up in both."""
    run = explanations.make(8, gpus=1)
    (verdict,) = run.steps[6].verdicts
    other = Verdict(7, verdict.step_seconds, "phase", "update_actor", "worker", "update_actor", 2.0, 2.0)
    steps = list(run.steps)
    steps[6] = steps[6]._replace(verdicts=(verdict, other))
    run = run._replace(steps=tuple(steps))
    columns = data.build(run)["steps"]
    assert columns["saved"][6] / columns["unit"] == pytest.approx(verdict.saved + 2.0)
    assert f"{verdict.saved + 2.0:.2f} s longer than usual" in explain.render(run)
    assert "1 of 8 steps took longer than usual, by" in explain.render(run)


def test_verdicts_of_all_steps_are_counted_where_only_some_are_shown(monkeypatch):
    """The sums by cause and the number of verdicts are those of the run, as in explain."""
    run = explanations.make(40, gpus=1, members=2, scalars=0, slow=range(3, 40, 2))
    whole = data.build(run)["verdicts"]
    rows = data.choose_rows
    monkeypatch.setattr(data, "choose_rows", lambda steps: rows(steps, 10))
    found = data.build(run)["verdicts"]
    assert len(found["rows"]) < len(whole["rows"]) == 19
    assert (found["count"], found["causes"]) == (whole["count"], whole["causes"])


def test_start_up_and_slow_steps_are_marked():
    """The page knows which steps contain start-up and which are slow without a verdict."""
    run = explanations.with_slow_step(explanations.with_start_up(explanations.make(12, gpus=1), 200.0), 5, 40.0)
    columns = data.build(run)["steps"]
    assert (columns["start_up"], columns["unexplained"]) == ([0], [4])
    assert data.build(explanations.make(12, gpus=1))["steps"]["start_up"] == []


def test_an_interrupted_step_has_not_failed():
    """The page has the word of the commands for how a step ended."""
    run = explanations.make(4, gpus=1)
    errors = {1: "ValueError", 2: "KeyboardInterrupt"}
    steps = [step._replace(failed=place in errors, error=errors.get(place, "")) for place, step in enumerate(run.steps)]
    columns = data.build(run._replace(steps=tuple(steps)))["steps"]
    assert columns["failed"] == [[1, "FAILED"], [2, "INTERRUPTED"]]


def test_the_path_of_a_step_has_no_gap_in_the_page():
    """Rounded to microseconds, each part still begins where the one before ends, and they sum up to the step."""
    run = explanations.make(4)
    for index, step in enumerate(run.steps):
        path = data.build(run)["details"][str(index)]["path"]
        assert path[0][0] == 0
        assert all(one[0] + one[1] == other[0] for one, other in itertools.pairwise(path))
        assert path[-1][0] + path[-1][1] == pytest.approx(step.seconds * 1e6, abs=1)


@pytest.mark.full
def test_a_long_run_stays_small(big):
    """10,000 steps of 1,000 trajectories with 150 scalars: below 5 MB, some hundred steps with their waterfalls.

    Whoever follows the first link finds one that has everything.
    """
    text = data.encode(data.build(big))
    found = json.loads(text)
    assert len(text) < 4_900_000
    assert found["kept"] == 10_000
    assert len(found["details"]) > 100
    assert sum(each["whole"] for each in found["details"].values()) > 20
    assert found["details"][str(found["verdicts"]["rows"][0][0])]["whole"]


@pytest.mark.full
@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
    )
)
def test_nothing_in_the_data_ends_its_script_element(thing):
    """Whatever the names of a run are: the block holds no < > & and nothing but ASCII, and says the same when it is parsed."""
    text = data.encode(thing)
    assert not set(text) & set("<>&")
    assert text.isascii()
    assert json.loads(text) == thing


def test_numbers_that_json_does_not_know_are_none():
    """NaN and infinity of scalars, scores and events do not break the page."""
    run = explanations.make(4, gpus=1, scalars=0)
    odd = Series("verl.odd", (), tuple(step.end_ns for step in run.steps), (float("nan"), 1.0, float("inf"), 2.0))
    slow = run.slowest[0]._replace(score=float("nan"))
    crash = explanations.troubled(run).events[0]._replace(detail={"a": float("inf"), "id": 2**100})
    found = data.build(run._replace(series=(*run.series, odd), slowest=(slow,), events=(crash,)))
    (line,) = (each for each in found["scalars"]["lines"] if each[0] == "verl.odd")
    assert line[3:] == [2, 4, [None, 1, None, 2]]
    assert found["slowest"][0]["score"] is None
    assert found["events"][0][3] == {"a": None, "id": str(2**100)}
    assert json.loads(data.encode(found)) == found


def test_lines_over_steps_share_their_axis():
    """A scalar that is logged with each step is drawn over the numbers of steps, any other over seconds."""
    run = explanations.make(10, gpus=1, scalars=8)
    other = Series("verl.other", (("a", "b"),), (run.start_ns + 10**9, run.start_ns + 3 * 10**9), (1.0, 2.0))
    found = data.build(run._replace(series=(*run.series, other)))["scalars"]
    assert found["axes"] == [[True, *range(1, 11)], [False, 1, 3]]
    assert found["lines"][-1][:2] == ["verl.other", "a=b"]


@pytest.mark.full
def test_events_are_bounded():
    """A crash record of any size becomes a small one."""
    run = explanations.make(2, gpus=1, scalars=0)
    event = explanations.troubled(run).events[0]
    deep = {"stack": "line\n" * 10**5, "list": list(range(10**5)), "deep": {"a": {"b": {"c": {"d": {"e": 1}}}}}}
    assert len(data.encode(data.of_events(run._replace(events=(event._replace(detail=deep),) * 1000)))) < 10**7
    assert len(data.encode(data.plain(deep))) < 30_000


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
    """A path of at most so many parts; they touch, reach from its start to its end, and stand for all its parts."""
    path = path_of(lengths)
    kept = data.shorten(path, limit)
    assert len(kept) <= max(limit, 1)
    assert (kept[0].start_ns, kept[-1].end_ns) == (path[0].start_ns, path[-1].end_ns)
    assert all(one.end_ns == other.start_ns for one, other in itertools.pairwise(kept))
    assert sum(each.parts for each in kept) == len(path)


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=200, unique=True), st.integers(3, 60))
def test_the_longest_part_stays_as_it_is(lengths, limit):
    """Whoever looks for what took longest finds it with its own name and ends."""
    path = path_of(lengths)
    longest = max(path, key=lambda each: each.end_ns - each.start_ns)
    kept = data.shorten(path, limit)
    assert (longest, longest.start_ns, longest.end_ns, 1) in [tuple(each) for each in kept]


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
def test_a_thinned_line_stays_within_its_band(values, limit):
    """Each value lies between the minimum and the maximum of its point; what is no number is left out of them."""
    xs, rows = data.thin(list(range(len(values))), values, limit)
    assert len(xs) == len(rows[0]) <= limit or len(values) <= limit
    if len(rows) == 1:
        assert [each is None for each in rows[0]] == [not math.isfinite(each) for each in values]
        return
    means, least, most = rows
    for place, begin in enumerate(xs):
        end = xs[place + 1] if place + 1 < len(xs) else len(values)
        mine = [each for each in values[begin:end] if math.isfinite(each)]
        if not mine:
            assert means[place] is least[place] is most[place] is None
            continue
        for kept, exact in (
            (least[place], min(mine)),
            (most[place], max(mine)),
            (means[place], math.fsum(mine) / len(mine)),
        ):
            assert math.isclose(kept, exact, rel_tol=1e-4)


def test_each_step_has_a_row_until_there_are_too_many():
    """Above the limit the slowest of each few neighbours stands for them; the slowest of all is never lost."""
    steps = explanations.make(50, gpus=1, members=2, scalars=0).steps
    assert data.choose_rows(steps, 50) == list(range(50))
    kept = data.choose_rows(steps, 20)
    assert len(kept) <= 20
    assert max(range(50), key=lambda index: steps[index].seconds) in kept


def test_failed_and_held_steps_are_wanted_first_and_others_are_spread():
    """The order of detail: failed, held, and in between steps from all over the run; each once."""
    steps = list(explanations.make(64, gpus=1, members=2, scalars=0, slow=(30,)).steps)
    steps[50] = steps[50]._replace(failed=True)
    order = list(data.most_wanted(steps))
    assert sorted(order) == list(range(64))
    assert set(order[:3]) >= {50, 29}
    early = sorted(order[:24])
    assert max(other - one for one, other in itertools.pairwise(early)) <= 24


def test_steps_without_a_path_come_last():
    """Detail goes to steps of which there is any."""
    steps = explanations.make(20, gpus=1, members=2, scalars=0, whole=lambda number: number % 4 == 0).steps
    assert all(steps[index].path for index in list(data.most_wanted(steps))[:5])
