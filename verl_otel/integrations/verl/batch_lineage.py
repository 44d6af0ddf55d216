# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lineage without TransferQueue: the legacy, one-step-off and fully asynchronous trainers, and verl 0.7 and 0.8.

Tags are transported in one entry of a batch's ``meta_info``: a text under a unique key. A process may lack verl-otel,
so the entry has to survive every merge of verl in any order, and to be unpickled without verl-otel. `DataProto.concat`
and `DataProto.union` take the union of such entries. They reject a column or a key of the metrics that only some of the
batches have. See docs/explanation/decisions/0017-send-lineage-under-a-unique-key.md.
"""

from __future__ import annotations

import functools
import inspect
import uuid
import weakref
from contextvars import ContextVar
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import Hook, argument
from verl_otel.integrations.spans import find_open
from verl_otel.integrations.verl import gpu_time, lineage
from verl_otel.integrations.verl.llm import wrap_awaited
from verl_otel.integrations.verl.sample_origin import VALIDATE, Origin, find_origin
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER

PREFIX: Final = "verl_otel_"
"""Prefix of the key in ``meta_info``; a random number follows, so that keys of batches never collide."""
MAX_READY: Final = 16
"""Maximum number of batches that wait for their step; verl generates one ahead."""
_WARMUP: Final = CallSite("warmup", hook=True)
_arrived: ContextVar[list[Origin] | None] = ContextVar("verl_otel_arrived", default=None)
_ready: dict[int, list[Origin]] = {}
"""Origins of a batch that was generated ahead of its step, by the ``id`` of the batch."""
_finished: dict[int, tuple[weakref.ref[Any], str]] = {}
"""Tag of an output that waits for its batch, by the ``id`` of the output; removed together with the output."""


def _store_output_tag(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Store the tag of a finished output beside the output, and not in it."""
    output = yield
    origin = find_origin() if RECORDER.on and output is not None else None
    if origin is not None:
        facts = dict(origin.facts)
        with error_boundary.suppress_errors("trained rows"):
            facts |= lineage.describe_row(output)
        key = id(output)
        tag = origin._replace(facts=facts).encode()
        _finished[key] = weakref.ref(output, lambda _: _finished.pop(key, None)), tag


def _take_tag(output: Any) -> str | None:
    entry = _finished.get(id(output))
    if entry is None or entry[0]() is not output:
        return None
    del _finished[id(output)]
    return entry[1]


def _send_tags(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Add the tags of a worker's outputs to the ``meta_info`` of their batch."""
    batch = yield
    outputs = argument(args, kwargs, 1, "inputs")
    tags = [tag for tag in map(_take_tag, outputs) if tag is not None]
    if tags:
        batch.meta_info[PREFIX + uuid.uuid4().hex] = "\n".join(tags)  # JSON has no line break inside


def take_origins(meta_info: dict[str, Any]) -> list[Origin]:
    """Take our entries out of a batch's ``meta_info`` and return where its rows come from, in no order.

    Args:
        meta_info: That of one batch, or of batches that verl merged.
    """
    keys = [key for key in meta_info if isinstance(key, str) and key.startswith(PREFIX)]
    texts = [meta_info.pop(key) for key in keys]
    tags = [tag for text in texts for tag in (text.split("\n") if isinstance(text, str) else [text])]
    return [origin for origin in map(lineage.read_tag, tags) if origin is not None]


def _read_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Read the origins of a complete batch, before the trainer computes its metrics."""
    origins = take_origins(argument(args, kwargs, 2, "output").meta_info)
    waiting = _arrived.get()
    if waiting is not None:
        waiting.extend(origins)
    elif find_open("validation") is None and not any(VALIDATE in origin.facts for origin in origins):
        _consume(origins, summarise=False)
    else:
        gpu_time.note_samples(origins, validate=True)
    yield


def _consume(origins: list[Origin], *, summarise: bool, logged_later: bool = False) -> None:
    lineage.note_received(origins)
    lineage.consume(origins, step=Trainer.step_number(), summarise=summarise, logged_later=logged_later)


def note_update(batch: Any) -> None:
    """Note a batch that is sent to an update.

    A manager of the user's that does not call verl's ``_performance_metrics`` has left the tags of its rows in the
    batch: they are read here.

    Args:
        batch: verl's ``DataProto``, or the ``TensorDict`` of one.
    """
    if not lineage.has_received():
        origins = _read_left(batch)
        if origins:
            _consume(origins, summarise=True)
    lineage.note_update(batch)


def _read_left(batch: Any) -> list[Origin]:
    entries = getattr(batch, "meta_info", batch)
    if not callable(getattr(entries, "keys", None)):
        return []
    names = [name for name in map(str, entries.keys()) if name.startswith(PREFIX)]
    return take_origins({name: entries[name] for name in names})


def _clean_result(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Take our entry out of a generated batch: verl returns the ``meta_info`` of the first worker with it."""
    batch = yield
    take_origins(batch.meta_info)


def _wrap_generation(original: Any) -> Any:
    return surround("lineage", _clean_result)(original) if inspect.iscoroutinefunction(original) else original


def _collect_ahead(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Collect the origins of the next batch, which is generated concurrently with the step; the first one before the first step."""
    origins: list[Origin] = []
    token = _arrived.set(origins)
    try:
        if RECORDER.on and find_open("step") is None:
            with Span(_WARMUP):
                result = yield
        else:
            result = yield
    finally:
        _arrived.reset(token)
    if result is not None and origins:
        if len(_ready) >= MAX_READY:
            _ready.clear()
        _ready[id(result[3])] = origins


def _consume_ahead(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Consume the batch that was generated ahead, after the step has waited for it."""
    result = yield
    origins = _ready.pop(id(result[0]), None)
    if origins:
        _consume(origins, summarise=False)


def _consume_queue(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
    """Consume the samples of a message queue, before they become a batch.

    verl's fully asynchronous trainer adds the metrics of a local step up after it has logged those of the version.
    """
    samples = argument(args, kwargs, 0, "rollout_samples")
    origins = [origin for sample in samples for origin in take_origins(sample.full_batch.meta_info)]
    _consume(origins, summarise=True, logged_later=True)
    yield


_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
_CONSEQUENCE: Final = "steps are not linked to the trajectories that they trained on ({})"
HOOKS: Final = (
    Hook.wrapping(
        _LOOP,
        "AgentLoopWorker._postprocess",
        surround("lineage", _send_tags),
        _CONSEQUENCE.format("without TransferQueue"),
        others={"AgentLoopWorker._agent_loop_postprocess": surround("lineage", _store_output_tag)},
    ),
    Hook.wrapping(
        _LOOP,
        "AgentLoopManager._performance_metrics",
        surround("lineage", _read_batch),
        _CONSEQUENCE.format("without TransferQueue"),
    ),
    Hook.wrapping(
        _LOOP,
        "AgentLoopManager.generate_sequences",
        functools.partial(wrap_awaited, wrap=_wrap_generation),
        "validation counts as training (one-step-off and fully asynchronous trainers)",
    ),
    Hook.wrapping(
        "verl.experimental.one_step_off_policy.ray_trainer",
        "OneStepOffRayTrainer._async_gen_next_batch",
        surround("lineage", _collect_ahead),
        _CONSEQUENCE.format("one-step-off"),
        since="verl 0.8",
        others={"OneStepOffRayTrainer._fit_generate": surround("lineage", _consume_ahead)},
    ),
    Hook.wrapping(
        "verl.experimental.fully_async_policy.detach_utils",
        "assemble_batch_from_rollout_samples",
        surround("lineage", _consume_queue),
        _CONSEQUENCE.format("fully asynchronous"),
        since="verl 0.8",
    ),
)
