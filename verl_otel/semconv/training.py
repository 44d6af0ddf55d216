# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the catalogue: the run, its steps, their phases, workers, and what is learnt."""

from typing import Final

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets, metric_names
from verl_otel.semconv.specs import MetricSpec, histogram_row

ROWS: Final = (
    MetricSpec(
        metric_names.RUN_INFO,
        "gauge",
        "",
        (
            attr.PROJECT,
            attr.EXPERIMENT,
            attr.ALGORITHM,
            attr.TRAINER_MODE,
            attr.MODEL,
            attr.ENGINE,
            attr.VERL_VERSION,
            attr.NODES,
            attr.GPUS,
        ),
        (1, 1, 1),
        "Always 1: what this run is, for joins.",
    ),
    MetricSpec(metric_names.RUN_STATE, "gauge", "", (), (1, 1, 1), "1 running, 2 finished, 3 failed."),
    MetricSpec(metric_names.TRAINING_STEPS, "counter", "{step}", (), (1, 1, 1), "Training steps completed."),
    MetricSpec(
        metric_names.TRAINING_STEP, "gauge", "", (), (1, 1, 1), "Number of the step whose scalars were logged last."
    ),
    MetricSpec(
        metric_names.TRAINING_LAST_STEP_TIMESTAMP,
        "gauge",
        "s",
        (),
        (1, 1, 1),
        "Unix time at which the last step ended.",
    ),
    MetricSpec(
        metric_names.TRAINING_STEPS_SINCE_BEST,
        "gauge",
        "{step}",
        (attr.METRIC,),
        (3, 3, 3),
        "Steps since the mean of the last five values of reward, score or val (validation) was highest.",
    ),
    MetricSpec(
        metric_names.TRAINING_TREND,
        "gauge",
        "",
        (attr.METRIC,),
        (3, 3, 3),
        "Kendall's tau of the last 20 values of reward, score or val: 1 rises throughout, -1 falls. From the 8th value.",
    ),
    MetricSpec(
        metric_names.TRAINING_RESUMES,
        "counter",
        "{resume}",
        (),
        (1, 1, 1),
        "Trainings that began behind their first step.",
    ),
    MetricSpec(
        metric_names.WORKER_RESTARTS,
        "counter",
        "{restart}",
        (attr.REASON,),
        (1, 8, 64),
        "Processes that Ray started again in the place of one that had died.",
    ),
    MetricSpec(
        metric_names.LIMIT,
        "gauge",
        "",
        (attr.LIMIT,),
        (4, 4, 4),
        "Configured bounds: response_tokens, prompt_tokens, staleness (model versions), save_frequency (steps).",
    ),
    histogram_row(
        metric_names.STEP_DURATION, "s", (attr.ERROR_TYPE,), (17, 17, 17), "One training step.", buckets.LONG
    ),
    histogram_row(
        metric_names.VALIDATION_DURATION, "s", (attr.ERROR_TYPE,), (17, 17, 17), "One validation.", buckets.LONG
    ),
    histogram_row(
        metric_names.WEIGHT_SYNC_DURATION,
        "s",
        (attr.ERROR_TYPE,),
        (17, 17, 17),
        "Sending new weights to the rollout replicas.",
        buckets.LONG,
    ),
    histogram_row(
        metric_names.CHECKPOINT_DURATION, "s", (attr.ERROR_TYPE,), (17, 17, 17), "Saving one checkpoint.", buckets.LONG
    ),
    MetricSpec(
        metric_names.CHECKPOINT_LAST_TIMESTAMP,
        "gauge",
        "s",
        (),
        (1, 1, 1),
        "Unix time at which the last checkpoint was saved.",
    ),
    histogram_row(
        metric_names.PHASE_DURATION,
        "s",
        (attr.PHASE, attr.ERROR_TYPE),
        (187, 187, 187),
        "One phase of a step, as the trainer sees it.",
        buckets.LONG,
    ),
    MetricSpec(
        metric_names.PHASE_ACTIVE, "updown", "{phase}", (attr.PHASE,), (11, 11, 11), "Phases that are open now."
    ),
    MetricSpec(
        metric_names.WORKER_CALLS,
        "counter",
        "{call}",
        (attr.WORKER_METHOD,),
        (10, 80, 640),
        "Worker methods called, outermost ones.",
    ),
    MetricSpec(
        metric_names.WORKER_CALL_TIME,
        "counter",
        "s",
        (attr.WORKER_METHOD,),
        (10, 80, 640),
        "Host time in worker methods, outermost ones.",
    ),
    histogram_row(
        metric_names.SAMPLE_GENERATION,
        "s",
        (),
        (17, 17, 17),
        "Generating one batch of samples, as the trainer sees it.",
        buckets.LONG,
    ),
    MetricSpec(
        metric_names.WEIGHT_SYNC_PAYLOAD,
        "gauge",
        "By",
        (),
        (1, 1, 1),
        "Bytes of the last weight sync that sent changes only.",
    ),
    MetricSpec(
        metric_names.AVERAGE_REWARD, "gauge", "", (), (1, 1, 1), "Mean reward of the last step (`critic/rewards/mean`)."
    ),
    MetricSpec(
        metric_names.VALIDATION_SCORE,
        "gauge",
        "",
        (attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE),
        (20, 20, 20),
        "A validation result (`val-core/...`, `val-aux/...`).",
    ),
)
