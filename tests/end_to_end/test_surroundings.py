# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Tools, custom code and hostile surroundings, each in a real training."""

from collections import Counter, defaultdict

import pytest

from tests.end_to_end import counts
from tests.recount.product import Product
from verl_otel.analysis import Run

pytestmark = pytest.mark.verl


def below(spans):
    found = defaultdict(list)
    for span in spans:
        found[span.parent].append(span)
    return found


def test_tool_spans_equal_the_calls_that_the_tool_counted(tool_run):
    """Each call of the tool is a span in a turn of a trajectory, with the duration that the tool measured."""
    assert tool_run.returncode == 0, tool_run.log[-3000:]
    spans = tool_run.spans()
    by_id = {span.id: span for span in spans}
    tools = [span for span in spans if span.name == "execute_tool add"]
    counted = tool_run.bed("tool")
    assert len(tools) == len(counted)
    assert all(by_id[span.parent].name == "verl.turn" for span in tools)
    pairs = zip(sorted(span.seconds for span in tools), sorted(each["seconds"] for each in counted), strict=True)
    assert not counts.find_unlike(list(pairs))


def test_failed_tool_calls_are_told_although_verl_hides_them(tool_run):
    """Verl turns a tool's exception into text for the model; the span says what was raised, and nothing else changes."""
    tools = [span for span in tool_run.spans() if span.name == "execute_tool add"]
    failed = {span.attributes["error.type"]: span for span in tools if span.attributes["verl.outcome"] != "success"}
    counted = Counter(each["error"] for each in tool_run.bed("tool"))
    assert failed.keys() == {"ValueError", "TimeoutError"} == counted.keys() - {None}
    assert all(span.status == 2 for span in failed.values())
    assert failed["TimeoutError"].seconds > 1.4
    assert {span.attributes["verl.outcome"] for span in tool_run.spans() if span.name == "verl.trajectory"} == {
        "success"
    }


def test_turns_hold_their_llm_calls(tool_run):
    """A trajectory with one tool call has two turns: ask and tool, answer."""
    spans = tool_run.spans()
    children = below(spans)
    for root in (span for span in spans if span.name == "verl.trajectory"):
        turns = sorted((span for span in children[root.id] if span.name == "verl.turn"), key=lambda span: span.start)
        kinds = [
            [span.name.partition(" ")[0] for span in sorted(children[turn.id], key=lambda s: s.start)] for turn in turns
        ]
        assert kinds == [["chat", "execute_tool"], ["chat"]]
        assert [turn.attributes["verl.turn.index"] for turn in turns] == [0, 1]
        assert not [span for span in children[root.id] if span.name.startswith("chat")]


def test_plain_timers_work_without_nvtx(tool_run):
    """Without nvtx verl's plain timer is replaced, and verl's own timings are as before."""
    steps = [span for span in tool_run.spans() if span.name == "verl.step"]
    logged = {step: data["timing_s/step"] for step, data in tool_run.scalars().items()}
    assert len(steps) == len(logged) == 3
    pairs = [(span.seconds, logged[span.attributes["verl.step.number"]]) for span in steps]
    assert not counts.find_unlike(pairs)


def test_the_slow_tool_is_named_in_the_first_lines(tool_run):
    """The report begins with the step that waited, the trajectory, the tool and the turn."""
    head = tool_run.report().split("\n\n")[1]
    assert "Step 2" in head
    assert "tool add (turn 0," in head


def test_the_run_log_at_level_debug_has_each_sample(tool_run):
    """Each trajectory is a record with its tokens and turns, and the scores are those that the reward function computed."""
    samples = [record for record in Product(tool_run.folder).records if record["scope"] == "sample"]
    assert len(samples) == len(tool_run.bed("trajectory"))
    assert {record["level"] for record in samples} == {"DEBUG"}
    scores = Counter(round(record["score"], 3) for record in samples)
    assert scores == Counter(round(each["score"], 3) for each in tool_run.bed("score"))
    assert {record["turns"] for record in samples} == {2}
    assert all(record["prompt_tokens"] > 0 for record in samples)
    assert all(record["response_tokens"] > record["generated_tokens"] > 0 for record in samples)


def test_what_the_model_wrote_is_what_the_engines_wrote(tool_run):
    """Generated tokens are those of the engines' own log, calls are turns, and the steps trained on those of no validation."""
    roots = [span for span in tool_run.spans() if span.name == "verl.trajectory"]
    assert sum(root.attributes["verl.generated.tokens"] for root in roots) == sum(
        each["count"] for each in tool_run.bed("tokens")
    )
    assert sum(root.attributes["verl.turns"] for root in roots) == len(tool_run.bed("llm"))
    trained = [root.attributes["verl.generated.tokens"] for root in roots if not root.attributes["verl.validate"]]
    run = Run.open(tool_run.folder)
    assert sum(step.cost.trained_tokens for step in run.steps()) == sum(trained)
    assert sum_by_validation(run, "verl.rollout.tokens", "generated") == {
        "false": sum(trained),
        "true": sum(root.attributes["verl.generated.tokens"] for root in roots) - sum(trained),
    }


def test_a_validation_is_known_where_scores_are_computed(tool_run):
    """Scores of validations are counted apart by the process that computes them: as many as there were trajectories."""
    ended = Counter(str(each["validate"]).lower() for each in tool_run.bed("trajectory"))
    assert set(ended) == {"true", "false"}
    assert sum_by_validation(Run.open(tool_run.folder), "verl.reward.samples") == ended


def sum_by_validation(run, name, token_type=None):
    """Return the total of a counter over all processes, by the value of ``verl.validate``."""
    totals = Counter()
    for series in run.scalars():
        labels = dict(series.labels)
        if series.name == name and labels.get("verl.token.type") == token_type:
            totals[labels.get("verl.validate")] += series.values[-1]
    return totals


def test_the_run_log_at_level_debug_has_each_call_of_a_worker(tool_run):
    """With the method and the rank; there are as many updates as steps."""
    workers = [record for record in Product(tool_run.folder).records if record["scope"] == "worker"]
    assert {record["rank"] for record in workers} == {0}
    assert Counter(record["method"] for record in workers)["update_actor"] == 3


def test_fields_of_the_user_stand_in_the_record_of_their_step(tool_run):
    """The bed's sampler, a user's code in the process that trains, logs once in each step; a scope of its own is a record of its own."""
    records = Product(tool_run.folder).records
    rollouts = {record["step"]: record for record in records if record["scope"] == "rollout"}
    assert {step: record["sampled"] for step, record in rollouts.items()} == {1: 8, 2: 8, 3: 8}
    assert all("reward_mean" in record for record in rollouts.values())
    steps = {span.attributes["verl.step.number"]: span.trace for span in tool_run.spans() if span.name == "verl.step"}
    assert {step: record["trace_id"] for step, record in rollouts.items()} == steps
    assert [record["step"] for record in records if record["scope"] == "sampler"] == [1, 2, 3]
