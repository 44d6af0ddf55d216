# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's functions: calls of users become spans, metrics, trajectories and targets. None raises or blocks.

States that verl itself reports (worker methods, ``generate`` of a server) are not recorded, because hooks record their spans.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Union

from verl_otel._internal import error_boundary
from verl_otel.integrations.spans import find_open
from verl_otel.prometheus_names import label_name
from verl_otel.recording.attribute_values import coerce_attribute, to_name, to_number, to_text
from verl_otel.recording.call_attributes import extract_trajectory
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.context import context_access
from verl_otel.recording.decorate import Steps, surround
from verl_otel.recording.instruments import Counter, Gauge, Histogram, valid_bounds
from verl_otel.recording.span import Span, current_span, local_span
from verl_otel.recording.state import RECORDER, keep_span
from verl_otel.resource import build_resource
from verl_otel.semconv import attributes as attr
from verl_otel.session import current_session
from verl_otel.session.prometheus_targets import add_targets, make_target, read_own_targets

HOOKED: Final = {
    "rank_": frozenset(
        {"train_batch", "ref_compute_log_prob", "actor_compute_log_prob", "actor_update", "forward_backward"}
    ),
    "replica_": frozenset({"vllm_generate", "sglang_generate"}),
}
"""verl's own states by the prefix of their lane: those of ``DistProfiler.annotate`` and of the servers, as of 0.9.1."""
_NO_SPAN: Final = contextlib.nullcontext()


def trace_state(state_name: str, *, state_lane_id: str | None = None, **labels: Any) -> AbstractContextManager[Any]:
    """Record a state as a span; a state of verl itself is not recorded.

    Unlike in RL-Insight, overlapping states of one lane are all recorded.
    """
    if not RECORDER.on or _is_hooked(state_name, state_lane_id):
        return _NO_SPAN
    try:
        lane = {} if state_lane_id is None else {"state_lane_id": state_lane_id}
        return Span(CallSite("span", to_text(state_name)), _clean({**labels, **lane}))
    except Exception as error:
        error_boundary.record_internal_error("rl_insight", error)
        return _NO_SPAN


def _is_hooked(name: str, lane: object) -> bool:
    begin, mark, _ = lane.partition("_") if isinstance(lane, str) else ("", "", "")
    return name in HOOKED.get(begin + mark, ())


def trace_span(*, name: str, start_time_ns: int, end_time_ns: int, attributes: Mapping[str, Any]) -> None:
    """Record an ended span with the given times (Unix time, nanoseconds).

    Its parent is the innermost open span that began before it; without one it is a root.
    """
    if not RECORDER.on:
        return
    with error_boundary.suppress_errors("rl_insight"):
        span = Span(CallSite("span", to_text(name)), _clean(attributes))
        outer: Any = current_span() or context_access().get()
        parent = local_span(outer)
        while parent is not None and parent.start_ns > start_time_ns:
            outer = None if parent.site.spec.root else parent.outer  # the submitter of a trajectory does not enclose it
            parent = local_span(outer)
        span.outer = outer
        offset = span.resolve().offset_ns
        span.start = (int(start_time_ns) - offset) / 1e9
        span.stop = (max(int(start_time_ns), int(end_time_ns)) - offset) / 1e9
        keep_span(span)


def trace_op(
    name: str | None = None, *, extra_labels: Callable[[Any], Mapping[str, Any]] | None = None, **static_labels: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function, sync or async: each call is a span. ``extra_labels`` is called with the first argument."""

    def decorator(func: Callable[..., Any]) -> Callable[..., Any]:
        site = CallSite("span", name or "", attributes=_clean(static_labels))
        if extra_labels is not None:
            func = surround("extra_labels", functools.partial(_add_labels, extra_labels))(func)
        return Span(site)(func)

    return decorator


def _add_labels(
    extra_labels: Callable[[Any], Mapping[str, Any]], args: tuple[Any, ...], _kwargs: dict[str, Any]
) -> Steps:
    """Add a user's labels to the span of this call. Errors of the user's function do not reach the call."""
    span = current_span()
    if span is not None and args:
        try:
            span.set_attributes(_clean(extra_labels(args[0])))
        except Exception as error:
            error_boundary.may_propagate(error)
            error_boundary.warn_once(
                f"extra_labels {span.name}", "verl-otel: extra_labels of %s failed: %r (logged once)", span.name, error
            )
    yield


def _clean(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): coerce_attribute(value) for key, value in values.items() if value is not None}


# -- Lifecycle and metrics: those of users, under their own names; values that cannot be recorded are dropped --

MAX_METRICS: Final = 1000
"""Maximum number of metrics of one process, because names that hold numbers are unbounded; further metrics are dropped."""
_Instrument = Union[Counter, Gauge, Histogram]
_instruments: dict[tuple[type, str], Any] = {}


def init(
    project: str | None = None, experiment_name: str | None = None, config: Mapping[str, Any] | None = None
) -> None:
    """Do nothing: verl-otel starts with ``import verl`` and reads project and experiment from ``Tracking``."""


def finish() -> None:
    """Do nothing: verl-otel ends with ``Tracking.finish`` and with the process."""


def metric_count(name: str, amount: float = 1.0, documentation: str = "", **labels: Any) -> None:
    """Add to a counter."""
    _record(Counter, name, amount, documentation, labels)


def metric_gauge(name: str, value: float, documentation: str = "", **labels: Any) -> None:
    """Replace the value of a gauge."""
    _record(Gauge, name, value, documentation, labels)


def metric_histogram(name: str, value: float, documentation: str = "", **labels: Any) -> None:
    """Record one sample of a histogram, with verl-otel's bucket bounds, from microseconds to an hour."""
    _record(Histogram, name, value, documentation, labels)


def _record(kind: type[_Instrument], name: str, value: float, documentation: str, labels: dict[str, Any]) -> None:
    if RECORDER.on:
        with error_boundary.suppress_errors("rl_insight"):
            instrument = _find_instrument(kind, name, documentation)
            if instrument is not None:
                instrument._record(value, labels)  # a label may be named like a parameter of `add`


def _find_instrument(kind: type[_Instrument], name: str, documentation: str) -> _Instrument | None:
    existing: _Instrument | None = _instruments.get((kind, name))
    if existing is not None:
        return existing
    if len(_instruments) >= MAX_METRICS:
        error_boundary.warn_once(
            "rl_insight metrics",
            "verl-otel: more than %d metrics through rl_insight; the rest is left out",
            MAX_METRICS,
        )
        return None
    bounds = valid_bounds(None) if kind is Histogram else ()
    instrument = _instruments[(kind, name)] = kind(str(name), "", documentation, bounds)
    return instrument


# -- Agent sessions: their identity, and a trajectory for a session outside of one --
# RL-Insight's gauges per sample, session and trajectory are not recorded: labels that hold ids have unbounded cardinality.

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
            values = extract_trajectory({}, trajectories[-1]) if trajectories and self.span is not None else {}
            span.set_attributes({key: value for key, value in {**fields, **values}.items() if value not in (None, "")})
        if self.span is not None:
            self.span.close()


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
            return Span(_TRAJECTORY, attributes).__enter__()
    return None


def _text(value: Any) -> str:
    return "" if value is None else str(value)


# -- The ``/metrics`` addresses that verl registers with RL-Insight, as targets of the run --
# Rollout replicas are added by verl-otel when they start; TransferQueue and addresses of users are added here.

DEFAULT_JOB: Final = "trainer_metrics"
MAX_ADDRESSES: Final = 10_000
"""Maximum number of addresses of one call."""


def update_prometheus_config(
    server_addresses: list[str], job_name: str | None = None, labels: list[Mapping[str, Any] | None] | None = None
) -> None:
    """Add addresses to the run's targets unless they exist. Never raises."""
    if not RECORDER.on:
        return
    with error_boundary.suppress_errors("rl_insight"):
        if labels is not None and len(labels) != len(server_addresses):
            message = "verl-otel: %d labels for %d addresses; the labels are left out"
            error_boundary.warn_once("rl_insight targets", message, len(labels), len(server_addresses))
            labels = None
        cleaned = [_clean_labels(given or {}) for given in labels or [None] * len(server_addresses)]
        _add(list(map(str, server_addresses)), str(job_name or DEFAULT_JOB), cleaned)


def _add(addresses: list[str], job: str, labels: list[dict[str, str]]) -> None:
    current = current_session()
    if current is None or not current.config.exporters:
        return
    existing = {address for entry in read_own_targets(current.config) for address in entry["targets"]}
    resource = build_resource(current.config)
    entries = []
    for address, extra in list(zip(addresses, labels, strict=True))[:MAX_ADDRESSES]:
        if address not in existing:
            role = job if job == "transfer_queue" else "llm_server" if "replica" in extra else resource.text(attr.ROLE)
            instance = f"{resource.text(attr.RUN_ID)}/{job}-{address}"
            entry = make_target(resource, address, instance=instance, **{label_name(attr.ROLE): role})
            entries.append({**entry, "labels": {**extra, **entry["labels"]}})
    if entries:
        add_targets(current.config, entries)


def _clean_labels(labels: Mapping[str, Any]) -> dict[str, str]:
    """Return a user's labels with valid names: Prometheus rejects a whole file with one invalid name."""
    cleaned = {label_name(str(key)): to_text(value) for key, value in labels.items()}
    return {key: value for key, value in cleaned.items() if not key.startswith("__")}
