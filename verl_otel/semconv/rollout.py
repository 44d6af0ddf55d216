# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the catalogue: trajectories, turns, LLM calls, tools and rewards."""

from typing import Final

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets, metric_names
from verl_otel.semconv.specs import MetricSpec, histogram_row

ROWS: Final = (
    histogram_row(
        metric_names.ROLLOUT_TRAJECTORY_DURATION,
        "s",
        (attr.AGENT, attr.VALIDATE, attr.ERROR_TYPE),
        (272, 272, 272),
        "One trajectory, from its first to its last action.",
        buckets.LONG,
    ),
    histogram_row(
        metric_names.ROLLOUT_TURN_DURATION, "s", (), (120, 120, 120), "One turn of a trajectory.", buckets.SHORT
    ),
    histogram_row(
        metric_names.TOOL_CALL_DURATION,
        "s",
        (attr.GEN_AI_TOOL, attr.ERROR_TYPE),
        (240, 240, 240),
        "One call of a tool.",
        buckets.SHORT,
    ),
    MetricSpec(metric_names.ROLLOUT_ACTIVE, "updown", "{trajectory}", (), (8, 8, 8), "Trajectories that are open now."),
    MetricSpec(
        metric_names.ROLLOUT_OLDEST_AGE,
        "gauge",
        "s",
        (),
        (8, 8, 8),
        "Age of the trajectory that has been open longest; 0 when none is.",
    ),
    MetricSpec(
        metric_names.ROLLOUT_TOKENS,
        "counter",
        "{token}",
        (attr.TOKEN_TYPE,),
        (16, 16, 16),
        "Tokens of finished trajectories.",
    ),
    histogram_row(
        metric_names.ROLLOUT_SEQUENCE_LENGTH,
        "{token}",
        (attr.TOKEN_TYPE,),
        (208, 208, 208),
        "Tokens of one trajectory.",
        buckets.TOKENS,
    ),
    histogram_row(metric_names.ROLLOUT_TURNS, "{turn}", (), (104, 104, 104), "Turns of one trajectory.", buckets.TURNS),
    histogram_row(
        metric_names.ROLLOUT_STALENESS,
        "{version}",
        (),
        (10, 10, 10),
        "Model versions between a sample's generation and the step that trains on it.",
        buckets.STALENESS,
    ),
    MetricSpec(
        metric_names.ROLLOUT_PREEMPTIONS,
        "counter",
        "{preemption}",
        (),
        (8, 8, 8),
        "Requests that the engine put back into its queue.",
    ),
    MetricSpec(
        metric_names.ROLLOUT_TRAJECTORY_PREEMPTIONS,
        "gauge",
        "{preemption}",
        (attr.AGGREGATE,),
        (3, 3, 3),
        "Preemptions of one trajectory of the last step, where verl knows them.",
    ),
    MetricSpec(
        metric_names.ROLLOUT_TAIL_DURATION,
        "gauge",
        "s",
        (attr.AGGREGATE,),
        (3, 3, 3),
        "Duration of the trajectories that the last step trained on: p50, p95 and max.",
    ),
    MetricSpec(
        metric_names.ROLLOUT_SLOWEST_DURATION,
        "gauge",
        "s",
        (attr.PART,),
        (3, 3, 3),
        "What the slowest trajectory of the last step spent in LLM calls, tools and reward.",
    ),
    MetricSpec(
        metric_names.ROLLOUT_SLOWEST_PREEMPTIONS,
        "gauge",
        "{preemption}",
        (),
        (1, 1, 1),
        "Preemptions of the slowest trajectory of the last step.",
    ),
    MetricSpec(
        metric_names.ROLLOUT_SLOWEST_TOKENS,
        "gauge",
        "{token}",
        (attr.TOKEN_TYPE,),
        (2, 2, 2),
        "Tokens of the slowest trajectory of the last step.",
    ),
    MetricSpec(
        metric_names.ROLLOUT_TAIL_SHARE,
        "gauge",
        "1",
        (),
        (1, 1, 1),
        "Share of the last step in which all but the slowest 5 % of its trajectories had ended, and the trainer waited for these.",
    ),
    histogram_row(
        metric_names.GEN_AI_CLIENT_OPERATION_DURATION,
        "s",
        (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.ERROR_TYPE),
        (120, 120, 120),
        "One LLM call, as the agent loop sees it.",
        buckets.SHORT,
    ),
    histogram_row(
        metric_names.GEN_AI_CLIENT_TOKEN_USAGE,
        "{token}",
        (attr.GEN_AI_OPERATION, attr.GEN_AI_PROVIDER, attr.GEN_AI_MODEL, attr.GEN_AI_TOKEN_TYPE),
        (208, 208, 208),
        "Tokens of one LLM call.",
        buckets.TOKENS,
    ),
    histogram_row(
        metric_names.REWARD_DURATION,
        "s",
        (attr.DATA_SOURCE, attr.ERROR_TYPE),
        (120, 120, 120),
        "Computing the reward of one sample.",
        buckets.SHORT,
    ),
    MetricSpec(
        metric_names.REWARD_SAMPLES,
        "counter",
        "{sample}",
        (attr.DATA_SOURCE, attr.REWARD_BIN),
        (80, 80, 80),
        "Samples by the bin of their score.",
    ),
    *(
        MetricSpec(
            name,
            "gauge",
            "",
            (attr.DATA_SOURCE,),
            (1, 1, 1),
            f"Scores that the last step trained on: {text}.",
        )
        for name, text in (
            (metric_names.REWARD_SCORE_MEAN, "mean"),
            (metric_names.REWARD_SCORE_STDDEV, "standard deviation"),
            (metric_names.REWARD_SCORE_MIN, "smallest"),
            (metric_names.REWARD_SCORE_MAX, "largest"),
            (metric_names.REWARD_SCORE_P10, "10th percentile"),
            (metric_names.REWARD_SCORE_P50, "median"),
            (metric_names.REWARD_SCORE_P90, "90th percentile"),
        )
    ),
)
