# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The keys that verl's ``Tracking.log`` has for a value, by the name of its field in the run log. The first key that a step has counts."""

from collections.abc import Mapping
from typing import Final

from verl_otel.semconv import logs

Keys = tuple[str, ...]

TRAINING: Final[Mapping[str, Keys]] = {
    "epoch": ("training/epoch",),
    "step_seconds": ("timing_s/step", "perf/time_per_step"),
    "tokens": ("perf/total_num_tokens",),
    "tokens_per_second_per_gpu": ("perf/throughput",),
}
ROLLOUT: Final[Mapping[str, Keys]] = {
    "reward_mean": ("critic/rewards/mean",),
    "reward_min": ("critic/rewards/min",),
    "reward_max": ("critic/rewards/max",),
    "score_mean": ("critic/score/mean",),
    "kl_penalty": ("actor/reward_kl_penalty",),
    "response_length_mean": ("response_length/mean",),
    "response_length_max": ("response_length/max",),
    "response_clip_ratio": ("response_length/clip_ratio",),
    "prompt_length_mean": ("prompt_length/mean",),
    "aborted_ratio": ("response/aborted_ratio",),
    "messages_mean": ("num_turns/mean",),
    "wait_seconds": ("timing_s/gen",),
}
PPO: Final[Mapping[str, Keys]] = {
    "policy_loss": ("actor/pg_loss",),
    "value_loss": ("critic/vf_loss",),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
    "kl_div": ("actor/ppo_kl",),
    "kl_reference": ("actor/kl_loss",),
    "clip_ratio": ("actor/pg_clipfrac",),
    "rollout_kl": ("rollout_corr/kl", "actor/rollout_corr/kl"),
    "rollout_kl_k3": ("rollout_corr/k3_kl", "actor/rollout_corr/k3_kl"),
    "rollout_probs_diff_mean": ("training/rollout_probs_diff_mean",),
    "rollout_probs_diff_max": ("training/rollout_probs_diff_max",),
    "rollout_probs_correlation": ("training/rollout_actor_probs_pearson_corr",),
    "grad_norm": ("actor/grad_norm",),
    "value_grad_norm": ("critic/grad_norm",),
    "learning_rate": ("actor/lr",),
    "seconds": ("timing_s/update_actor",),
}

VALIDATION: Final = "val-"
"""Beginning of the keys of scores of a validation, which name its data."""
CORE_VALIDATION: Final = "val-core/"
"""Beginning of the keys of its main scores."""
COMPONENT: Final = f"{logs.REWARD}/"
"""Beginning of the keys of components of the reward; see `component_key`."""
REWARDS: Final = (*ROLLOUT["reward_mean"], *ROLLOUT["score_mean"])
"""Keys of the mean reward, where a score counts if there is no reward."""
REFERENCE_KL: Final = (*PPO["kl_reference"], *ROLLOUT["kl_penalty"])
"""Keys of the KL divergence to the reference policy: in the loss, or in the reward. A run has one of them."""

BY_NAME: Final[Mapping[str, Keys]] = {
    f"{scope}/{field}": keys
    for scope, fields in ((logs.TRAINING, TRAINING), (logs.ROLLOUT, ROLLOUT), (logs.PPO, PPO))
    for field, keys in fields.items()
}
"""Keys by scope and field of the run log, such as ``rollout/reward_mean``: by these names guides for monitoring verl speak of its scalars."""


def find_keys(name: str) -> Keys:
    """Return the keys that a name stands for: itself, and if it is one of `BY_NAME` those as well."""
    return (name, *BY_NAME.get(name, ()))


def component_key(variable: str, aggregate: str) -> str:
    """Return the key of a value of ``verl.reward.component``, which verl does not log: ``reward/format_mean``, as in the run log and in TensorBoard."""
    return f"{COMPONENT}{variable}_{aggregate}"
