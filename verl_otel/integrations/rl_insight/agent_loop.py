# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's agent sessions: their identity, and a span for a session outside of a trajectory.

RL-Insight's gauges per sample, session and trajectory are not recorded: labels that hold ids have unbounded cardinality.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel.integrations.open_spans import find_open
from verl_otel.integrations.rl_insight.traces import trace_span


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
        """Record the end of the session: on the enclosing trajectory, or as a span of its own if there is none."""
        with error_boundary.suppress_errors("rl_insight"):
            fields = {
                "status": status,
                "runner_name": runner_name,
                "reward_source": reward_source,
                "finished": finished,
                "num_trajectories": len(trajectories),
            }
            attributes = {key: value for key, value in fields.items() if value not in (None, "")}
            trajectory = find_open("trajectory")
            if trajectory is not None:
                trajectory.set_attributes(attributes)
                return
            identity = {key: value for key, value in self.identity.items() if value != ""}
            trace_span(
                name="agent_session",
                start_time_ns=self.start_ns,
                end_time_ns=time.time_ns(),
                attributes={**identity, **attributes},
            )


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
