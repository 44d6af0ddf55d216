# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lineage where there is no TransferQueue: the legacy, one-step-off and fully asynchronous trainers, and verl 0.7 and 0.8.

The second carrier is the list of per-sample metrics that an agent loop worker sends with its batch: plain dicts, in the order of the
rows, which the trainer takes apart before anything else looks at the batch. A column of the batch would not do: verl refuses to
concatenate batches of which one has a column that another lacks, and one node may lack verl-otel.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.patch import PATCHED, Hook, enter, leave, replace
from verl_otel.integrations.verl import gpu_time, lineage
from verl_otel.integrations.verl.agent_loop import find_open
from verl_otel.integrations.verl.coroutines import wrap_awaited
from verl_otel.integrations.verl.lineage import TAG
from verl_otel.integrations.verl.origins import Origin, find_origin
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.recording.site import Site
from verl_otel.recording.span import Span
from verl_otel.recording.store import Store

MAX_READY: Final = 16
"""Batches that wait for their step; verl generates one ahead."""
_WARMUP: Final = Site("warmup", hook=True)
_arrived: ContextVar[list[Origin] | None] = ContextVar("verl_otel_arrived", default=None)
_ready: dict[int, list[Origin]] = {}
"""What a batch that was generated ahead of its step consists of, by the identity of the batch."""


def _tag_output(original: Any) -> Any:
    """Wrap the end of a trajectory: its output says where it comes from, until `_move_tags`."""

    @functools.wraps(original)
    async def postprocess(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        if Store.on and result is not None and getattr(type(self)._postprocess, PATCHED, False):
            with _guard.swallowed("lineage"):
                origin = find_origin()
                if origin is not None:
                    result.extra_fields[TAG] = origin.encode()
        return result

    return postprocess


def _move_tags(original: Any) -> Any:
    """Wrap the making of a worker's batch: move the tags from the outputs, which become columns, to their metrics."""

    @functools.wraps(original)
    def postprocess(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        tags: list[str | None] = []
        with _guard.swallowed("lineage"):
            tags = [output.extra_fields.pop(TAG, None) for output in inputs]
        result = original(self, inputs, *args, **kwargs)
        with _guard.swallowed("lineage"):
            for metrics, tag in zip(result.meta_info["metrics"], tags, strict=True):
                if tag is not None:
                    metrics[TAG] = tag
        return result

    return postprocess


def _read_metrics(original: Any) -> Any:
    """Wrap what the trainer does with the metrics of all workers: the batch is complete, and here."""

    @functools.wraps(original)
    def performance_metrics(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        with _guard.swallowed("lineage"):
            origins = lineage.take_tags([each for chunk in metrics for each in chunk])
            waiting = _arrived.get()
            if waiting is not None:
                waiting.extend(origins)
            elif find_open("validation") is None:
                lineage.consume(origins, step=Trainer.step_number(), summarise=False)
            else:
                gpu_time.note_samples(origins, validate=True)
        return original(self, metrics, *args, **kwargs)

    return performance_metrics


def _begin_warmup(*_: Any) -> Span | None:
    """Begin the span to which the first batch belongs, which is generated before there is a step."""
    return Span(_WARMUP) if find_open("step") is None else None


def _collect_ahead(original: Any) -> Any:
    """Wrap the generation of the next step's batch, which runs beside the step."""

    @functools.wraps(original)
    async def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        origins: list[Origin] = []
        token = _arrived.set(origins)
        span = enter("warmup", _begin_warmup, self, args, kwargs)
        try:
            result = await original(self, *args, **kwargs)
        except BaseException as error:
            leave(span, error)
            raise
        finally:
            _arrived.reset(token)
        leave(span)
        with _guard.swallowed("lineage"):
            if result is not None and origins:
                if len(_ready) >= MAX_READY:
                    _ready.clear()
                _ready[id(result[3])] = origins
        return result

    return generate


def _consume_ahead(original: Any) -> Any:
    """Wrap the step's wait for the batch that was generated ahead."""

    @functools.wraps(original)
    async def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        with _guard.swallowed("lineage"):
            origins = _ready.pop(id(result[0]), None)
            if origins:
                lineage.consume(origins, step=Trainer.step_number(), summarise=False)
        return result

    return generate


def _consume_queue(original: Any) -> Any:
    """Wrap the making of a batch from the samples of a message queue."""

    @functools.wraps(original)
    def assemble(rollout_samples: Any, *args: Any, **kwargs: Any) -> Any:
        with _guard.swallowed("lineage"):
            metrics = [each for sample in rollout_samples for each in sample.full_batch.meta_info.get("metrics", ())]
            lineage.consume(lineage.take_tags(metrics), step=Trainer.step_number())
        return original(rollout_samples, *args, **kwargs)

    return assemble


def _patch_worker(module: ModuleType) -> None:
    replace(module.AgentLoopWorker, "_postprocess", _move_tags)
    replace(module.AgentLoopWorker, "_agent_loop_postprocess", _tag_output)


def _patch_manager(module: ModuleType) -> None:
    replace(module.AgentLoopManager, "_performance_metrics", _read_metrics)


def _patch_generate(module: ModuleType) -> None:
    replace(module.AgentLoopManager, "generate_sequences", wrap_awaited)


def _patch_one_step(module: ModuleType) -> None:
    replace(module.OneStepOffRayTrainer, "_async_gen_next_batch", _collect_ahead)
    replace(module.OneStepOffRayTrainer, "_fit_generate", _consume_ahead)


def _patch_fully_async(module: ModuleType) -> None:
    replace(module, "assemble_batch_from_rollout_samples", _consume_queue)


_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
_LOST: Final = "steps are not linked to the trajectories that they trained on ({})"
HOOKS: Final = (
    Hook(_LOOP, "AgentLoopWorker._postprocess", _patch_worker, _LOST.format("without TransferQueue")),
    Hook(_LOOP, "AgentLoopManager._performance_metrics", _patch_manager, _LOST.format("without TransferQueue")),
    Hook(
        _LOOP,
        "AgentLoopManager.generate_sequences",
        _patch_generate,
        "validation counts as training (one-step-off and fully asynchronous trainers)",
    ),
    Hook(
        "verl.experimental.one_step_off_policy.ray_trainer",
        "OneStepOffRayTrainer._async_gen_next_batch",
        _patch_one_step,
        _LOST.format("one-step-off"),
        since="verl 0.8",
    ),
    Hook(
        "verl.experimental.fully_async_policy.detach_utils",
        "assemble_batch_from_rollout_samples",
        _patch_fully_async,
        _LOST.format("fully asynchronous"),
        since="verl 0.8",
    ),
)
