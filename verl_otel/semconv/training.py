# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of the catalogue: the run, its steps, their phases, workers, and what is learnt."""

from typing import Final

from verl_otel.semconv import attributes as attr
from verl_otel.semconv import buckets
from verl_otel.semconv.specs import MetricSpec, histogram_row

ROWS: Final = (
    MetricSpec(
        "verl.run.info",
        "gauge",
        "",
        (
            attr.PROJECT,
            attr.EXPERIMENT,
            attr.ALGORITHM,
            attr.TRAINER_MODE,
            "verl.model",
            "verl.engine",
            attr.VERL_VERSION,
            "verl.nodes",
            "verl.gpus",
        ),
        (1, 1, 1),
        "Always 1: what this run is, for joins.",
    ),
    MetricSpec("verl.run.state", "gauge", "", (), (1, 1, 1), "1 running, 2 finished, 3 failed."),
    MetricSpec("verl.training.steps", "counter", "{step}", (), (1, 1, 1), "Training steps completed."),
    MetricSpec("verl.training.step", "gauge", "", (), (1, 1, 1), "Number of the step whose scalars were logged last."),
    MetricSpec(
        "verl.training.last_step.timestamp", "gauge", "s", (), (1, 1, 1), "Unix time at which the last step ended."
    ),
    MetricSpec(
        "verl.training.steps_since_best",
        "gauge",
        "{step}",
        (attr.METRIC,),
        (3, 3, 3),
        "Steps since the mean of the last five values of reward, score or val (validation) was highest.",
    ),
    MetricSpec(
        "verl.training.trend",
        "gauge",
        "",
        (attr.METRIC,),
        (3, 3, 3),
        "Kendall's tau of the last 20 values of reward, score or val: 1 rises throughout, -1 falls. From the 8th value.",
    ),
    MetricSpec(
        "verl.training.resumes", "counter", "{resume}", (), (1, 1, 1), "Trainings that began behind their first step."
    ),
    MetricSpec(
        "verl.worker.restarts",
        "counter",
        "{restart}",
        (attr.REASON,),
        (1, 8, 64),
        "Processes that Ray started again in the place of one that had died.",
    ),
    MetricSpec(
        "verl.limit",
        "gauge",
        "",
        (attr.LIMIT,),
        (4, 4, 4),
        "Configured bounds: response_tokens, prompt_tokens, staleness (model versions), save_frequency (steps).",
    ),
    histogram_row("verl.step.duration", "s", (attr.ERROR_TYPE,), (17, 17, 17), "One training step.", buckets.LONG),
    histogram_row("verl.validation.duration", "s", (attr.ERROR_TYPE,), (17, 17, 17), "One validation.", buckets.LONG),
    histogram_row(
        "verl.weight_sync.duration",
        "s",
        (attr.ERROR_TYPE,),
        (17, 17, 17),
        "Sending new weights to the rollout replicas.",
        buckets.LONG,
    ),
    histogram_row(
        "verl.checkpoint.duration", "s", (attr.ERROR_TYPE,), (17, 17, 17), "Saving one checkpoint.", buckets.LONG
    ),
    MetricSpec(
        "verl.checkpoint.last.timestamp",
        "gauge",
        "s",
        (),
        (1, 1, 1),
        "Unix time at which the last checkpoint was saved.",
    ),
    histogram_row(
        "verl.phase.duration",
        "s",
        (attr.PHASE, attr.ERROR_TYPE),
        (187, 187, 187),
        "One phase of a step, as the trainer sees it.",
        buckets.LONG,
    ),
    MetricSpec("verl.phase.active", "updown", "{phase}", (attr.PHASE,), (11, 11, 11), "Phases that are open now."),
    MetricSpec(
        "verl.worker.calls",
        "counter",
        "{call}",
        (attr.WORKER_METHOD,),
        (10, 80, 640),
        "Worker methods called, outermost ones.",
    ),
    MetricSpec(
        "verl.worker.call.time",
        "counter",
        "s",
        (attr.WORKER_METHOD,),
        (10, 80, 640),
        "Host time in worker methods, outermost ones.",
    ),
    histogram_row(
        "verl.sample.generation",
        "s",
        (),
        (17, 17, 17),
        "Generating one batch of samples, as the trainer sees it.",
        buckets.LONG,
    ),
    MetricSpec(
        "verl.weight_sync.payload",
        "gauge",
        "By",
        (),
        (1, 1, 1),
        "Bytes of the last weight sync that sent changes only.",
    ),
    MetricSpec(
        "verl.average_reward", "gauge", "", (), (1, 1, 1), "Mean reward of the last step (`critic/rewards/mean`)."
    ),
    MetricSpec(
        "verl.validation.score",
        "gauge",
        "",
        (attr.DATA_SOURCE, attr.VARIABLE, attr.AGGREGATE),
        (20, 20, 20),
        "A validation result (`val-core/...`, `val-aux/...`).",
    ),
)
