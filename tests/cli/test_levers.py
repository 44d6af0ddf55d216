# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""`verl-otel levers` ranks what would make a run faster, in words and as JSON, and says what it cannot know."""

import pytest

from tests.builders import stories
from verl_otel.analysis.levers.ranking import Lever, Levers
from verl_otel.cli import levers, wording
from verl_otel.cli.documents.levers import make_levers
from verl_otel.model import LinkRecord


def train(folder, *, linked=True, steps=7):
    """Steps of 20 s that wait 10 s for a tool of 8 s and train for 5 s."""
    story = stories.Story(folder, folder.name)
    trainer, agent = story.process("trainer"), story.process("agent_loop")
    for number in range(1, steps + 1):
        begin = 20 * number
        calls = [("llm", "qwen", begin + 1, begin + 2), ("tool", "search", begin + 2, begin + 10)]
        member = stories.trajectory(agent, begin + 1, begin + 10, uid=f"p{number}", step=number, calls=calls)
        root = stories.step(trainer, number, begin, begin + 15, [("gen", begin, begin + 10), ("update_actor", begin + 10, begin + 15)], [member])  # fmt: skip
        if linked:
            link = LinkRecord(root.trace_id, root.span_id, {"verl.link.type": "submitted_by"})
            where = next(index for index, span in enumerate(agent.spans) if span.span_id == member.span_id)
            agent.spans[where] = member._replace(links=(link,))
    story.manifest(verl__project="bed")
    return story.write()


@pytest.fixture
def run(tmp_path):
    """A run that waits for a tool in each step."""
    return train(tmp_path / "r1")


def test_levers_are_ranked_with_gain_and_interval(call, run):
    """The tool first, with what half of it saves; what saves nothing is only named."""
    result = call("levers", run)
    assert result.code == 0
    assert "4 steps replayed: 20.00 s from one to the next, 10.00 s of it waiting for trajectories." in result.out
    rows = [line for line in result.out.splitlines() if "%" in line]
    assert any("4.00 s  20%  4.00 s to 4.00 s" in row and "tool search takes half of its time" in row for row in rows)
    assert "Less than 1%\n" in result.out
    assert "twice as many replicas" in result.out.partition("Less than 1%")[2]
    assert "What is not known" in result.out


def test_explain_shows_the_largest(call, run):
    """Three of them, below the whole run."""
    result = call("explain", run).out.partition("The whole run")[2]
    assert "What would make a step shorter, each alone: gain, share of 20.00 s (mean of 4 steps), interval" in result
    assert sum("takes half of its time" in line for line in result.splitlines()) == 1


def test_a_run_without_links_is_refused_with_the_reason(call, tmp_path):
    """Nothing is predicted for a schedule that is not known, and no command leads there."""
    folders = [train(tmp_path / name, linked=linked) for name, linked in (("r1", False), ("r2", True))]
    result = call("levers", folders[0])
    assert result.code == 1
    assert "submitted" in result.out
    assert ["verl-otel levers" in call("explain", folder, "--brief").out for folder in folders] == [False, True]


def test_every_kind_of_lever_limit_and_sign_has_words(run_of_nothing):
    """A gain, a loss, an unknown interval; each limit."""
    found = [Lever(kind, "x", 1.0, 0.5, 2.0, 0.5) for kind in wording.LEVERS]
    found += [Lever("tail", "5%", 0.5, None, None, 0.2), Lever("replicas", "", -1.0, -2.0, 0.5, -0.4)]
    limits = (("loop", "agent_loop-0", 1), ("server", "llm_server-0", 2), ("reward", "reward-0", 6))
    text = levers.render(make_levers(run_of_nothing, Levers(tuple(found), (1, 2), 2.0, 1.0, limits, ("this",))))
    assert "tool x does not block its event loop" in text
    assert "uncertainty unknown" in text
    assert "Slower, as others then come first\n  twice as many replicas" in text
    assert "event loop of agent_loop-0, blocked by tools" in text
    assert "llm_server-0: 2 slots" in text


def test_tails_of_the_same_trajectories_are_one_line(run_of_nothing):
    """With few trajectories in a step 1 % and 5 % of them are the same ones; with another gain they are not."""
    same, other = (
        [Lever("tail", f"{percent}%", 2.0, None, None, 0.5) for percent in (1, 5)],
        Lever("tail", "5%", 2.5, None, None, 0.6),
    )
    render = lambda *found: levers.render(make_levers(run_of_nothing, Levers(found, (1,), 4.0, 1.0, (), ())))  # noqa: E731
    assert render(*same).count("of the trajectories take no longer") == 1
    assert "the slowest 1% of the trajectories" in render(*same)
    assert render(other, same[0]).count("of the trajectories take no longer") == 2


@pytest.fixture
def run_of_nothing(tmp_path):
    """An explained run."""
    from verl_otel.analysis import reader

    return reader.read([train(tmp_path / "r2", steps=1)])[0]
