# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads prompts and responses from the files that verl itself writes (``trainer.rollout_data_dir``, ``validation_data_dir``). They are copied nowhere.

verl writes ``<step>.jsonl`` with one sample a line: ``input``, ``output``, ``gts``, ``score``, and with the trainers of verl 0.9 ``uid``, which is
``<sample>_<rollout>_<output>``. Trainers without it are grouped by equal prompts.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from verl_otel._internal import printable, safe_files
from verl_otel.semconv import attributes as attr

TRAINING: Final = attr.ROLLOUT_DATA_DIR
VALIDATION: Final = attr.VALIDATION_DATA_DIR
"""Keys of the folders in the manifest of a run."""
MAX_SAMPLES: Final = 5_000
MAX_GROUPS: Final = 500
MAX_MEMBERS: Final = 64
MAX_TEXT: Final = 20_000
"""Characters of one text; of a longer one the middle is left out."""
MAX_FACTS: Final = 20
_KNOWN: Final = ("input", "output", "gts", "score", "step", "uid")
_ROLES: Final = ("", "user", "assistant", "tool")
"""What is left of the marks between turns, which verl decodes without their special tokens."""
_PART: Final = re.compile(r"<(tool_call|tool_response)>(.*?)</\1>", re.DOTALL)


def list_groups(manifest: Mapping[str, Any], step: int, *, validation: bool = False) -> list[dict[str, Any]]:
    """Return the groups of a step, in the order of the file: name, number of samples, lowest and highest score, beginning of the prompt.

    Args:
        manifest: The manifest of the run, which names the folders.
        step: Number of the step.
        validation: Whether the samples of the validation are meant.
    """
    groups: dict[str, dict[str, Any]] = {}
    for sample in _read(manifest, step, validation=validation):
        name, score = _name_group(sample), _number(sample.get("score"))
        if name not in groups and len(groups) >= MAX_GROUPS:
            continue
        group = groups.setdefault(
            name, {"group": name, "samples": 0, "scores": [], "prompt": printable.show(sample["input"], 200)}
        )
        group["samples"] += 1
        group["scores"] += [score] if score is not None else []
    return [
        {**group, "scores": [min(group["scores"]), max(group["scores"])] if group["scores"] else []}
        for group in groups.values()
    ]


def read_group(manifest: Mapping[str, Any], step: int, group: str, *, validation: bool = False) -> list[dict[str, Any]]:
    """Return the samples of a group with their texts, split where a tool was called and answered.

    Args:
        manifest: The manifest of the run.
        step: Number of the step.
        group: Id of the sample, or the name that `list_groups` gave.
        validation: Whether the samples of the validation are meant.
    """
    samples = (sample for sample in _read(manifest, step, validation=validation) if _name_group(sample) == group)
    members = [_describe(sample) for sample, _ in zip(samples, range(MAX_MEMBERS), strict=False)]
    return sorted(members, key=lambda member: member["rollout_index"] if member["rollout_index"] is not None else -1)


def read_first(manifest: Mapping[str, Any], step: int, count: int) -> list[dict[str, Any]]:
    """Return the first samples of a step of the training, in the order of the file, as `read_group`.

    Args:
        manifest: The manifest of the run.
        step: Number of the step.
        count: Number of samples.
    """
    samples = _read(manifest, step, validation=False)
    return [_describe(sample) for sample, _ in zip(samples, range(count), strict=False)]


def has_folder(manifest: Mapping[str, Any]) -> list[str]:
    """Return which samples verl writes in this run: ``training``, ``validation``."""
    keys = {"training": TRAINING, "validation": VALIDATION}
    return [name for name, key in keys.items() if isinstance(manifest.get(key), str) and manifest[key]]


def _read(manifest: Mapping[str, Any], step: int, *, validation: bool) -> Iterator[dict[str, Any]]:
    folder = manifest.get(VALIDATION if validation else TRAINING)
    if not isinstance(folder, str) or not folder or step < 0:
        return
    try:
        with safe_files.open_regular(Path(folder) / f"{step}.jsonl") as file:
            lines = safe_files.read_lines(file, 0, os.fstat(file.fileno()).st_size)
            for (_, line, _), _ in zip(lines, range(MAX_SAMPLES), strict=False):
                sample = _parse(line)
                if sample is not None:
                    yield sample
    except (OSError, ValueError):  # not written yet, or on another node
        return


def _parse(line: bytes | None) -> dict[str, Any] | None:
    try:
        sample = safe_files.parse_json(line or b"")
    except ValueError:  # half a line: it is being written
        return None
    is_sample = (
        isinstance(sample, dict) and isinstance(sample.get("input"), str) and isinstance(sample.get("output"), str)
    )
    return sample if is_sample else None


def _name_group(sample: Mapping[str, Any]) -> str:
    uid = sample.get("uid")
    return uid.rsplit("_", 2)[0] if isinstance(uid, str) else f"prompt {_hash_text(sample['input'])}"


def _hash_text(text: str) -> str:
    """Return a short name of a prompt, the same in every process."""
    return f"{crc32(text.encode('utf-8', 'replace')):08x}"


def _describe(sample: Mapping[str, Any]) -> dict[str, Any]:
    uid = sample.get("uid")
    parts = uid.rsplit("_", 2) if isinstance(uid, str) else []
    index = int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None  # noqa: PLR2004 - sample, rollout, output
    facts = [(key, value) for key, value in sample.items() if key not in _KNOWN][:MAX_FACTS]
    return {
        "rollout_index": index,
        "prompt": _cut(sample["input"]),
        "parts": list(_split(_cut(sample["output"]))),
        "expected": None if sample.get("gts") is None else _cut(str(sample["gts"])),
        "score": _number(sample.get("score")),
        "facts": {printable.show(key): printable.show(value) for key, value in facts},
    }


def _split(text: str) -> Iterable[dict[str, str]]:
    """Yield the parts of a response: text, calls of tools and their answers."""
    place = 0

    def text_part(piece: str) -> Iterator[dict[str, str]]:
        if piece.strip() not in _ROLES:
            yield {"kind": "text", "text": piece.strip()}

    for match in _PART.finditer(text):
        yield from text_part(text[place : match.start()])
        yield {"kind": match[1], "text": match[2].strip()}
        place = match.end()
    yield from text_part(text[place:])


def _cut(text: str) -> str:
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]}\n… {len(text) - MAX_TEXT:,} characters left out …\n{text[-MAX_TEXT // 2 :]}"
    return printable.show_lines(text, MAX_TEXT + 100, MAX_TEXT)


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]  # checked above
