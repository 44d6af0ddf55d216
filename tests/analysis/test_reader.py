# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run that is read while it is written gives the explanation of the whole run, except for the time after its last step."""

import json
from pathlib import Path

import pytest

import verl_otel
from tests.builders import stories
from verl_otel.analysis import reader


def long_training(folder, steps=12):
    """Steps of ten seconds of two trajectories on three processes; the tool delays every fifth step."""
    story = stories.Story(folder)
    trainer, agent, server = story.process("trainer"), story.process("agent_loop"), story.process("llm_server")
    for number in range(1, steps + 1):
        begin = 10.0 * number
        late = 3.0 if number % 5 == 0 else 0.0
        calls = [("llm", "qwen", begin + 0.1, begin + 1), ("tool", "search", begin + 1, begin + 2 + late)]
        members = [
            stories.trajectory(
                agent, begin, begin + 2.5 + late, uid=f"u{number}", index=index, step=number, calls=calls, server=server
            )
            for index in range(2)
        ]
        phases = [("gen", begin, begin + 3 + late), ("update_actor", begin + 3 + late, begin + 9)]
        stories.step(trainer, number, begin, begin + 9, phases, members)
        trainer.scalar("verl.training.step", begin + 9, number)
        trainer.scalar("verl.critic.rewards.mean", begin + 9, number / steps)
    return story


def read_all(live):
    """Read until nothing is left, as after a long silence."""
    live.look()
    while live.is_behind:
        live.read()
    live.traces._grown_at -= 3600
    live.read()


def without_last(explanation):
    """The steps, of the last one only what does not depend on the time after it."""
    *steps, last = explanation.steps
    return [*steps, last._replace(devices=(), cost=None, next_ns=0, between_path=(), between_groups=())]


@pytest.mark.parametrize("budget", [1, 1 << 20])
def test_the_explanation_is_that_of_the_whole_run(tmp_path, monkeypatch, budget):
    """Steps, verdicts, GPU time and scalars are equal, whether the files are read line by line or at once."""
    monkeypatch.setattr("verl_otel.analysis.io.followed_files.CHUNK_BYTES", 4096)
    monkeypatch.setattr(reader.RunReader.read, "__defaults__", (budget,))
    folder = long_training(tmp_path / "r1").write()
    live = reader.begin([folder])
    read_all(live)
    seen, whole = live.explain(), reader.read([folder])[0]
    assert without_last(seen) == without_last(whole)
    assert seen.series == whole.series
    assert (seen.counts, seen.slowest) == (whole.counts, whole.slowest)


def test_a_growing_run_is_read_on_and_half_a_line_is_left(tmp_path):
    """Lines are added in thirds of bytes; a line of which the end is missing is read when it is whole."""
    source = long_training(tmp_path / "source").write()
    target = tmp_path / "r1"
    target.mkdir()
    live = reader.begin([target])
    counts = []
    for part in (1, 2, 3):
        for path in source.iterdir():
            data = path.read_bytes()
            (target / path.name).write_bytes(data[: len(data) * part // 3])
        read_all(live)
        counts.append(len(live.explain().steps))
    assert counts[0] < counts[1] < counts[2] == 12
    assert without_last(live.explain()) == without_last(reader.read([target])[0])
    assert live.explain().problems == ()


def test_a_deleted_run_keeps_what_was_read(tmp_path):
    """The reader does not fail and keeps what it has read."""
    folder = long_training(tmp_path / "r1").write()
    live = reader.begin([folder])
    read_all(live)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    read_all(live)
    assert len(live.explain().steps) == 12


def test_a_stall_shows_without_a_new_line_of_another_file(tmp_path):
    """A run that hangs writes the stall and, when it continues, its end, and nothing else."""
    folder = long_training(tmp_path / "r1").write()
    live = reader.begin([folder])
    read_all(live)
    versions, texts = [live.version], []
    stall = {"kind": "stall", "time_ns": 10**11, "text": "in trainer-0", "detail": {"key": ["a"]}}
    for line in (stall, {**stall, "kind": "resolved", "time_ns": 2 * 10**11}):
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        live.look()
        versions.append(live.version)
        texts += [event.text for event in live.explain().events]
    assert versions[0] < versions[1] < versions[2]
    assert texts == ["in trainer-0", "in trainer-0; it went on 100 s later"]


def test_memory_is_bounded(tmp_path):
    """Long runs keep the detail of few steps."""
    live = reader.begin_page([long_training(tmp_path / "r1", steps=reader.PAGE_LIMITS.detailed * 2).write()])
    read_all(live)
    steps = live.explain().steps
    assert len(steps) == reader.PAGE_LIMITS.detailed * 2
    assert sum(bool(step.path) for step in steps) <= reader.PAGE_LIMITS.detailed + 2


def test_a_finished_run_is_explained_completely(tmp_path):
    """After the end the last step has its GPU time, too: everything is as in `explain`."""
    folder = stories.training(tmp_path / "r1").write()
    live = reader.begin([folder])
    read_all(live)
    live.finish()
    assert live.explain() == reader.read([folder])[0]


def test_open_work_is_counted_once_also_when_it_was_looked_at_before():
    """The page explains a run before it is finished: what was open then is not added again."""
    folder = Path(verl_otel.__file__).parent / "cli" / "demo" / "recorded" / "crash"
    live = reader.begin([folder])
    read_all(live)
    before = live.explain().completeness.unfinished
    live.finish()
    assert live.explain().completeness.unfinished == before == reader.read([folder])[0].completeness.unfinished


def test_a_step_is_known_two_seconds_after_its_end(tmp_path, monkeypatch):
    """By what its processes have written since; one that has not ended its part of the step has it wait for a late line."""
    monkeypatch.setattr("verl_otel.analysis.io.followed_files.time.monotonic", lambda: 0.0)

    def count(name, trainer_wrote, is_open=False, host="node-1", agent_wrote=0.0, **facts):
        story = stories.Story(tmp_path / name)
        trainer, agent = story.process("trainer"), story.process("agent_loop", host=host)
        root = stories.step(trainer, 1, 0, 10, [("gen", 0, 9)])
        trainer.span("later", 10, trainer_wrote)
        agent.span("earlier", 1, 2)
        if agent_wrote:
            agent.scalar("value", agent_wrote, 1)
        if is_open:
            agent.still_open("verl.worker Actor.update_actor", 9, 9.5, root)
        story.manifest(**facts)
        live = reader.begin([story.write()])
        live.look()
        live.traces._grown_at = 0.0
        live.read()
        return live._aggregator.step_count

    assert [count(f"a{end}", end) for end in (11.9, 12)] == [0, 1]
    assert [count(f"b{end}", end, is_open=True) for end in (12, 16.9, 17)] == [0, 0, 1]
    assert [count(f"c{end}", 12, host="node-2", agent_wrote=end) for end in (11.9, 12)] == [0, 1]
    assert [count(f"d{end}", end, drain_interval=4) for end in (12, 17)] == [0, 1]
