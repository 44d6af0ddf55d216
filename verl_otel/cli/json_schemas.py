# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""JSON schemas (draft 2020-12) of what the commands print with ``--json``. Keys are part of the public interface.

Durations are in seconds, times in seconds since 1970 unless a description says otherwise, ids in hexadecimal. Unknown values are null.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]


def _is(kind: str, text: str = "", *, known: bool = True) -> Schema:
    """Return the schema of a plain value; not ``known``: it may be null."""
    described = {"description": text} if text else {}
    return {"type": kind if known else [kind, "null"], **described}


def _text(text: str = "", *, known: bool = True) -> Schema:
    return _is("string", text, known=known)


def _number(text: str = "", *, known: bool = True) -> Schema:
    return _is("number", text, known=known)


def _whole(text: str = "", *, known: bool = True) -> Schema:
    return _is("integer", text, known=known)


def _flag(text: str = "") -> Schema:
    return _is("boolean", text)


def _list(items: Schema, text: str = "") -> Schema:
    return {**_is("array", text), "items": items}


def _object(text: str = "", /, **keys: Schema) -> Schema:
    """Return the schema of an object with exactly these keys."""
    properties = {"properties": keys, "required": list(keys), "additionalProperties": False}
    return {**_is("object", text), **properties}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _rows(text: str = "", /, **keys: Schema) -> Schema:
    """Return the schema of a list of objects with exactly these keys."""
    return _list(_object(**keys), text)


def _mapping(values: Schema, text: str = "", *, known: bool = True) -> Schema:
    """Return the schema of an object whose keys are names."""
    return {**_is("object", text, known=known), "additionalProperties": values}


_OFF_POLICY: Final = _or_null(
    _object(
        "difference between the policies of engine and trainer, where verl logs it and the age of the samples",
        key=_text("scalar of verl that has the difference"),
        age=_number("versions that the samples were old, mean of all steps"),
        fresh_steps=_whole("steps all of whose samples were fresh"),
        fresh=_number("mean difference in those", known=False),
        stale_steps=_whole(),
        stale=_number("mean difference in the other steps", known=False),
        from_age=_number("share of that difference that fresh samples do not have", known=False),
    )
)
_STATE: Final = _text("running, finished, failed, stopped by guard, interrupted, crashed, ended, no end seen")
_RUN_ID: Final = _text("id of the run")
_MISSING: Final = _list(_text(), "sentences about data that is not there")
_ORPHANS: Final = _whole("spans whose parent is in no file")
_FOLDERS: Final = _list(_text(), "folders, or files, that were read")
_PHASES: Final = _mapping(_number(), "seconds by phase")
_SUMMED: Final = _rows(
    "parts by kind and name, the longest first",
    kind=_text("kind of work"),
    name=_text("tool, phase, method"),
    seconds=_number(),
)
_DEVICES: Final = _mapping(_mapping(_number(), "seconds by cause"), "device time, by device")
_LEARNING: Final = {
    "profile": _text("profile of the thresholds"),
    "progress": _text("sentence about the reward; empty: fewer than five steps have one"),
    "signals": _rows(
        "values over the run",
        name=_text("as in the run log"),
        key=_text("verl's key"),
        begin=_number("mean of the first steps"),
        end=_number("mean of the last steps"),
        low=_number(),
        low_step=_whole(),
        high=_number(),
        high_step=_whole(),
        trend=_number("Kendall's tau, -1 (falls) to 1 (rises)", known=False),
        not_finite=_whole("steps in which it was NaN or infinite"),
    ),
    "findings": _rows(
        "what was wrong with the learning",
        kind=_text("nan, kl, reward_fall, plateau, reward_zero, reward_range, entropy, truncated, equal_scores"),
        step=_whole("the first step at which it was noticed"),
        last_step=_whole("the last step"),
        times=_whole("how often"),
        text=_text(),
        next=_text("what to do about it"),
    ),
}
_COST: Final = {
    "gpu_seconds": _number("device time"),
    "trained_tokens": _whole(
        "tokens that the model wrote and that reached the optimizer, without answers of tools and those of lost steps"
    ),
    "wasted_tokens": _mapping(_whole(), "tokens that the model wrote without use, by reason"),
}
_PART: Final = _object(
    "what a trajectory spent its time on",
    kind=_text("llm, tool, reward, wait and others"),
    name=_text("tool or model"),
    seconds=_number(),
    calls=_whole("number of calls"),
    turn=_whole("turn of the longest call", known=False),
)
_STRAGGLER: Final = {
    "method": _text(),
    "rank": _whole("rank or number of the worker"),
    "instance": _text("process"),
    "seconds": _number("its delay"),
    "evidence": _text("arrival, data, tokens, cpu; in own loops began, took"),
}

_RUN: Final = {
    "run": _RUN_ID,
    "state": _STATE,
    "steps": _whole(known=False),
    "last_step": _whole(known=False),
    "last_step_seconds": _number(known=False),
    "started": _number(known=False),
    "seconds": _number(
        "from the start of the first attempt to the end of the last one, or to its newest record", known=False
    ),
    "bytes": _whole(),
    "written": _number("when a file was last written"),
    "folder": _text(),
}
RUNS: Final = _object(
    "verl-otel runs --json",
    runs=_rows("the newest first", **_RUN),
    next=_list(_text(), "the command that explains the newest run"),
)
PRUNE: Final = _object(
    "verl-otel runs --prune --json",
    runs=_rows(
        "those that the limits select",
        **_RUN,
        reason=_text("why it is chosen"),
        deleted=_flag(),
        kept=_text("why it is not deleted", known=False),
    ),
    next=_list(_text(), "the command that lists what is left"),
)
SCHEMAS: Final = {
    "runs": RUNS,
    "runs --prune": PRUNE,
}
"""By command."""
