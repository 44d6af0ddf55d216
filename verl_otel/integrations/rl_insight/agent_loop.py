# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's agent sessions: the identity that a framework asks for, and one span for a session that is no trajectory of ours.

RL-Insight's gauges per sample, session and trajectory are left out: a metric whose labels are ids never stops growing.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from verl_otel import _guard
from verl_otel.integrations.rl_insight.traces import trace_span
from verl_otel.recording.span import Span, current, local_span


def agent_loop_lane_id(experiment_name: Any, sample: Any, session: Any, traj: Any) -> str:
    """Return the name of one trajectory's lane."""
    return f"experiment={experiment_name}/sample={sample}/session={session}/traj={traj}"


class AgentLoopSession(NamedTuple):
    """One session of an agent, from `agent_loop_session` to `finish`."""

    identity: dict[str, Any]
    start_ns: int

    def finish(
        self,
        *,
        trajectories: list[Any],
        status: str,
        runner_name: str | None = None,
        reward_source: str | None = None,
        finished: bool | None = None,
    ) -> None:
        """Say how the session ended: on the trajectory around it, or as a span of its own where there is none."""
        with _guard.swallowed("rl_insight"):
            facts = {
                "status": status,
                "runner_name": runner_name,
                "reward_source": reward_source,
                "finished": finished,
                "num_trajectories": len(trajectories),
            }
            said = {key: value for key, value in facts.items() if value not in (None, "")}
            around = _find_trajectory()
            if around is not None:
                around.set_attributes(said)
                return
            known = {key: value for key, value in self.identity.items() if value != ""}
            trace_span(
                name="agent_session",
                start_time_ns=self.start_ns,
                end_time_ns=time.time_ns(),
                attributes={**known, **said},
            )


def _find_trajectory() -> Span | None:
    span = current()
    while span is not None and span.site.spec.verb != "trajectory":
        span = local_span(span.outer)
    return span if span is not None and not span.stop else None


def agent_loop_session(
    *,
    project: Any = None,
    experiment_name: Any,
    sample: Any,
    session: Any,
    traj: Any = 0,
    uid: Any = None,
    global_steps: Any = None,
    session_id: Any = None,
) -> AgentLoopSession:
    """Begin a session and return its identity, under RL-Insight's keys."""
    identity = {
        "project": _text(project),
        "experiment_name": str(experiment_name),
        "sample": str(sample),
        "session": str(session),
        "traj": str(traj),
        "state_lane_id": agent_loop_lane_id(experiment_name, sample, session, traj),
        "uid": _text(uid),
        "global_steps": "" if global_steps is None else global_steps,
        "session_id": _text(session_id),
    }
    return AgentLoopSession(identity, time.time_ns())


def _text(value: Any) -> str:
    return "" if value is None else str(value)
