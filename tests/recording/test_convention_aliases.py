# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Names of the GenAI conventions: off by default, equal to the series and trajectories that they name."""

import pytest

import verl_otel
from verl_otel.config import load_config
from verl_otel.recording import convention_aliases
from verl_otel.recording.state import RECORDER

NAMES = {
    "gen_ai.execute_tool.duration": "verl.tool.call.duration",
    "gen_ai.invoke_agent.duration": "verl.rollout.trajectory.duration",
}


@pytest.fixture
def opted_in(monkeypatch):
    """Emit the names of the conventions, too."""
    monkeypatch.setattr(RECORDER, "convention_aliases", True)


def run_trajectory():
    """Run a trajectory with one call of a model and one of a tool, and a tool that belongs to none."""
    with verl_otel.trajectory("uid-1", 2, agent="react"), verl_otel.turn(), verl_otel.llm("actor"):
        pass
    with verl_otel.trajectory("uid-1", 3, agent="react"), verl_otel.tool("python"):
        pass
    with verl_otel.tool("alone"):
        pass


def series(recorded, name):
    """Return the values of a metric by labels."""
    return {point.labels: point.value for point in recorded.points if point.instrument.name == name}


def test_by_default_there_are_no_second_names(recorded):
    """Without the opt-in there is no further series and no further attribute."""
    run_trajectory()
    assert not any(series(recorded, name) for name in NAMES)
    assert not any("gen_ai.conversation.id" in span.attributes for span in recorded.spans)


def test_a_second_name_has_the_values_of_the_first(recorded, opted_in):
    """The counts, sums and buckets are those of the series that is recorded, labels have the names of the conventions."""
    run_trajectory()
    for alias, name in NAMES.items():
        first = series(recorded, name)
        assert first
        renamed = {
            tuple(("gen_ai.agent.name" if key == "verl.agent" else key, value) for key, value in labels): value
            for labels, value in first.items()
        }
        assert series(recorded, alias) == renamed
    assert any(("gen_ai.agent.name", "react") in labels for labels in series(recorded, "gen_ai.invoke_agent.duration"))


def test_the_spans_of_a_trajectory_share_a_conversation(recorded, opted_in):
    """Calls of models and tools name the trajectory in which they lie; a tool outside of one has no conversation."""
    run_trajectory()
    trajectories = {f"{span.trace_id:032x}" for span in recorded.spans if span.name == "verl.trajectory"}
    conversations = {}
    for span in recorded.spans:
        conversations.setdefault(span.name, set()).add(span.attributes.get("gen_ai.conversation.id"))
    assert len(trajectories) == 2
    assert conversations["verl.trajectory"] == trajectories
    assert conversations["chat actor"] | conversations["execute_tool python"] == trajectories
    assert conversations["execute_tool alone"] == {None}


@pytest.mark.parametrize(
    ("words", "on"),
    [
        ("", False),
        ("http", False),
        ("gen_ai_latest_experimental", True),
        ("http/dup, gen_ai_latest_experimental", True),
    ],
)
def test_the_variable_of_the_conventions_switches_them_on(monkeypatch, words, on):
    """``OTEL_SEMCONV_STABILITY_OPT_IN`` holds words of several instrumentations."""
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", words)
    assert bool(load_config().semconv_opt_in) is on


def test_a_span_that_cannot_be_resolved_costs_itself_only(recorded, opted_in, swallow, monkeypatch):
    """A failure in one span does not lose the others of the drain."""

    def fail(span):
        raise RuntimeError("no ids")

    monkeypatch.setattr(convention_aliases, "_add_conversation", fail)
    run_trajectory()
    assert {span.name for span in recorded.spans} >= {"verl.trajectory", "chat actor", "execute_tool python"}
