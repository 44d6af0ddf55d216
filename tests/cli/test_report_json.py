# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel report --json``: the same facts for scripts, in a form that does not change."""

import json

import pytest

from tests.builders import stories


@pytest.fixture
def report(call):
    """The report of a folder as data; only strict JSON is accepted."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    def read(folder):
        return json.loads(call("report", "--json", folder).out, parse_constant=refuse)

    return read


def test_the_whole_report_as_data(report, runs):
    """Steps, trajectories, reward, verdicts and folders are there, with seconds and hexadecimal ids."""
    folder = stories.training(runs / "r1").write()
    data = report(folder)
    assert (data["run_id"], data["facts"]["verl.project"], data["orphans"]) == ("r1", "bed", 0)
    assert (data["folders"], data["missing"], data["unfinished"]) == ([str(folder)], [], [])
    first, second = data["steps"]
    assert (first["number"], first["seconds"], first["failed"]) == (1, 10.0, False)
    assert first["phases"] == {"gen": 3.0, "update_actor": 5.0}
    assert first["no_phase"] == pytest.approx(2.0)
    assert data["reward"] == {"1": 0.25, "2": 0.75}
    (verdict,) = data["waits"]
    assert (verdict["step"], verdict["lead"]) == (2, 7.0)
    assert verdict["part"] == {"kind": "tool", "name": "calculator", "seconds": 7.0, "calls": 1, "turn": 1}
    assert verdict["trajectory"] in second["trajectories"]


def test_trajectories_as_data(report, runs):
    """A trajectory has its identity, length, score and parts; its id is the one by which steps name it."""
    data = report(stories.training(runs / "r1").write())
    by_id = {each["trace_id"]: each for each in data["trajectories"]}
    slow = by_id[data["waits"][0]["trajectory"]]
    assert len(slow["trace_id"]) == 32
    assert {each for step in data["steps"] for each in step["trajectories"]} == by_id.keys()
    assert {key: slow[key] for key in ("uid", "index", "step", "validate", "seconds", "score", "failed")} == {
        "uid": "bbbbbbbb-0000-0000-0000-000000000000",
        "index": 0,
        "step": 2,
        "validate": False,
        "seconds": 9.0,
        "score": None,
        "failed": False,
    }
    assert [part["kind"] for part in slow["parts"]] == ["tool", "llm", "reward", "wait"]


def test_unfinished_work_as_data(report, story):
    """A dead process is there with its process id and what it was doing."""
    trainer, agent = story.process(), story.process("agent_loop", pid=77)
    stories.step(trainer, 1, 0, 100)
    agent.still_open("verl.trajectory", 2, 40, state=stories.TRAJECTORY, last_child="chat m")
    assert report(story.write())["unfinished"] == [
        {
            "process": "agent_loop-0",
            "pid": "77",
            "dead": True,
            "silent": 60.0,
            "work": [{"name": "verl.trajectory", "age": 38.0, "last_child": "chat m"}],
        }
    ]


def test_a_missing_number_is_json_too(report, story):
    """A reward or a score of NaN does not make the output unreadable."""
    trainer, agent = story.process(), story.process("agent_loop")
    stories.step(trainer, 1, 0, 1)
    stories.trajectory(agent, 0, 1, verl__reward__score=float("nan"))
    trainer.scalar("verl.training.step", 1, 1)
    trainer.scalar("verl.average_reward", 1, float("nan"))
    data = report(story.write())
    assert data["trajectories"][0]["score"] is None
    assert data["reward"]["1"] is None
