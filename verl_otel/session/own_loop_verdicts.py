# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Judges the steps of an own loop when they have ended, as those of verl's trainers are judged: what held them, and what changed."""

from __future__ import annotations

from verl_otel.recording import own_loop
from verl_otel.recording.own_loop import EndedStep
from verl_otel.recording.series import gauge
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names


class OwnLoopVerdicts:
    """What is reported of steps of an own loop when they end: what held them, progress of the reward, sudden changes, share of the tail.

    Args:
        began: When telemetry began in this process, on the clock of spans.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._judge: _Judge | None = None

    def log_end(self, run_id: str) -> None:
        """Log what held the run."""
        if self._judge is not None:
            self._judge.log_end(run_id)

    def judge(self) -> None:
        """Judge the steps that the drain has taken. Their metrics are in the next batch."""
        for step in own_loop.take_ended():
            if self._judge is None:
                self._judge = _Judge(self._began)
            self._judge.end_step(step)


class _Judge:
    """The steps so far. Made at the first one: other processes import nothing of this."""

    def __init__(self, began: float) -> None:
        from verl_otel.health.recent_past import StepFollower
        from verl_otel.session.live_verdicts import LiveVerdicts

        self._verdicts, self._follower = LiveVerdicts(began), StepFollower()
        self._steps = 0

    def log_end(self, run_id: str) -> None:
        self._verdicts.log_end(run_id)

    def end_step(self, step: EndedStep) -> None:
        self._steps += 1
        self._verdicts.end_step(step.number, step.before, step.start, step.stop, step.phases, whole=step.whole)
        if not step.whole:
            return
        reward = step.trajectories.reward
        found = [
            *self._follower.follow_progress(self._steps, {} if reward is None else {"reward": reward}),
            *self._follower.follow_changes({"step": step.stop - step.start, **step.trajectories.waits}),
        ]
        for metric, name, value in found:
            gauge(metric, ((attr.METRIC, name),)).set(value)
        _measure_tail(step)


def _measure_tail(step: EndedStep) -> None:
    from verl_otel.analysis.gpu import live_estimate

    window = live_estimate.StepWindow(step.start, step.stop, step.phases)
    share = live_estimate.find_tail_share(window, step.trajectories.stops)
    if share is not None:
        gauge(metric_names.ROLLOUT_TAIL_SHARE).set(share)
