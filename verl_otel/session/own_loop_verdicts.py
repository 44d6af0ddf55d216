# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Judges the steps of an own loop when they have ended, as those of verl's trainers are judged: what held them, and what changed."""

from __future__ import annotations

from typing import Final

from verl_otel.recording import own_loop
from verl_otel.recording.own_loop import EndedStep
from verl_otel.recording.series import gauge
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names

_REWARD: Final = ((attr.METRIC, "reward"),)


class OwnLoopVerdicts:
    """What is reported of steps of an own loop when they end: what held them, progress of the reward, sudden changes, share of the tail."""

    def __init__(self) -> None:
        self._judge: _Judge | None = None

    def log_end(self, run_id: str) -> None:
        """Log what held the run."""
        if self._judge is not None:
            self._judge.log_end(run_id)

    def judge(self) -> None:
        """Judge the steps that the drain has taken. Their metrics are in the next batch."""
        for step in own_loop.take_ended():
            if self._judge is None:
                self._judge = _Judge(step.start)
            self._judge.end_step(step)


class _Judge:
    """The steps so far. Made at the first one: other processes import nothing of this."""

    def __init__(self, began: float) -> None:
        from verl_otel.health.recent_past import LearningProgress, RecentChanges
        from verl_otel.session.live_verdicts import LiveVerdicts

        self._verdicts, self._progress = LiveVerdicts(began), LearningProgress()
        self._changes = RecentChanges()
        self._steps = 0

    def log_end(self, run_id: str) -> None:
        self._verdicts.log_end(run_id)

    def end_step(self, step: EndedStep) -> None:
        self._steps += 1
        self._verdicts.end_step(step.number, step.before, step.start, step.stop, step.phases)
        if step.trajectories.reward is not None:
            self._follow_reward(step.trajectories.reward)
        for name, seconds in {"step": step.stop - step.start, **step.trajectories.waits}.items():
            ratio = self._changes.add_seconds(name, seconds)
            if ratio is not None:
                gauge(metric_names.TRAINING_CHANGE, ((attr.METRIC, name),)).set(ratio)
        _measure_tail(step)

    def _follow_reward(self, reward: float) -> None:
        self._progress.add(self._steps, reward)
        known = {
            metric_names.TRAINING_STEPS_SINCE_BEST: self._progress.count_since_best(self._steps),
            metric_names.TRAINING_TREND: self._progress.find_trend(),
        }
        for name, value in known.items():
            if value is not None:
                gauge(name, _REWARD).set(value)


def _measure_tail(step: EndedStep) -> None:
    from verl_otel.analysis.gpu import live_estimate

    window = live_estimate.Window(step.before or step.start, step.stop, step.phases)
    share = live_estimate.find_tail(window, step.trajectories.stops)
    if share is not None:
        gauge(metric_names.ROLLOUT_TAIL_SHARE).set(share)
