# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Identity, state and progress of a run whose steps are recorded by `verl_otel.step`; verl's trainers report theirs by ``Tracking``."""

from __future__ import annotations

from verl_otel._internal import process_state
from verl_otel.model import Labels
from verl_otel.recording import series_registry
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

RUNNING, FINISHED, FAILED = 1, 2, 3
"""Values of ``verl.run.state``."""


class _Loop:
    """The own loop of this process."""

    labels: Labels = ()
    began = False
    failed = False


def configure(project: str, experiment: str) -> None:
    """Set the labels of ``verl.run.info``."""
    names = ((attr.PROJECT, project), (attr.EXPERIMENT, experiment))
    _Loop.labels = tuple((name, value) for name, value in names if value)


def note_step(number: float | None, *, failed: bool) -> None:
    """Record that a step of an own loop has ended. Called by the drain."""
    if not _Loop.began:
        _Loop.began = True
        series_registry.gauge(metric_names.RUN_INFO, _Loop.labels).set(1)
        series_registry.gauge(metric_names.RUN_STATE).set(RUNNING)
    _Loop.failed = failed
    if number is not None:
        series_registry.gauge(metric_names.TRAINING_STEP).set(number)


def end() -> None:
    """Record the end of the run, if this process had an own loop: failed if its last step ended with an exception."""
    if _Loop.began:
        series_registry.gauge(metric_names.RUN_STATE).set(FAILED if _Loop.failed else FINISHED)


def _reset() -> None:
    _Loop.labels, _Loop.began, _Loop.failed = (), False, False


process_state.register(reset=_reset, after_fork=_reset)
