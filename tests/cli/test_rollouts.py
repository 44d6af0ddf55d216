# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts and responses come from the files that verl writes, by the id of their sample; half-written ones are passed over."""

import json

import pytest

from verl_otel.cli import rollouts

CALL = 'I look.\n<tool_call>{"name": "search"}</tool_call>\ntool\n<tool_response>42</tool_response>\nIt is 42.'


@pytest.fixture
def manifest(tmp_path):
    """A run whose step 3 has two samples of two responses each, as verl 0.9.1 writes them."""
    lines = [
        {
            "input": f"What is {uid}?",
            "output": CALL,
            "gts": "42",
            "score": float(index),
            "step": 3,
            "uid": f"{uid}_{index}_0",
        }
        for uid in ("a_b", "c")
        for index in (1, 0)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "3.jsonl").write_text(text + '{"input": "half')
    return {rollouts.TRAINING: str(tmp_path)}


def test_groups_of_a_step(manifest):
    """One row a prompt, with the range of its scores."""
    rows = rollouts.list_groups(manifest, 3)
    assert [(row["group"], row["samples"], row["scores"]) for row in rows] == [
        ("a_b", 2, [0.0, 1.0]),
        ("c", 2, [0.0, 1.0]),
    ]


def test_siblings_are_joined_by_the_id_of_their_sample(manifest):
    """All responses to one prompt, in the order of their index, split at the tool."""
    first, second = rollouts.read_group(manifest, 3, "a_b")
    assert (first["rollout_index"], second["rollout_index"]) == (0, 1)
    assert first["prompt"] == "What is a_b?"
    assert [part["kind"] for part in first["parts"]] == ["text", "tool_call", "tool_response", "text"]


def test_without_ids_equal_prompts_are_a_group(tmp_path):
    """Trainers that write no id."""
    lines = [{"input": prompt, "output": "x", "gts": None, "score": 1.0, "step": 1} for prompt in ("p", "q", "p")]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = rollouts.list_groups({rollouts.VALIDATION: str(tmp_path)}, 1, validation=True)
    assert sorted(row["samples"] for row in rows) == [1, 2]


def test_nothing_is_read_without_a_folder_or_a_step(manifest):
    """Neither is an error."""
    assert rollouts.list_groups({}, 3) == rollouts.list_groups(manifest, 4) == rollouts.list_groups(manifest, -1) == []


def test_long_texts_are_cut_and_controls_are_escaped(tmp_path):
    """A response of a megabyte stays short; terminal sequences and marks of direction are visible."""
    sample = {"input": "\x1b[31m\u202ep", "output": "x" * 1_000_000, "gts": None, "score": float("nan"), "step": 1}
    (tmp_path / "1.jsonl").write_text(json.dumps(sample) + "\n")
    (row,) = rollouts.list_groups({rollouts.TRAINING: str(tmp_path)}, 1)
    (member,) = rollouts.read_group({rollouts.TRAINING: str(tmp_path)}, 1, row["group"])
    assert len(member["parts"][0]["text"]) < 2 * rollouts.MAX_TEXT
    assert "\x1b" not in member["prompt"]
    assert "\u202e" not in member["prompt"]
    assert member["score"] is None
