# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run log: records of a step and of users, queued until the session takes them.

In the process that trains, fields of users wait for the record of their step and become a part of it. Elsewhere each call is a record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from verl_otel._internal import error_boundary, process_state
from verl_otel.model import AttributeValue, LogRecord
from verl_otel.recording import state
from verl_otel.recording.attribute_values import coerce_attribute, to_name, to_number
from verl_otel.recording.span import Span, current_span
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs

MAX_RECORDS: Final = 10_000
"""Records that may wait for a drain; further ones are dropped and counted."""
MAX_FIELDS: Final = 64
"""Fields of one call of `log`."""
MAX_PENDING: Final = 10_000
"""Calls of `log` that may wait for the record of their step."""
BYTES_SHARE: Final = 4
"""Divisor: records that wait may take a quarter of the memory limit, and so may those that wait for their step."""
MIN_BYTES: Final = 1 << 20
"""The same in bytes, at least."""
_RECORD_BYTES: Final = 200
"""Bytes of a record without its fields."""
MAX_PARENTS: Final = 64
"""Enclosing spans that are searched for a step and a phase."""


class _Log:
    """The run log of this process."""

    level = logs.OFF
    debug_until = float("inf")
    """Time (`time.monotonic`) at which records of level DEBUG end."""
    records: list[LogRecord] = []
    pending: list[tuple[str, int, int | None, dict[str, AttributeValue]]] = []
    """Scope, level, step (None: the current one) and fields of users that wait for the record of their step."""
    bytes = 0
    """Bytes of `records`."""
    pending_bytes = 0
    """Bytes of `pending`."""
    dropped = 0
    trains = False
    """Whether this process logs steps."""
    step: Span | None = None
    """The step that began last."""
    is_wanted = False
    """Whether a record waits for which files must be opened."""


def configure(level: int, debug_seconds: float) -> None:
    """Set the lowest level that is recorded.

    Args:
        level: One of `verl_otel.semconv.logs`.
        debug_seconds: Seconds after which records of level DEBUG end; 0: never.
    """
    _Log.level = level
    _Log.debug_until = time.monotonic() + debug_seconds if debug_seconds else float("inf")


def is_enabled(level: int) -> bool:
    """Return whether records of a level are kept now."""
    return level >= _Log.level and (level >= logs.INFO or time.monotonic() < _Log.debug_until)


def begin_run() -> None:
    """Let fields of users wait for the record of their step from now on: this process trains."""
    _Log.trains = True


def trains() -> bool:
    """Return whether this process logs steps."""
    return _Log.trains


def begin_step(span: Span) -> None:
    """Let the records of this step have its ids, also after it has ended."""
    _Log.step = span


def add(record: LogRecord, *, wanted: bool = True) -> None:
    """Queue a record whose level is enabled.

    Args:
        record: The record.
        wanted: Whether the session opens its files for it.
    """
    weight = weigh(record.fields)
    if len(_Log.records) >= MAX_RECORDS or _Log.bytes + weight > find_limit():
        _Log.dropped += 1
        return
    _Log.bytes += weight
    _Log.records.append(record)
    _Log.is_wanted = _Log.is_wanted or wanted


def weigh(fields: Mapping[str, AttributeValue]) -> int:
    """Return about how many bytes a record with these fields takes."""
    return _RECORD_BYTES + state.weigh(fields)


def find_limit() -> int:
    """Return the number of bytes of records that may wait."""
    return max(MIN_BYTES, RECORDER.byte_limit // BYTES_SHARE)


def add_step(scope: str, step: int | None, fields: Mapping[str, AttributeValue], level: int = logs.INFO) -> None:
    """Queue the record of one scope of a step, in the context of the current span, or of the step if it has ended.

    Args:
        scope: For example ``rollout``.
        step: Number of the step.
        fields: Of verl. Fields of users with this scope are added to them.
        level: Severity number.
    """
    merged = dict(fields)
    waiting, _Log.pending = _Log.pending, []
    for entry in waiting:
        if entry[0] == scope and entry[2] in (None, step):
            merged.update(entry[3])
            level = max(level, entry[1])
        else:
            _Log.pending.append(entry)
    if merged and is_enabled(level):
        add(LogRecord(time.time_ns(), level, scope, step, merged, *find_ids(current_span() or find_begun(step))))


def find_begun(number: int | None) -> Span | None:
    """Return the step that began last, if it has this number."""
    span = _Log.step
    return span if span is not None and number is not None and span.attributes.get(attr.STEP_NUMBER) == number else None


def end_step(step: int | None) -> None:
    """Queue a record for each scope of users that is none of verl's, and for each other step. Repeated fields have their last value."""
    waiting = dict.fromkeys((entry[0], entry[2]) for entry in _Log.pending)
    # the current step takes its own fields first
    for scope, number in sorted(waiting, key=lambda key: key[1] is not None):
        add_step(scope, step if number is None else number, {}, logs.DEBUG)
    _Log.pending_bytes = sum(weigh(entry[3]) for entry in _Log.pending)


def log(scope: str, /, *, level: str = "INFO", **fields: object) -> None:
    """Add fields to the run log, ``verl_logs.jsonl`` in the folder of the run.

    In the process that trains they become a part of the record of their step, with the last value of each field. In another process,
    such as the one of a reward function, or in a loop of your own, each call is a record, with the trace that it belongs to.

    Args:
        scope: ``training``, ``rollout`` or ``ppo`` to add fields to such a record; any other word for a record of its own.
        level: ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``.
        **fields: Numbers, truth values and texts. ``step`` is the number of the step, if it is not the current one; fields of another step have a
            record of their own in the process that trains.

    Example:
        verl_otel.log("rollout", tokens_per_second=812.5)
    """
    severity = logs.LEVELS.get(str(level).upper(), logs.INFO)
    if not RECORDER.on or not is_enabled(severity):
        return
    with error_boundary.suppress_errors("log"):
        span = current_span()
        number = to_number(fields.pop("step", None))
        step = find_step(span) if number is None else int(number)
        values = {_field_name(name): coerce_attribute(fields[name]) for name in list(fields)[:MAX_FIELDS]}
        if not _Log.trains:
            add(LogRecord(time.time_ns(), severity, to_name(scope), step, values, *find_ids(span)))
        elif len(_Log.pending) < MAX_PENDING and _Log.pending_bytes + (weight := weigh(values)) <= find_limit():
            _Log.pending_bytes += weight
            _Log.pending.append((to_name(scope), severity, None if number is None else int(number), values))
        else:
            _Log.dropped += 1


def _field_name(name: str) -> str:
    return f"{name}_" if name in logs.RESERVED else to_name(name)


def find_ids(span: Span | None) -> tuple[int, int]:
    """Return the ids of a trace and a span; 0 without a span."""
    if span is None:
        return 0, 0
    ids = span.resolve()
    return ids.trace_id, ids.span_id


def find_step(span: Span | None) -> int | None:
    """Return the number of the step that a span belongs to, if it is known in this process."""
    value = _find(span, attr.STEP_NUMBER)
    return value if isinstance(value, int) else None


def find_phase(span: Span | None) -> str:
    """Return the phase that a span belongs to; empty if it is not known."""
    return str(_find(span, attr.PHASE) or "")


def _find(span: Span | None, key: str) -> AttributeValue | None:
    for _ in range(MAX_PARENTS):
        if span is None:
            break
        value = span.attributes.get(key)
        if value is not None:
            return value
        span = span._parent()  # type: ignore[assignment]  # spans have spans as parents
    return None


def is_waiting() -> bool:
    """Return whether a record waits for which the session opens its files."""
    return _Log.is_wanted


def take() -> list[LogRecord]:
    """Remove and return the queued records. Only one thread may take at a time."""
    _Log.is_wanted = False
    records = state.take(_Log.records)
    _Log.bytes = 0
    return records


def has_records() -> bool:
    """Return whether records wait for a drain."""
    return bool(_Log.records)


def count_lost(number: int) -> None:
    """Count records that could not be written."""
    _Log.dropped += number


def count_dropped() -> int:
    """Return the number of records that were dropped: the queue or the disk was full."""
    return _Log.dropped


def clear() -> None:
    """Discard what waits."""
    _Log.records, _Log.pending = [], []
    _Log.bytes = _Log.pending_bytes = 0
    _Log.dropped, _Log.trains, _Log.is_wanted, _Log.step = 0, False, False, None


def _reset() -> None:
    clear()
    configure(logs.OFF, 0)


process_state.register(clear=clear, reset=_reset, after_fork=clear)
