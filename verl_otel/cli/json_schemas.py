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

REPORT: Final = _object(
    "verl-otel report --json",
    run_id=_RUN_ID,
    facts=_mapping({}, "run.json: attempts, project, experiment, configuration"),
    steps=_rows(
        "all steps in the order of time",
        number=_whole("as verl counts", known=False),
        attempt=_whole("attempt of the run, from 1"),
        repeated=_flag("a later attempt went on from an earlier checkpoint: it trains it again, or ended before"),
        seconds=_number(),
        failed=_flag("it ended with an exception, or was interrupted"),
        phases=_PHASES,
        no_phase=_number("seconds outside of phases"),
        between=_number("seconds to the next step, or to the last record of the run"),
        trajectories=_list(_text(), "trace ids of those that it trained on"),
    ),
    trajectories=_rows(
        "the slowest ones",
        trace_id=_text(),
        uid=_text("prompt"),
        index=_whole("number in the group of the prompt"),
        step=_whole(known=False),
        validate=_flag("of a validation"),
        seconds=_number(),
        score=_number(known=False),
        failed=_flag(),
        parts=_list(_PART),
    ),
    reward=_mapping(_number(), "mean reward by step"),
    waits=_rows(
        "steps that waited for one trajectory",
        step=_whole(known=False),
        trajectory=_text("trace id"),
        lead=_number("seconds that only this one was waited for"),
        part=_PART,
    ),
    unfinished=_rows(
        "processes with open spans",
        process=_text(),
        pid=_text(),
        dead=_flag("it was silent while others wrote"),
        silent=_number("seconds"),
        work=_rows(name=_text(), age=_number(), last_child=_text()),
    ),
    missing=_MISSING,
    orphans=_ORPHANS,
    folders=_FOLDERS,
    next=_list(_text(), "commands that explain the run"),
)
_VERDICT: Final = _object(
    "one cause",
    step=_whole(known=False),
    step_seconds=_number(),
    kind=_text("trajectory, replica, tool, reward, phase, rank, between, loop, process"),
    subject=_text("what delayed the step"),
    cause=_text("kind of work that took the time"),
    cause_name=_text(),
    seconds=_number("excess over its peers"),
    saved=_number("by how much the step would have been shorter"),
    trace_id=_text("trajectory", known=False),
    turn=_whole(known=False),
    instance=_text("process"),
    uncertainty=_number("of the clocks", known=False),
    waiting=_whole("trajectories that waited for a blocked event loop"),
    line=_text("FILE:LINE in FUNCTION of the code that blocked an event loop; empty: none, or unknown"),
    next=_text("what to do about it"),
)
_SEGMENT: Final = _object(
    after=_number("seconds after the start of the step"),
    seconds=_number(),
    kind=_text(),
    name=_text(),
    phase=_text(),
    process=_text(),
    trace_id=_text("trajectory", known=False),
    turn=_whole(known=False),
)
EXPLAIN: Final = _object(
    "verl-otel explain --json",
    run_id=_RUN_ID,
    state=_STATE,
    folders=_FOLDERS,
    counts=_mapping(_whole(), "numbers of spans, trajectories, calls, processes and steps; held: steps with a cause"),
    steps=_rows(
        "the steps that were chosen",
        number=_whole("as verl counts", known=False),
        attempt=_whole("attempt of the run, from 1"),
        repeated=_flag("a later attempt went on from an earlier checkpoint: it trains it again, or ended before"),
        trace_id=_text(),
        seconds=_number(),
        failed=_flag(),
        error=_text("type of the exception"),
        verdicts=_list(_VERDICT, "the largest saving first"),
        path=_list(_SEGMENT, "critical path in the order of time"),
        path_summed=_SUMMED,
        between=_number("seconds to the next step, or to the last record of the run"),
        between_summed=_SUMMED,
        phases=_PHASES,
        savings=_rows(what=_text(), trajectories=_whole(), seconds=_number()),
        gpu=_DEVICES,
        stragglers=_rows("late ranks and workers", **_STRAGGLER),
        not_observable=_list(_text(), "evidence for late ranks that no span has"),
        cost=_or_null(_object(**_COST)),
        uncertainty=_number("of the clocks", known=False),
    ),
    run=_object(
        gpu=_DEVICES,
        balance=_or_null(
            _object(
                "where rollouts and trainer have GPUs of their own",
                short=_text("the side that is short of GPUs: rollouts, trainer, neither"),
                trainer_gpus=_whole(),
                rollout_gpus=_whole(),
                trainer_waits=_number(
                    "share of the time of the trainer's GPUs in which it waited for samples while trajectories were open"
                ),
                rollouts_wait=_number(
                    "share of the time of the GPUs of the rollouts in which they waited for the trainer"
                ),
                both_wait=_number(
                    "share of the time of all these GPUs in which the trainer waited for samples and no trajectory was open"
                ),
                too_few=_number(
                    "share of the time of the GPUs of the rollouts with open trajectories and no or few requests"
                ),
            )
        ),
        off_policy=_OFF_POLICY,
        cost=_or_null(_object(**_COST, generated_tokens=_whole("all tokens that the model wrote for training"))),
        stragglers=_rows(
            **_STRAGGLER,
            late=_whole("steps in which it was late"),
            steps=_whole("steps that were counted"),
        ),
        start_up=_rows(
            "the time before the first step of each of the newest attempts",
            attempt=_whole(),
            seconds=_number(),
            parts=_rows(
                "in the order of time, without a gap",
                kind=_text("begin, workers_start, call, weight_sync, checkpoint, validation, between, rest"),
                name=_text("method that was called; for between the call before"),
                seconds=_number(),
            ),
        ),
    ),
    events=_rows(
        kind=_text("stall, crash, stopped or alert"),
        after=_number("seconds after the start of the run", known=False),
        text=_text(),
        stack=_list(_text(), "FILE:LINE in FUNCTION of where the culprit was, the innermost call first"),
        detail=_mapping({}),
        next=_text("what to do about it; empty if it is no stall and no crash"),
    ),
    missing=_MISSING,
    orphans=_ORPHANS,
    unknown=_list(_text(), "what no run records"),
    next=_list(_text(), "commands that show more: first of stalls and crashes, then of these steps"),
    clocks=_rows(host=_text(), ahead=_number(known=False), uncertainty=_number(known=False)),
)
EXPLAIN_LOG: Final = _object(
    "verl-otel explain LOG --json: a log of verl's own file logger",
    run_id=_text("name of the file"),
    state=_text("no end seen"),
    folders=_FOLDERS,
    counts=_object(
        steps=_whole("without those that were trained again"),
        attempts=_whole("1, and one more each time the number of the step went back"),
        repeated=_whole("steps after the checkpoint that a later attempt went on from"),
        held=_whole("steps with a cause"),
        unexplained=_whole("slow steps without one"),
    ),
    steps=_rows(
        "the steps that were chosen",
        number=_whole("as verl counts"),
        attempt=_whole("attempt of the run, from 1"),
        repeated=_flag("a later attempt went on from an earlier checkpoint: it trains it again, or ended before"),
        seconds=_number(),
        verdicts=_rows(
            "the largest saving first",
            step=_whole(),
            step_seconds=_number(),
            kind=_text("phase; between: a phase after the step"),
            subject=_text("the phase"),
            cause=_text("kind of work that took the time"),
            cause_name=_text(),
            seconds=_number("excess over other steps"),
            saved=_number("by how much the step would have been shorter"),
            next=_text("what to do about it"),
        ),
        phases=_PHASES,
        no_phase=_number("seconds outside of phases"),
    ),
    seconds=_number("of all steps, and of phases after them"),
    median=_number("of the steps", known=False),
    phases=_rows(
        "the longest first, without steps that contain start-up",
        name=_text(),
        seconds=_number(),
        share=_number("of the time of these steps"),
        median=_number("of the steps that have it"),
        longest=_number(),
        longest_step=_whole(),
        steps=_whole("steps that have it"),
        outside=_flag("it is timed after the step, not in it"),
    ),
    changes=_rows(
        "phases whose usual time became another one",
        name=_text("a phase, or step"),
        step=_whole("the first step of the new length; of a gradual change the first that is compared"),
        last_step=_whole("the last step that is compared"),
        before=_number("median in seconds"),
        after=_number("median in seconds"),
        sudden=_flag("not a gradual change"),
        tokens=_or_null(_object("tokens of a step or a response", key=_text(), before=_number(), after=_number())),
    ),
    profile=_text("profile of the thresholds"),
    progress=_text("sentence about the reward"),
    off_policy=_OFF_POLICY,
    signals=_rows(
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
    findings=_rows(
        "what was wrong with the learning",
        kind=_text("nan, kl, reward_fall, plateau, reward_zero, reward_range, entropy, truncated, equal_scores"),
        step=_whole("the first step at which it was noticed"),
        last_step=_whole("the last step"),
        times=_whole("how often"),
        text=_text(),
        next=_text("what to do about it"),
    ),
    missing=_MISSING,
    unknown=_list(_text(), "what no such log has"),
    next=_list(_text(), "commands that show more"),
)
LEVERS: Final = _object(
    "verl-otel levers --json",
    run_id=_RUN_ID,
    state=_STATE,
    steps=_list(_whole(known=False), "numbers of the steps that were replayed and compared"),
    period=_number("mean time from one of them to the next, in seconds"),
    waited=_number("mean time of it in which the trainer waited for trajectories"),
    levers=_rows(
        "the largest gain first",
        kind=_text(
            "tool, reward, unblocked_tool, unblocked_reward, tail, agent_loop_workers, replicas, reward_workers, between, logging, "
            "data_loading, weight_sync, asynchrony"
        ),
        subject=_text("tool, data source, tracker or percentage"),
        seconds=_number("mean gain of a step"),
        low=_number("lower end of its interval of 90 %", known=False),
        high=_number("upper end", known=False),
        share=_number("gain as a share of the period"),
        only_step=_whole("the step from which nearly all of the gain comes; null: from several", known=False),
        text=_text("what is changed"),
    ),
    limits=_rows(
        "limits that trajectories shared", kind=_text("loop, server, reward"), process=_text(), slots=_whole()
    ),
    unknown=_list(_text(), "sentences about what is not known"),
    next=_list(_text(), "the command that shows more"),
)
_RUN: Final = {
    "run": _RUN_ID,
    "state": _STATE,
    "steps": _whole(known=False),
    "last_step": _whole(known=False),
    "last_step_seconds": _number(known=False),
    "started": _number(known=False),
    "seconds": _number(
        "from the start of the first attempt to the end of the last one, or to its last step; while it is running, to its newest file",
        known=False,
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
CHECK: Final = _object(
    "verl-otel check --json",
    checks=_rows(state=_text("ok, note, fail"), subject=_text(), text=_text(), advice=_text()),
    next=_list(_text(), "what to call when the advice was followed"),
)
DISCOVER: Final = _object(
    "verl-otel discover --json",
    targets=_rows(
        targets=_list(_text(), "addresses"),
        labels=_mapping(_text()),
        state=_text(),
        detail=_text(),
    ),
    next=_list(_text(), "the command that collects from the targets, or that says why there is none"),
)
GUARDS: Final = _object(
    "verl-otel guards --json",
    run_id=_RUN_ID,
    steps=_whole("steps with scalars"),
    guards=_mapping(_or_null(_object(step=_whole(), text=_text())), "what would have stopped the run"),
    best_step=_whole("of those that verl saved, if that is known", known=False),
    save_frequency=_whole("trainer.save_freq", known=False),
    next=_list(_text(), "the command that shows more"),
)
_SAMPLE: Final = _object(
    steps=_whole(),
    typical=_number("mean without the fastest and slowest fifth", known=False),
    median=_number(known=False),
    low=_number("first quartile", known=False),
    high=_number("third quartile", known=False),
)
_RESOURCES: Final = _object(
    gpus=_whole("number of GPUs, or of ranks on a CPU", known=False),
    trained_tokens_per_second=_number(
        "tokens that the model wrote and steps trained on, for a second of a step", known=False
    ),
    rollout_tokens_per_second=_number(
        "tokens that the model wrote, validations included, for a second of time", known=False
    ),
    gpu_utilization=_number("mean over time and GPUs, 0 to 1", known=False),
    **dict.fromkeys(("gpu_memory", "gpu_memory_highest"), _number("bytes of one GPU", known=False)),
)
_HELD: Final = _object(
    steps=_whole("that took longer than usual"),
    of=_whole("all steps"),
    seconds=_number("by how much, in all"),
    verdict=_text("the largest cause", known=False),
)
COMPARE: Final = _object(
    "verl-otel compare --json",
    a=_RUN_ID,
    b=_RUN_ID,
    steps=_object("steps that were compared", a=_whole(), b=_whole()),
    skipped=_whole("steps at the start of each attempt that were left out"),
    enough=_flag("enough steps for a test"),
    noise=_number("relative standard deviation of equivalent runs"),
    rows=_rows(
        name=_text(),
        unit=_text(),
        a=_SAMPLE,
        b=_SAMPLE,
        change=_number("relative to A", known=False),
        p=_number(known=False),
        significant=_flag(),
        detectable=_number("smallest change that would be detected", known=False),
    ),
    explanation=_rows(
        "what changed on the critical path",
        kind=_text(),
        seconds=_number("change"),
        share=_number("change as a share of a step of A", known=False),
        names=_rows(name=_text(), a=_number(), b=_number()),
    ),
    held=_object("steps that something delayed, of all steps", a=_HELD, b=_HELD),
    resources=_object("means over the steps that were compared", a=_RESOURCES, b=_RESOURCES),
    scaling=_or_null(
        _object(
            "tokens per second and GPU of B as a share of those of A, for runs of different size",
            **dict.fromkeys(("trained_tokens", "rollout_tokens"), _number(known=False)),
        )
    ),
    notes=_list(_text()),
    conditions=_rows("--fail-if", condition=_text(), holds=_flag(), judged=_flag(), reason=_text()),
    next=_list(_text(), "the commands that explain the two runs, first the one in which more was lost"),
)
SCHEMAS: Final = {
    "report": REPORT,
    "explain": EXPLAIN,
    "explain LOG": EXPLAIN_LOG,
    "levers": LEVERS,
    "compare": COMPARE,
    "runs": RUNS,
    "runs --prune": PRUNE,
    "check": CHECK,
    "discover": DISCOVER,
    "guards": GUARDS,
}
"""By command."""
