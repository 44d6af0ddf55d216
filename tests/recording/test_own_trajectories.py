# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trajectories of an own loop have the score, tokens and turns of the spans inside of them; their step has their scores and durations."""

import asyncio
import contextlib
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from opentelemetry import context, propagate, trace

import verl_otel
from verl_otel.recording import collection, own_loop


@verl_otel.reward("math")
def compute_score(score):
    return score


@verl_otel.llm("toy")
def generate(prompt, response):
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": response}}


def roll_out(index, score):
    with verl_otel.trajectory("p", index) as span:
        compute_score(score)
    return span


def values(recorded, *names):
    return {name: recorded.value(f"verl.reward.score.{name}", verl_data_source="math") for name in names}


def test_a_trajectory_has_what_its_spans_say(recorded):
    """The last reward is its score; its tokens are those that were generated, after the prompt of the first call; turns are counted."""
    with verl_otel.trajectory("p", 0):
        for prompt in (10, 20):
            with verl_otel.turn():
                generate(prompt, 5)
        compute_score(0.5)
        compute_score(0.25)
    attributes = recorded.span("verl.trajectory").attributes
    names = ("verl.reward.score", "verl.turns", "verl.prompt.tokens", "verl.response.tokens", "verl.generated.tokens")
    assert [attributes[name] for name in names] == [0.25, 2, 10, 10, 10]
    assert recorded.value("verl.rollout.turns") == 1
    assert recorded.value("verl.rollout.tokens", verl_token_type="generated") == 10


@pytest.mark.parametrize(("marked", "calls"), [(0, 3), (2, 3), (3, 0)])
def test_a_turn_is_a_call_of_the_model(recorded, marked, calls):
    """Three calls are three turns, however many of them the loop marks as turns; marks count where no call is recorded."""
    with verl_otel.trajectory("p", 0):
        for number in range(3):
            with verl_otel.turn() if number < marked else nullcontext():
                if calls:
                    generate(10, 5)
    assert recorded.span("verl.trajectory").attributes["verl.turns"] == 3


def test_what_a_response_has_beyond_the_calls_are_answers_of_tools(recorded):
    """Where the loop returns its response, what no call of the model wrote is an observation."""
    with verl_otel.trajectory("p", 0) as span:
        generate(10, 5)
        generate(30, 4)
        span.set_attribute("verl.response.tokens", 20)
    points = [point for point in recorded.points if point.instrument.name == "verl.rollout.tokens"]
    assert {dict(point.labels)["verl.token.type"]: point.value for point in points} == {
        "prompt": 10,
        "generated": 9,
        "observation": 11,
    }


def label_sets(recorded, *metrics):
    """Return by metric the measurements of each value of ``verl.validate``; of histograms their number."""
    found = {metric: {} for metric in metrics}
    for point in recorded.points:
        if point.instrument.name in found:
            value = getattr(point.value, "samples", point.value)
            counts, label = found[point.instrument.name], dict(point.labels).get("verl.validate")
            counts[label] = counts.get(label, 0) + value
    return found


def test_a_validation_has_series_of_its_own(recorded):
    """Everything of a validation's trajectories has the label: calls, tokens, turns, tools and scores."""
    for validate in (False, True, True):
        with verl_otel.trajectory("p", 0, validate=validate):
            with verl_otel.turn():
                generate(10, 5)
            verl_otel.tool("python")(lambda: 1)()
            compute_score(0.5)
    compute_score(0.5)  # outside of a trajectory it is not known
    each = {"false": 1, "true": 2}
    expected = {
        "verl.rollout.trajectory.duration": each,
        "verl.rollout.turn.duration": each,
        "verl.rollout.turns": each,
        "verl.tool.call.duration": each,
        "gen_ai.client.inference.duration": each,
        "gen_ai.client.inference.usage.output_tokens": {"false": 5, "true": 10},
        "verl.reward.duration": {**each, None: 1},
        "verl.reward.samples": {**each, None: 1},
        "verl.rollout.tokens": {"false": 15, "true": 30},
        "verl.rollout.sequence.length": {"false": 2, "true": 4},
    }
    assert label_sets(recorded, *expected) == expected


@pytest.mark.parametrize("state", ["verl=tv", "vendor=1,verl=tv", "verl=tv,vendor=1"])
def test_another_process_knows_of_the_validation(recorded, state):
    """The trace state of a trajectory says that it is of a validation to the process that computes its score, beside the state of others."""
    carrier = {"traceparent": f"00-{7:032x}-{8:016x}-01", "tracestate": state}
    token = context.attach(propagate.extract(carrier))
    compute_score(0.5)
    context.detach(token)
    assert label_sets(recorded, "verl.reward.samples") == {"verl.reward.samples": {"true": 1}}


def test_a_trajectory_tells_other_processes_of_the_validation(recorded):
    """What a request of a trajectory carries differs for a validation."""
    states = []
    for validate in (False, True):
        carrier = {}
        with verl_otel.trajectory("p", 0, validate=validate):
            propagate.inject(carrier)
        states.append(carrier["tracestate"])
    assert states == ["verl=t", "verl=tv"]


def test_what_the_loop_sets_wins(recorded):
    """A score, a number of turns or tokens that the loop sets on the span stay."""
    with verl_otel.step(1), verl_otel.trajectory("p", 0) as span:
        with verl_otel.turn():
            generate(10, 5)
        compute_score(0.5)
        span.set_attribute("verl.reward.score", 1.0)
        span.set_attribute("verl.response.tokens", 7)
    attributes = recorded.span("verl.trajectory").attributes
    assert (attributes["verl.reward.score"], attributes["verl.response.tokens"]) == (1.0, 7)
    assert recorded.value("verl.average_reward") == 1.0
    assert recorded.value("verl.rollout.slowest.tokens", verl_token_type="response") == 7


def test_a_step_has_the_scores_of_its_trajectories(recorded):
    """At its end, and nothing of trajectories of another step, of validations and outside of steps."""
    roll_out(0, 100.0)
    with verl_otel.step(1):
        for index in range(3):
            roll_out(index, float(index))
        with verl_otel.trajectory("p", 9, validate=True):
            compute_score(50.0)
    assert values(recorded, "mean", "min", "max", "p50") == {"mean": 1.0, "min": 0.0, "max": 2.0, "p50": 1.0}
    assert recorded.value("verl.average_reward") == 1.0
    with verl_otel.step(2):
        roll_out(0, 5.0)
    assert values(recorded, "mean", "max") == {"mean": 5.0, "max": 5.0}
    assert recorded.value("verl.rollout.tail.duration", verl_aggregate="max") > 0
    assert recorded.value("verl.rollout.slowest.duration", verl_part="reward") > 0


def test_a_step_has_the_scores_of_what_it_consumed(recorded):
    """A step that consumes trajectories of an earlier step has theirs, and not those that began inside of it."""
    with verl_otel.step(1):
        earlier = [roll_out(index, 3.0) for index in range(2)]
        verl_otel.consume([roll_out(2, 1.0)])
    assert values(recorded, "mean", "max") == {"mean": 1.0, "max": 1.0}
    with verl_otel.step(2):
        roll_out(0, 9.0)
        verl_otel.consume(earlier)
    assert values(recorded, "mean", "max") == {"mean": 3.0, "max": 3.0}


def test_a_step_has_the_scores_of_trajectories_that_name_it(recorded):
    """In a thread without the context of the step a trajectory can name its number; one that names another step does not count."""

    def run(index, **keywords):
        with verl_otel.trajectory("p", index, **keywords):
            compute_score(float(index))

    with verl_otel.step(1), ThreadPoolExecutor(1) as pool:
        list(pool.map(lambda index: run(index, step=1), range(2)))
        list(pool.map(lambda index: run(index, step=2), [8]))
    assert values(recorded, "mean", "max") == {"mean": 0.5, "max": 1.0}


def test_trajectories_between_steps_belong_to_the_step_that_they_name(recorded):
    """The phase around them is in no step: it has not submitted them."""
    with verl_otel.step(1):
        roll_out(0, 9.0)
    with verl_otel.phase("gen"), verl_otel.span("prefetch"), verl_otel.trajectory("p", 1, step=2):
        compute_score(0.5)
    with verl_otel.step(2):
        pass
    assert submitters(recorded)[1] == []
    assert values(recorded, "mean") == {"mean": 0.5}


def stop_with(error, score):
    """A trajectory that an exception leaves after its score is known."""
    span = verl_otel.trajectory("p", 1)
    with contextlib.suppress(error), span:
        compute_score(score)
        raise error
    return span


def test_what_failed_or_was_cancelled_has_no_score(recorded):
    """A step waits for such a trajectory and does not train on it, unless it says that it does."""
    with verl_otel.step(1):
        roll_out(0, 1.0)
        stop_with(ValueError, 50.0)
        stop_with(asyncio.CancelledError, 50.0)
    assert values(recorded, "mean", "max") == {"mean": 1.0, "max": 1.0}
    with verl_otel.step(2):
        verl_otel.consume([stop_with(ValueError, 7.0)])
    assert values(recorded, "mean") == {"mean": 7.0}


def remote_step(number):
    """Return a context in which another process submits work for its step."""
    return trace.use_span(trace.NonRecordingSpan(trace.SpanContext(number, 1, is_remote=True)), end_on_exit=False)


def submitters(recorded):
    """Trace ids of the steps that trajectories are linked to, in the order of their indices."""
    spans = [span for span in recorded.spans if span.name == "verl.trajectory"]
    ordered = sorted(spans, key=lambda span: span.attributes["verl.rollout.index"])
    return [[link.trace_id for link in span.links] for span in ordered]


def test_trajectories_in_threads_belong_to_the_only_open_step(recorded):
    """A pool has no copy of the context (opentelemetry-python-contrib 1009): the step that is open is the one that waits for it."""
    with ThreadPoolExecutor(2) as pool, verl_otel.step(1) as step:
        list(pool.map(roll_out, range(2), (1.0, 0.0)))
    assert submitters(recorded) == [[step.get_span_context().trace_id]] * 2
    assert recorded.value("verl.average_reward") == 0.5


def test_trajectories_in_threads_are_not_guessed(recorded):
    """With two open steps, with none, or with a step of its own a trajectory in a thread is linked to nothing."""
    with ThreadPoolExecutor(1) as pool:
        with verl_otel.step(1), verl_otel.step(2):
            pool.submit(roll_out, 0, 1.0).result()
        pool.submit(roll_out, 1, 1.0).result()
        with verl_otel.step(3):
            pool.submit(lambda: verl_otel.trajectory("p", 2, step=4).__enter__().close()).result()
    assert submitters(recorded) == [[], [], []]


def test_without_telemetry_nothing_is_bound():
    """`bind_context` returns the function itself."""
    assert verl_otel.bind_context(len) is len


def run_elsewhere(step, *scores, begin=0):
    """Return what another process sends of trajectories with these scores, which were submitted by a step."""
    return [
        own_loop.Shared(
            step.get_span_context().trace_id,
            100 + index,
            own_loop.EndedTrajectory(1.0 + index, score, "math", {}, 0.0, f"p{index // 2}"),
        )
        for index, score in enumerate(scores, begin)
    ]


def look(recorded, *found):
    """Pass what looks in succession have found, each followed by a drain."""
    for each in found:
        own_loop.receive(each)
        recorded.refresh()


NOTHING_MORE = [[]] * own_loop.QUIET_LOOKS


@pytest.fixture
def shared(recorded):
    """Record in a process that gets trajectories of others."""
    own_loop.share(can=True)
    return recorded


def names(recorded):
    return {point.instrument.name for point in recorded.points}


def test_a_process_sends_what_it_ran_for_the_step_of_another_one(recorded):
    """It has a part of the trajectories of the step: what it would report of them is not of the step."""
    with remote_step(1):
        roll_out(0, 1.0)
    recorded.refresh()
    assert not names(recorded) & {
        "verl.reward.score.mean",
        "verl.average_reward",
        "verl.rollout.tail.duration",
        "verl.reward.groups",
    }
    ((step, _, trajectory),) = own_loop.take_outgoing()
    assert (step, trajectory.score, trajectory.source, trajectory.uid) == (1, 1.0, "math", "p")


def test_a_step_has_the_trajectories_of_all_processes(shared):
    """Some arrive before the step ends and others after it, and a group is spread over both: no statistic is made before all are there."""
    with verl_otel.step(1) as step:
        look(shared, run_elsewhere(step, 1.0, 1.0, 1.0))
    look(shared, [], run_elsewhere(step, 0.0, begin=3))
    assert "verl.average_reward" not in names(shared)
    look(shared, *NOTHING_MORE)
    assert shared.value("verl.average_reward") == 0.75
    assert values(shared, "mean", "min") == {"mean": 0.75, "min": 0.0}
    assert shared.value("verl.reward.groups", verl_outcome="signal") == 1
    assert shared.value("verl.reward.groups", verl_outcome="solved") == 1
    assert shared.value("verl.rollout.tail.duration", verl_aggregate="max") == 4.0


def test_a_step_that_consumed_has_what_it_consumed(shared):
    """Of the trajectories that others ran, and whichever step submitted them."""
    with verl_otel.step(1) as submitter:
        pass
    with verl_otel.step(2):
        verl_otel.consume([f"00-{100:032x}-{1:016x}-01"])
    look(shared, run_elsewhere(submitter, 1.0), *NOTHING_MORE)
    steps = [span for span in shared.spans if span.name == "verl.step"]
    (reward,) = [point for point in shared.points if point.instrument.name == "verl.average_reward"]
    assert reward.time_ns == steps[1].end_ns


def test_a_run_that_ends_before_all_arrived_reports_no_part(shared):
    """What is missing is not known."""
    with verl_otel.step(1) as step:
        pass
    look(shared, run_elsewhere(step, 1.0))
    own_loop.end()
    shared.refresh()
    assert "verl.average_reward" not in names(shared)


def test_generation_is_that_of_the_trajectories_and_not_the_wait(recorded):
    """A loop one step ahead waits for what has ended before: the generation lasted from the first start to the last token, before the reward."""
    with verl_otel.step(1), verl_otel.phase("gen"):
        spans = [roll_out(index, 1.0) for index in range(2)]
    with verl_otel.step(2), verl_otel.phase("gen"):
        verl_otel.consume(spans)
    reward = [span for span in recorded.spans if span.name == "verl.reward"][-1]
    expected = spans[1].stop - spans[0].start - (reward.end_ns - reward.start_ns) / 1e9
    points = [point.value for point in recorded.points if point.instrument.name == "verl.sample.generation"]
    assert points[-1].maximum == pytest.approx(expected, abs=1e-4)


def test_what_waits_is_bounded(recorded, monkeypatch):
    """Trajectories that no step ever claims, and traces without a trajectory, do not pile up."""
    monkeypatch.setattr(own_loop, "MAX_PENDING", 10)
    monkeypatch.setattr(own_loop, "MAX_INCOMPLETE", 10)
    own_loop.share(can=True)
    for index in range(30):
        with verl_otel.step(index):
            pass
        roll_out(index, 1.0)
        with verl_otel.span("other"):
            compute_score(1.0)
        with remote_step(index + 1):
            roll_out(index, 1.0)
    recorded.refresh()
    loop = own_loop._Trajectories
    assert len(loop.ended) <= 10
    assert len(loop.inside) <= 11
    assert len(loop.incomplete) <= 10


def test_what_is_consumed_outside_of_steps_is_bounded(recorded, monkeypatch):
    """In number of calls, and in trajectories of one call."""
    monkeypatch.setattr(own_loop, "MAX_PENDING", 3)
    spans = [roll_out(index, 1.0) for index in range(5)]
    for _ in range(30):
        verl_otel.consume(spans)
    recorded.refresh()
    consumed = own_loop._Trajectories.consumed
    assert len(consumed) <= own_loop.MAX_STEPS
    assert max(map(len, consumed.values())) == 3


def test_time_between_two_steps(recorded, wait_for):
    """It is counted from the second step on, and each step is kept with its phases."""
    for number in (1, 2):
        with verl_otel.step(number), verl_otel.phase("gen"):
            pass
    assert recorded.value("verl.step.between.time") >= 0
    first, second = own_loop.take_ended()
    assert (first.number, first.before, second.before) == (1, 0.0, first.stop)
    assert [key for key, _, _ in second.phases] == ["gen"]
    assert own_loop.take_ended() == []


@pytest.mark.parametrize("inside", [True, False])
def test_steps_between_two_drains_have_their_own_values_of_gauges(recorded, inside):
    """A gauge that is set in a step, or after it, has a value of that step: a NaN is dated by its step, however short steps are."""
    loss = verl_otel.gauge("verl.actor.pg_loss")
    for number in range(1, 5):
        with verl_otel.step(number):
            if inside:
                loss.set(math.nan if number == 2 else number)
        if not inside:
            loss.set(math.nan if number == 2 else number)
    points = collection.collect().points
    steps = {each.time_ns: each.value for each in points if each.instrument.name == "verl.training.step"}
    found = [
        (steps.get(each.time_ns), str(each.value)) for each in points if each.instrument.name == "verl.actor.pg_loss"
    ]
    assert found == [(1, "1"), (2, "nan"), (3, "3"), (4, "4")], (
        "once each: stores refuse an older one after a newer one"
    )


@verl_otel.reward("math")
def score_batch(scores):
    """A reward model: the scores of a batch."""
    return scores


def test_a_step_without_trajectories_has_the_scores_of_its_batch(recorded):
    """As in a loop that generates a batch and passes it to a reward model; a validation in a phase ``testing`` is no training."""
    with verl_otel.step(1):
        with verl_otel.phase("gen"):
            pass
        with verl_otel.phase("reward"):
            score_batch([0.0, 1.0, 5.0])
            compute_score(2.0)
        with verl_otel.phase("testing"):
            score_batch([100.0])
    assert recorded.value("verl.average_reward") == 2.0
    assert values(recorded, "mean", "min", "max") == {"mean": 2.0, "min": 0.0, "max": 5.0}
    with verl_otel.step(2):
        score_batch([7.0])
    assert recorded.value("verl.average_reward") == 7.0, "of this step only"


def test_scores_of_trajectories_count_before_those_of_a_batch(recorded):
    with verl_otel.step(1):
        roll_out(0, 3.0)
        score_batch([50.0, 70.0])
    assert recorded.value("verl.average_reward") == 3.0


def test_trajectories_without_a_score_have_those_of_the_batch(recorded):
    with verl_otel.step(1):
        with verl_otel.trajectory("p", 0), verl_otel.turn():
            pass
        score_batch([1.0, 0.0])
    assert recorded.value("verl.average_reward") == 0.5
    assert recorded.value("verl.rollout.tail.duration", verl_aggregate="max") > 0


def test_rewards_outside_of_a_step_are_no_average(recorded):
    score_batch([1.0, 0.0])
    with verl_otel.step(1):
        pass
    assert "verl.average_reward" not in {point.instrument.name for point in recorded.points}


@pytest.mark.parametrize("score", [float("nan"), "good", None])
def test_no_score_is_no_statistic(recorded, score):
    """A reward that is no number, or NaN, gives no statistics, and the durations are recorded all the same. With a NaN the mean is NaN."""
    with verl_otel.step(1), verl_otel.trajectory("p", 0):
        compute_score(score)
    assert recorded.value("verl.rollout.tail.duration", verl_aggregate="max") > 0
    names = {point.instrument.name for point in recorded.points}
    assert "verl.reward.score.mean" not in names
    assert ("verl.average_reward" in names) == isinstance(score, float)
    if isinstance(score, float):
        assert math.isnan(recorded.value("verl.average_reward"))


def test_each_step_has_its_number_and_its_reward(recorded):
    """Also where several steps end between two drains: both have the time of the end of the step."""
    for number in range(1, 4):
        with verl_otel.step(number):
            roll_out(0, float(number))
    batch = collection.collect()
    ends = [span.end_ns for span in batch.spans if span.name == "verl.step"]
    for name in ("verl.training.step", "verl.average_reward"):
        found = [(point.time_ns, point.value) for point in batch.points if point.instrument.name == name]
        assert found == list(zip(ends, (1.0, 2.0, 3.0), strict=True))


def test_the_components_of_rewards_are_those_of_the_trajectories_of_the_step(recorded):
    """Each reward of a trajectory adds its components; a trajectory that failed is none that the step trains on."""
    with verl_otel.step(7):
        for index, right in enumerate((1.0, 0.0, 0.0)):
            with verl_otel.trajectory("p", index):
                compute_score({"score": right, "right": right, "note": "text"})
                compute_score({"score": right + 0.5, "form": 0.5})
        with pytest.raises(TypeError), verl_otel.trajectory("p", 3):
            len(compute_score({"score": 9.0, "right": 9.0})["score"])
    points = [point for point in recorded.points if point.instrument.name == "verl.reward.component"]
    assert {tuple(dict(point.labels).values()): point.value for point in points} == {
        ("right", "mean"): pytest.approx(1 / 3), ("right", "min"): 0.0, ("right", "max"): 1.0,
        ("form", "mean"): 0.5, ("form", "min"): 0.5, ("form", "max"): 0.5,
    }  # fmt: skip
    (step,) = [point for point in recorded.points if point.instrument.name == "verl.training.step"]
    assert {point.time_ns for point in points} == {step.time_ns}


def test_names_of_components_are_bounded(recorded):
    """A function that makes names of its data does not make a series of each."""
    for number in range(40):
        with verl_otel.step(number), verl_otel.trajectory("p", 0):
            compute_score({"score": 1.0, f"name-{number}": 1.0})
    names = {dict(p.labels)["verl.variable"] for p in recorded.points if p.instrument.name == "verl.reward.component"}
    assert names == {f"name-{number}" for number in range(16)}


def reason(word):
    return verl_otel.llm("toy")(lambda: {"choices": [{"finish_reason": word}]})


@verl_otel.tool("python")
def run_tool(error):
    raise error


def raise_timeout():
    raise TimeoutError


def set_end():
    reason("length")()
    trace.get_current_span().set_attribute("verl.trajectory.end", "turn_limit")


@pytest.mark.parametrize(
    ("work", "end"),
    [
        (reason("stop"), "finished"),
        (reason("length"), "length"),
        (reason("abort"), "aborted"),
        (lambda: (reason("length")(), reason("stop")()), "finished"),  # the last call counts
        (lambda: run_tool(OSError()), "tool_failed"),
        (lambda: run_tool(TimeoutError()), "timeout"),
        (raise_timeout, "timeout"),
        (lambda: 1 / 0, "failed"),
        (set_end, "turn_limit"),
    ],
)
def test_how_a_trajectory_of_an_own_loop_ended(recorded, work, end):
    """By the finish reason of its last call or its exception, unless the loop says it."""
    with contextlib.suppress(OSError, TimeoutError, ZeroDivisionError), verl_otel.trajectory("p", 0):
        work()
    assert recorded.span("verl.trajectory").attributes["verl.trajectory.end"] == end
    assert recorded.value("verl.rollout.trajectories", verl_trajectory_end=end) == 1
