# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What commands print with ``--json`` has the keys and types of the schemas and the reference, and no others."""

import argparse
import json
from importlib import import_module
from pathlib import Path

import pytest

from tests.builders import stories
from verl_otel.cli import COMMANDS
from verl_otel.cli.documents.base import make_schema
from verl_otel.cli.schema import DOCUMENTS

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed in this environment")

SCHEMAS = {name: make_schema(name, kind) for name, kind in DOCUMENTS.items()}
CALLS = {
    "report": ("report", "r1", "--json"),
    "explain": ("explain", "r1", "--json"),
    "explain-log": ("explain", Path(__file__).with_name("file_logger.jsonl"), "--json"),
    "levers": ("levers", "r1", "--json"),
    "compare": ("compare", "long-a", "long-b", "--json", "--fail-if", "step>+5%"),
    "runs": ("runs", "--json"),
    "runs-prune": ("runs", "--prune", "--keep", "1", "--json"),
    "check": ("check", "--json"),
    "discover": ("discover", "--local", "--json"),
    "guards": ("guards", "r1", "--json"),
}
OTHERS = {"logs", "stack", "demo"}
"""Commands that print one object per line, described in the reference, and one that prints the JSON of another command."""
FOUND = {"report": "waits", "explain": "steps", "explain-log": "changes", "levers": "unknown", "compare": "rows"}
"""Keys of lists that the runs of these tests fill."""


def train(folder, tool=2.0, steps=12):
    """A run long enough to be compared, with a late rank and a process that was killed."""
    story = stories.Story(folder, folder.name)
    trainer, agent = story.process("trainer"), story.process("agent_loop")
    workers = [story.process("actor_rollout_ref", index=rank, pid=900 + rank, verl__rank=rank) for rank in range(3)]
    for number in range(1, steps + 1):
        start = 20 * number
        calls = [("tool", "search", start, start + tool + number / 100)]
        member = stories.trajectory(
            agent, start, start + tool + number / 100, uid=f"p{number}", step=number, calls=calls
        )
        root = stories.step(trainer, number, start, start + 15, [("gen", start, start + 8), ("update_actor", start + 8, start + 15)], [member])  # fmt: skip
        call = trainer.span(
            "verl.call update_actor", start + 8, start + 15, root, kind=stories.CLIENT, verl__world_size=3
        )
        for rank, worker in enumerate(workers):
            late = 3 if rank == 1 else 0
            worker.span("verl.worker Actor.update_actor", start + 8 + late, start + 15, call, kind=stories.SERVER, verl__rank=rank)  # fmt: skip
    agent.still_open("verl.trajectory", 200, 260)
    story.manifest(verl__project="bed")
    story.write()


@pytest.fixture
def all_runs(runs):
    """Three runs in the folder of runs, which is returned."""
    stories.training(runs / "r1").write()
    train(runs / "long-a")
    train(runs / "long-b", tool=6.0)
    return runs


@pytest.mark.parametrize("command", CALLS)
def test_the_output_is_as_its_schema_says(all_runs, call, command):
    """Every key is described, has its type, and is there."""
    document = json.loads(call(*CALLS[command]).out)
    jsonschema.validate(document, SCHEMAS[command], jsonschema.Draft202012Validator)
    if command in FOUND:
        assert document[FOUND[command]]


@pytest.mark.parametrize("command", SCHEMAS)
def test_every_answer_has_the_next_command(all_runs, call, command):
    """One object, whose ``next`` is required, and names commands that exist."""
    schema = SCHEMAS[command]
    assert schema["type"] == "object"
    assert "next" in schema["required"]
    document = json.loads(call(*CALLS[command]).out)
    assert document["next"]
    for following in document["next"]:
        program, name, *_ = [word for word in following.split() if "=" not in word]
        assert (program == "verl-otel" and name in COMMANDS) or "python -m verl.trainer" in following


@pytest.mark.parametrize("words", ["report r1", "explain r1", "explain r1 --step 2", "explain --events r1", "levers r1", "compare long-a long-b", "runs", "check", "guards r1"])  # fmt: skip
def test_every_text_ends_with_the_next_command(all_runs, call, words):
    """What a user reads last is what to call."""
    last = call(*words.split()).out.splitlines()[-1]
    assert last.startswith("Next: ")
    assert last != f"Next: verl-otel {words}"


def test_the_detail_of_a_step_does_not_lead_to_itself(all_runs, call):
    """But to a timeline of that step, and back to the run."""
    document = json.loads(call("explain", "r1", "--step", "2", "--json").out)
    assert document["next"] == ["verl-otel export perfetto r1 --step 2", "verl-otel explain r1"]


def test_records_are_followed_by_the_next_command(all_runs, call):
    """Not among the records, which other programs may read."""
    trainer = stories.Story(all_runs / "r1", "r1").folder
    (trainer / "verl_logs.jsonl").write_text('{"timestamp": "2026-11-26T00:00:00Z", "scope": "ppo", "step": 1}\n')
    result = call("logs", "r1")
    assert "Next: " not in result.out
    assert result.err == "Next: verl-otel explain r1\n"


@pytest.mark.parametrize("command", ["report", "explain"])
def test_the_output_of_a_run_with_late_ranks_and_dead_processes(all_runs, call, command):
    """Lists that are empty in a healthy run have the described form, too."""
    document = json.loads(call(command, "long-a", "--json").out)
    jsonschema.validate(document, SCHEMAS[command], jsonschema.Draft202012Validator)
    assert document["unfinished"] if command == "report" else document["run"]["stragglers"]


def test_an_unknown_key_is_refused(all_runs, call):
    """A key without a description fails, as one that is missing does."""
    document = json.loads(call("report", "r1", "--json").out)
    for changed in ({**document, "more": 1}, {key: value for key, value in document.items() if key != "steps"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed, SCHEMAS["report"])


def test_every_command_with_json_has_a_schema():
    """Each command with ``--json`` is called here and has a schema, but `OTHERS`."""
    expected = set()
    for command, path in COMMANDS.items():
        parser = argparse.ArgumentParser()
        import_module(path).add_arguments(parser)
        expected |= {command} if any("--json" in action.option_strings for action in parser._actions) else set()
    assert {command.partition(" ")[0].partition("-")[0] for command in SCHEMAS} == expected - OTHERS
    assert set(CALLS) == set(SCHEMAS)
