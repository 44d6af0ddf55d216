# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stamps for an independent count: what each update trained on, and when methods of the trainer and of its ranks ran.

Written to the bed's own log (`cpu_log`). Nothing of verl-otel is used here. Kinds of lines:

``update``: one update of the actor, with ``step``, as verl logs it, and ``rows``, one for each sample: ``uid``, ``score`` (of the reward function),
``reward`` (that is optimised), ``prompt``, ``response`` and ``generated`` (tokens), ``advantage`` (the largest), and ``first`` and ``last``, the versions
of the weights that generated the first and the last token, where verl knows them.
``process``: a process that has imported verl. ``rank``: an outermost method of a rank. ``validation``, ``checkpoint``, ``logged``: calls of the trainer.
``load``: the trainer waits for an iterator over its data, or for the next batch.
``timers``: verl's timers of one local step of fully asynchronous training, whose logger mixes those of two versions.
"""

import contextvars
import functools
import inspect
import os
import time

import cpu_log

_inside = contextvars.ContextVar("inside", default=False)
"""Whether a stamped method of this rank is running."""
_computed = {}
"""Key of a trajectory to what a trainer of v1 computed for it. Its batches hold only keys and tags."""


def stamp(owner, name, kind, describe=lambda *_, **__: {}):
    """Log each call of a method. ``describe`` returns more fields from its arguments before it runs."""
    original = getattr(owner, name, None)
    if original is None:  # another release of verl
        return

    @functools.wraps(original)
    def stamped(*args, **kwargs):
        with cpu_log.stamped(kind, **describe(*args, **kwargs)):
            return original(*args, **kwargs)

    setattr(owner, name, stamped)


def stamp_rank(owner, name):
    """Log each call of a method of a rank that no other stamped method calls."""
    original = getattr(owner, name, None)
    if original is None:
        return

    def enter():
        fields = {"method": name, "owner": owner.__name__, "rank": int(os.environ.get("RANK", "0"))}
        return _inside.set(True), cpu_log.stamped("rank", **fields)

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def stamped(*args, **kwargs):
            token, block = enter()
            try:
                with block:
                    return await original(*args, **kwargs)
            finally:
                _inside.reset(token)

    else:

        @functools.wraps(original)
        def stamped(*args, **kwargs):
            if _inside.get():
                return original(*args, **kwargs)
            token, block = enter()
            try:
                with block:
                    return original(*args, **kwargs)
            finally:
                _inside.reset(token)

    setattr(owner, name, stamped)


def stamp_ranks(module):
    for name in ("train_mini_batch", "train_batch", "infer_batch", "save_checkpoint", "load_checkpoint"):
        stamp_rank(module.TrainingWorker, name)
    for name in (
        "init_model", "compute_log_prob", "compute_ref_log_prob", "update_actor", "update_weights", "save_checkpoint",
        "load_checkpoint",
    ):  # fmt: skip
        stamp_rank(module.ActorRolloutRefWorker, name)


def stamp_tracking(module):
    stamp(module.Tracking, "log", "logged", lambda _, data, step, *__, **___: {"step": int(step)})


def describe_rows(data):
    """Return what a batch of verl says of each of its samples; it is padded, and the loss is computed where the mask is 1."""
    batch, others = data.batch, data.non_tensor_batch
    mask = batch["response_mask"]
    absent = [None] * len(mask)
    return [
        {
            "uid": str(uid),
            "score": batch["token_level_scores"][i].sum().item(),
            "reward": batch["token_level_rewards"][i].sum().item(),
            "generated": int(mask[i].sum()),
            "advantage": (batch["advantages"][i] * mask[i]).abs().max().item(),
            "first": _as_number(others.get("min_global_steps", absent)[i]),
            "last": _as_number(others.get("max_global_steps", absent)[i]),
        }
        for i, uid in enumerate(others["uid"])
    ]


def _as_number(version):
    return None if version is None else int(version)


def stamp_v1(module):
    compute = module.compute_advantage_for_multi_trajectories

    @functools.wraps(compute)
    def compute_advantage_for_multi_trajectories(data, *args, batch_keys, **kwargs):
        computed = compute(data, *args, batch_keys=batch_keys, **kwargs)
        _computed.update(zip(batch_keys, describe_rows(computed), strict=True))
        return computed

    def describe(trainer, batch, *_, **__):
        tagged = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        rows = [
            {
                **_computed[key], "key": key, "uid": key.split("_")[0], "prompt": tag["prompt_len"],
                "response": tag["response_len"], "first": _as_number(tag["min_global_steps"]),
                "last": _as_number(tag["max_global_steps"]),
            }
            for key, tag in tagged
        ]  # fmt: skip
        _computed.clear()
        return {"step": trainer.global_steps, "rows": rows}

    module.compute_advantage_for_multi_trajectories = compute_advantage_for_multi_trajectories
    stamp(module.PPOTrainer, "_update_actor", "update", describe)
    stamp(module.PPOTrainer, "_validate", "validation", lambda trainer: {"step": trainer.global_steps})
    stamp(module.PPOTrainer, "_save_checkpoint", "checkpoint", lambda trainer: {"step": trainer.global_steps})


def find_step(trainer):
    """Return the step of a trainer that is none of v1; that of fully asynchronous training is the version of weights that it makes."""
    version = getattr(trainer, "current_param_version", None)
    return trainer.global_steps if version is None else version + 1


def stamp_legacy(module):
    def describe(trainer, batch, *_, **__):
        lengths = batch.batch["attention_mask"].sum(-1)
        responses = batch.batch["attention_mask"][:, -batch.batch["responses"].shape[1] :].sum(-1)
        rows = [
            {**row, "prompt": int(length - response), "response": int(response)}
            for row, length, response in zip(describe_rows(batch), lengths, responses, strict=True)
        ]
        return {"step": find_step(trainer), "rows": rows}

    stamp(module.RayPPOTrainer, "_update_actor", "update", describe)
    stamp(module.RayPPOTrainer, "_validate", "validation", lambda trainer, *_, **__: {"step": trainer.global_steps})
    stamp(module.RayPPOTrainer, "_save_checkpoint", "checkpoint", lambda trainer: {"step": trainer.global_steps})


def stamp_separate(module):
    collect = module.SeparateRayPPOTrainer._fit_collect_metrics

    @functools.wraps(collect)
    def _fit_collect_metrics(self, batch):
        if hasattr(self, "current_param_version"):
            is_last = self.local_trigger_step == 1  # by now it is that of the next local step
            cpu_log.write("timers", step=self.current_param_version + (not is_last), seconds=dict(self.timing_raw))
        return collect(self, batch)

    module.SeparateRayPPOTrainer._fit_collect_metrics = _fit_collect_metrics


def stamp_loader(module):
    stamp(module._StatefulBaseDataLoaderIter, "__next__", "load")  # the end of the data raises
    stamp(module.StatefulDataLoader, "__iter__", "load")


cpu_log.write("process", start=time.time())
HOOKS = {
    "torchdata.stateful_dataloader.stateful_dataloader": stamp_loader,
    "verl.workers.engine_workers": stamp_ranks,
    "verl.utils.tracking": stamp_tracking,
    "verl.trainer.ppo.v1.trainer_base": stamp_v1,
    "verl.trainer.ppo.ray_trainer": stamp_legacy,
    "verl.experimental.separation.ray_trainer": stamp_separate,
}
