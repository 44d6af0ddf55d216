# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Training: the values that verl logs at each step, unchanged.

verl logs NaN where it has no value (for example when all samples of a step were aborted): that is a gap in a curve.
"""

from __future__ import annotations

from typing import Final

from dashboards.parts import panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric, scalar
from dashboards.parts.panels import Panel
from dashboards.parts.queries import TRAINED, grouped, part, plain, query
from dashboards.parts.thresholds import find_threshold


def _scalars(
    title: str,
    text: str,
    unit: str,
    names: dict[str, str],
    *,
    width: int = 8,
    low: float | None = None,
    steps: panels.Steps = (),
) -> Panel:
    """Return a time series panel of values of `Tracking.log`.

    Args:
        title: Title.
        text: Description: what it shows, and its limits.
        unit: Grafana's name of the unit.
        names: Legend of each metric.
        width: Columns, of 24.
        low: Minimum of the axis.
        steps: Thresholds, drawn as lines.
    """
    return panels.timeseries(title, text, unit, *plain(names), width=width, low=low, steps=steps)


def policy_loss() -> Panel:
    """Is the policy loss sane?"""
    text = (
        "Loss of the policy gradient. Its size depends on advantages and on how tokens are averaged; it need not fall."
    )
    return _scalars("Policy loss", text, "short", {scalar("actor/pg_loss"): "", scalar("actor/loss"): "with all terms"})


def value_loss() -> Panel:
    """Does the critic learn?"""
    text = "Loss of the value model; empty without a critic (GRPO and its like). It should fall and stay low; a jump goes before a fall of the reward."
    return _scalars("Value loss", text, "short", {scalar("critic/vf_loss"): ""}, low=0)


def explained() -> Panel:
    """Does the critic explain the returns?"""
    text = "Share of the variance of returns that values explain: 1 is all, 0 no better than the mean, below 0 worse than it. Empty without a critic."
    return _scalars("Explained variance", text, "short", {scalar("critic/vf_explained_var"): ""})


def clipped() -> Panel:
    """How often does the clip hold?"""
    text = "Share of tokens whose ratio was clipped. 0 throughout: steps are small, or each batch is used once. High: steps are too big."
    names = {
        scalar("actor/pg_clipfrac"): "policy",
        scalar("actor/pg_clipfrac_lower"): "policy, lower",
        scalar("critic/vf_clipfrac"): "value",
    }
    return _scalars("Clip fraction", text, "percentunit", names, low=0)


def gradients() -> Panel:
    """How big are the gradients?"""
    text = "Norm before clipping. A single peak is noise; a rise over many steps is not."
    return _scalars(
        "Gradient norm",
        text,
        "short",
        {scalar("actor/grad_norm"): "actor", scalar("critic/grad_norm"): "critic"},
        low=0,
    )


def rate() -> Panel:
    """What is the learning rate?"""
    text = "Learning rate of the last mini-batch of the step: what the schedule says, and not what an adaptive optimiser makes of it."
    return _scalars("Learning rate", text, "sci", {scalar("actor/lr"): "actor", scalar("critic/lr"): "critic"}, low=0)


def reference_kl() -> Panel:
    """How far is the policy from the reference?"""
    text = "KL to the reference model, as a loss term and as a penalty in the reward: whichever is configured. It grows over a training."
    names = {scalar("actor/kl_loss"): "loss term", scalar("actor/reward_kl_penalty"): "in the reward"}
    return _scalars("KL to the reference", text, "short", names)


def policy_kl() -> Panel:
    """How far does one step go?"""
    text = "KL between the policy before and after the step, estimated (it may be negative). Above 0.1 steps are aggressive, below 0.005 timid."
    steps = (
        (None, "transparent"),
        (find_threshold("policy_kl_high"), "orange"),
        (find_threshold("policy_kl_stop"), "red"),
    )
    return _scalars("Policy KL", text, "short", {scalar("actor/ppo_kl"): ""}, steps=steps)


def entropy() -> Panel:
    """Does the policy still explore?"""
    text = "Entropy per token, in nats. A fast fall to 0 is a collapse. The two differ in how tokens are averaged."
    return _scalars(
        "Entropy", text, "short", {scalar("actor/entropy"): "", scalar("actor/entropy_loss"): "as a loss term"}, low=0
    )


def rewards() -> Panel:
    """What does the step train on?"""
    text = "Score as the reward function gave it, and reward after a KL penalty, if there is one: mean, smallest and largest."
    names = {
        scalar("critic/score/mean"): "score",
        scalar("critic/rewards/mean"): "reward",
        scalar("critic/rewards/min"): "smallest",
        scalar("critic/rewards/max"): "largest",
    }
    return _scalars("Score and reward", text, "short", names)


def spread() -> Panel:
    """How far are the scores of a step apart?"""
    text = (
        "Scores that each step trained on: smallest, median and largest. Where they are one line, every sample was worth the same. A single "
        "largest value far above the others may be a hole in the reward function."
    )
    labels = f"{label.RUN_ID}, {label.DATA_SOURCE}"
    targets = [
        grouped("min", labels, f"{metric.REWARD_SCORE_MIN}{{run}}", "smallest"),
        grouped("avg", labels, f"{metric.REWARD_SCORE_P50}{{run}}", "median"),
        grouped("max", labels, f"{metric.REWARD_SCORE_MAX}{{run}}", "largest"),
    ]
    return panels.timeseries("Scores of a step", text, "short", *targets)


def groups() -> Panel:
    """Are there groups to learn from?"""
    text = (
        "Groups of one prompt that the step trained on. Only those whose scores differ (signal) teach GRPO anything: too many solved ones are "
        "too easy, too many failed ones too hard, truncated ones did not end within data.max_response_length."
    )
    target = query(f"sum by ({label.RUN_ID}, {label.OUTCOME}) ({metric.REWARD_GROUPS}{{run}})", legend.OUTCOME)
    return panels.stacked("Groups by outcome", text, "short", target)


def components() -> Panel:
    """Which part of the reward moves?"""
    text = (
        "Mean of each number that the reward function returns beside the score. A reward that rises by its form alone, or falls with one part, shows here; "
        "empty where the function returns a score only."
    )
    target = query(f'{metric.REWARD_COMPONENT}{{run, {label.AGGREGATE}="mean"}}', f"{legend.RUN_ID} {legend.VARIABLE}")
    return panels.timeseries("Components of the reward", text, "short", target)


def advantages() -> Panel:
    """Are there advantages to learn from?"""
    text = "Advantages over all tokens of the step: mean, smallest and largest. All at 0: every group has equal rewards, nothing is learnt."
    names = {scalar(f"critic/advantages/{aggregate}"): aggregate for aggregate in ("mean", "min", "max")}
    return _scalars("Advantages", text, "short", names)


def returns() -> Panel:
    """Do values follow returns?"""
    text = "Mean of returns and of the values that the critic predicts. Without a critic there are only returns."
    return _scalars(
        "Returns and values",
        text,
        "short",
        {scalar("critic/returns/mean"): "returns", scalar("critic/values/mean"): "values"},
    )


def bins() -> Panel:
    """How are the scores spread?"""
    text = (
        "Share of samples in each bin of the score, which is named by its upper bound: 0.5 are those above 0.25 up to 0.5. All chosen runs "
        "together, without validations where that is known. The mean hides two hills; this does not."
    )
    binned = f"sum by ({label.REWARD_BIN}) (rate({metric.REWARD_SAMPLES}{TRAINED}[window]))"
    every = f"sum (rate({metric.REWARD_SAMPLES}{TRAINED}[window]))"
    target = query(part(binned, every, on=""), legend.REWARD_BIN)
    return panels.stacked("Scores by bin", text, "percentunit", target, high=1)


def lengths() -> Panel:
    """How long are the responses?"""
    text = "Tokens of responses, and the configured bound. Longer responses with the same reward are a warning, and cost time."
    targets = plain({scalar(f"response_length/{aggregate}"): aggregate for aggregate in ("mean", "max", "min")})
    bound = query(f'{metric.LIMIT}{{run, {label.LIMIT}="response_tokens"}}', f"{legend.RUN_ID} bound")
    return panels.timeseries("Length of responses", text, "short", *targets, bound, low=0)


def cut() -> Panel:
    """How many responses are cut off?"""
    text = "Share of responses and prompts that reached the bound (v1 trainers: as long as the longest of the step), and of samples that were aborted."
    names = {
        scalar("response_length/clip_ratio"): "responses",
        scalar("prompt_length/clip_ratio"): "prompts",
        scalar("response/aborted_ratio"): "aborted",
    }
    return _scalars("Cut off at the bound", text, "percentunit", names, low=0)


def utilization() -> Panel:
    """How much of the GPUs' arithmetic is used?"""
    text = "Model FLOPs utilisation as verl estimates it, of the update alone: the rollout is not in it. 0 where verl does not know the model or the device."
    return _scalars(
        "MFU", text, "percentunit", {scalar("perf/mfu/actor"): "actor", scalar("perf/mfu/critic"): "critic"}, low=0
    )


def mismatch() -> Panel:
    """Do engine and trainer agree?"""
    text = (
        "KL between what the engine sampled from and what the trainer computes for the same tokens. It should be near 0: a rise is another "
        "precision, stale weights or a wrong template, and training is off-policy without saying so."
    )
    return _scalars(
        "Rollout against trainer",
        text,
        "short",
        {scalar("rollout_corr/kl"): "KL", scalar("rollout_corr/k3_kl"): "KL (k3)"},
    )


def probabilities() -> Panel:
    """How far apart are the probabilities?"""
    text = "Difference of the probabilities of sampled tokens, engine against trainer: mean and largest. Needs `rollout.calculate_log_probs`."
    names = {scalar("training/rollout_probs_diff_mean"): "mean", scalar("training/rollout_probs_diff_max"): "largest"}
    return _scalars("Difference of probabilities", text, "short", names, low=0)


def perplexity() -> Panel:
    """Do both sides find the tokens equally likely?"""
    text = "Perplexity by the trainer against that by the engine: 1 is agreement."
    return _scalars("Ratio of perplexities", text, "short", {scalar("rollout_corr/ppl_ratio"): ""})


def off_policy() -> Panel:
    """How many versions behind are the samples?"""
    text = "Model versions between generation and training, as verl logs them: mean and largest of each step. 0 is on-policy."
    names = {
        scalar("training/off_policy/trajectory_staleness/mean"): "mean",
        scalar("training/off_policy/trajectory_staleness/max"): "largest",
    }
    return _scalars("Off-policy", text, "short", names, low=0)


def validation() -> Panel:
    """Is the model better?"""
    text = "Validation scores, by data source and variable. They are the proof that the reward is not; each stays until the next validation."
    target = query(
        f"{metric.VALIDATION_SCORE}{{run}}",
        f"{legend.RUN_ID} {legend.DATA_SOURCE} {legend.VARIABLE} {legend.AGGREGATE}",
    )
    return panels.timeseries("Validation", text, "short", target)


def trend() -> Panel:
    """Does it rise, beyond noise?"""
    text = "Kendall's tau of the last 20 values: 1 rises throughout, -1 falls, near 0 there is no trend. It needs no scale, and 8 values."
    target = query(f"{metric.TRAINING_TREND}{{run}}", f"{legend.RUN_ID} {legend.METRIC}")
    return panels.timeseries("Trend", text, "short", target, low=-1, high=1)


BOARD: Final = Board(
    name="training",
    title="verl / Training",
    text="The values that verl logs at each step. A gap is a NaN: verl logs one where it has no value.",
    rows=(
        Row(
            "Reward and validation", (validation, trend, components, rewards, spread, groups, advantages, returns, bins)
        ),
        Row("Policy", (policy_loss, clipped, gradients, reference_kl, policy_kl, entropy)),
        Row("Critic and optimiser", (value_loss, explained, rate)),
        Row("Responses", (lengths, cut, utilization)),
        Row("Rollout correction", (mismatch, probabilities, perplexity, off_policy)),
    ),
    variables=(variables.data_source, *variables.RUNS, variables.window),
)
