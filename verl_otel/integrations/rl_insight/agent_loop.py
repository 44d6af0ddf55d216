# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's agent sessions: their identity, and a trajectory for a session outside of one.

RL-Insight's gauges per sample, session and trajectory are not recorded: labels that hold ids have unbounded cardinality.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel.integrations.open_spans import find_open
from verl_otel.recording.attribute_values import to_name, to_number
from verl_otel.recording.call_attributes import extract_trajectory
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr

_TRAJECTORY: Final = CallSite("trajectory", hook=True)


def agent_loop_lane_id(experiment_name: Any, sample: Any, session: Any, traj: Any) -> str:
    """Return the name of one trajectory's lane."""
    return f"experiment={experiment_name}/sample={sample}/session={session}/traj={traj}"


class AgentLoopSession(NamedTuple):
    """One session of an agent, from `agent_loop_session` to `finish`."""

    identity: dict[str, Any]
    span: Span | None
    """Its trajectory; None within a trajectory that a hook or the user has opened, and while recording is off."""

    def finish(
        self,
        *,
        trajectories: list[Any],
        status: str,
        runner_name: str | None = None,
        reward_source: str | None = None,
        finished: bool | None = None,
    ) -> None:
        """End the trajectory of the session, or describe the enclosing one."""
        with error_boundary.suppress_errors("rl_insight"):
            span = self.span or find_open("trajectory")
            if span is None:
                return
            fields = {
                "status": status,
                "runner_name": runner_name,
                "reward_source": reward_source,
                "finished": finished,
                "num_trajectories": len(trajectories),
            }
            span.set_attributes({key: value for key, value in fields.items() if value not in (None, "")})
            if self.span is not None:
                self._describe_outputs(trajectories)
        if self.span is not None:
            self.span.close()

    def _describe_outputs(self, trajectories: list[Any]) -> None:
        if trajectories and self.span is not None:
            values = extract_trajectory({}, trajectories[-1])
            self.span.set_attributes({key: value for key, value in values.items() if value is not None})


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
    """Begin a session and return its identity, under RL-Insight's keys. Outside of a trajectory it is one."""
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
    return AgentLoopSession(identity, _begin(identity, session))


def _begin(identity: dict[str, Any], session: Any) -> Span | None:
    with error_boundary.suppress_errors("rl_insight"):
        if RECORDER.on and find_open("trajectory") is None:
            attributes: dict[str, Any] = {key: value for key, value in identity.items() if value != ""}
            attributes[attr.SAMPLE_UID] = to_name(identity["uid"] or identity["sample"])
            attributes[attr.ROLLOUT_INDEX] = int(to_number(session) or 0)
            step = to_number(identity["global_steps"])
            if step is not None and step >= 0:
                attributes[attr.STEP_NUMBER] = int(step)
            span = Span(_TRAJECTORY, attributes)
            span.__enter__()
            return span
    return None


def _text(value: Any) -> str:
    return "" if value is None else str(value)
