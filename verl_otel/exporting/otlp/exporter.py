# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP exporter: a bounded queue, one thread, and retries with jitter that never block the caller."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import remaining
from verl_otel.exporting.base import Sender
from verl_otel.exporting.otlp import protobuf
from verl_otel.exporting.otlp.transport import EXPONENTIAL, Answer, connect, load_endpoint, sent_signals
from verl_otel.model import SAMPLED, SIGNALS, HistogramValue, Labels, Point, to_float

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from verl_otel.exporting.base import MetricState
    from verl_otel.exporting.otlp.transport import Transport
    from verl_otel.model import Batch, LogRecord, Resource, Scope, SpanRecord


# -- Retries with exponential backoff for one signal --

FIRST_RETRY: Final = 1.0
"""Seconds before the first retry; doubled with each, up to `LAST_RETRY`."""
LAST_RETRY: Final = 30.0
MAX_DOUBLINGS: Final = 20
"""Limit of doublings: 2 to the power of 1,024 failures, an outage of a night, exceeds a float."""
_jitter = random.SystemRandom()  # independent of the user's seeds, which would synchronise a thousand ranks


class RetryingSender:
    """Transport of one signal with the time of its next retry."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.failures = 0
        self.not_before = 0.0

    def send(self, body: bytes, deadline: float | None) -> Answer:
        """Send one request until ``deadline`` (`time.monotonic`). A failure that can be retried delays the next request."""
        timeout = 3600.0 if deadline is None else max(0.05, remaining(deadline))
        try:
            answer = self.transport.send(body, timeout)
        except Exception as error:
            error_boundary.warn_once("otlp transport", "verl-otel: OTLP: %s", type(error).__name__)
            answer = Answer(ok=False, retry=True, reason=f"cannot send: {type(error).__name__}")
        if answer.doubt:
            error_boundary.warn_once("otlp doubt", "verl-otel: OTLP: %s: does it arrive? (logged once)", answer.doubt)
        if answer.ok or not answer.retry:
            self.failures, self.not_before = 0, 0.0
        else:
            backoff = min(LAST_RETRY, FIRST_RETRY * 2 ** min(self.failures, MAX_DOUBLINGS)) * _jitter.uniform(0.8, 1.2)
            # never before the time that the server asked for
            pause = max(answer.wait * _jitter.uniform(1.0, 1.2), backoff)
            self.failures += 1
            self.not_before = time.monotonic() + pause
        return answer


# -- Delta temporality: what has happened since the last export, for backends that want it so --
# The differences of a series add up to its cumulative value. A sum of floats that has at most doubled is subtracted without rounding
# (P. H. Sterbenz, Floating-Point Computation, 1974), so that the error does not grow with the number of exports.

_UNKNOWN: Final = (float("inf"), float("-inf"))
"""Minimum and maximum of an interval of which only the whole is known."""


class _Sent(NamedTuple):
    """What the receiver has of one series."""

    start_ns: int
    """Start of the series; another start is a reset."""
    time_ns: int
    """Until when it was sent."""
    total: float
    samples: int = 0
    counts: tuple[int, ...] = ()


class Deltas:
    """Turns cumulative points into differences.

    Counters and histograms become differences, up-down counters and gauges stay what they are. ``lowmemory`` leaves the counters
    that are asked at collection as they are, too: they need no memory that way.

    Args:
        preference: ``delta`` or ``lowmemory``.
        asked: Metrics that have a callback.
    """

    def __init__(self, preference: str, asked: Collection[str] = ()) -> None:
        self._stay = frozenset(asked if preference == "lowmemory" else ())
        self._sent: dict[tuple[str, Labels], _Sent] = {}

    def is_delta(self, point: Point) -> bool:
        """Return whether a point is sent with delta temporality."""
        kind = point.instrument.kind
        return kind == "histogram" or (kind == "counter" and point.instrument.name not in self._stay)

    def convert(self, points: Iterable[Point]) -> list[Point]:
        """Return the points to send and regard them as sent. Series without changes have none."""
        deltas = []
        for point in points:
            delta = self._since(point) if self.is_delta(point) else point
            if delta is not None:
                deltas.append(delta)
        return deltas

    def _since(self, point: Point) -> Point | None:
        key = (point.instrument.name, point.labels)
        value, now, last = point.value, _read(point), self._sent.get(key)
        same = last is not None and last.start_ns == point.start_ns
        begin = last.time_ns if last is not None and same else point.start_ns
        begin = min(begin, point.time_ns)  # the clock may have been set back
        fresh = last is None or not same or _was_reset(last, now)
        if last is None or fresh:
            last = _Sent(point.start_ns, begin, 0, 0, (0,) * len(now.counts))
        difference = _subtract(now.total, last.total)
        self._sent[key] = now
        if isinstance(value, HistogramValue):
            samples = now.samples - last.samples
            if not samples:
                return None
            low, high = (value.minimum, value.maximum) if fresh else _UNKNOWN
            counts = tuple(new - old for new, old in zip(now.counts, last.counts, strict=True))
            value = HistogramValue(samples, difference, low, high, value.bounds, counts)
            exemplars = tuple(exemplar for exemplar in point.exemplars if exemplar.time_ns > begin)
            return point._replace(start_ns=begin, value=value, exemplars=exemplars)
        return point._replace(start_ns=begin, value=difference) if difference or fresh else None


def _read(point: Point) -> _Sent:
    value = point.value
    if isinstance(value, HistogramValue):
        return _Sent(point.start_ns, point.time_ns, value.total, value.samples, value.counts)
    return _Sent(point.start_ns, point.time_ns, value)


def _was_reset(last: _Sent, now: _Sent) -> bool:
    """Return whether a series was reset: it has less than was sent."""
    if now.counts or last.counts:
        return now.samples < last.samples or len(now.counts) != len(last.counts)
    return now.total < last.total


def _subtract(now: float, before: float) -> float:
    """Return a difference; 0 if both values are infinite."""
    if isinstance(now, int) and isinstance(before, int):
        return now - before
    difference = to_float(now) - to_float(before)
    return difference if difference == difference else 0.0


# -- Queue of encoded spans, bounded by bytes, and joined to larger requests --

REQUEST_BYTES: Final = 1 << 19
"""Size of a request at most: waiting parts are joined up to it, and spans above it are sent in two requests. A proxy accepts 1 MiB (nginx), a
Collector 4 MiB if nothing else is set. Only a single span or record, or the user's own metrics, may be larger."""


class Part(NamedTuple):
    """An encoded request."""

    body: bytes
    spans: int


class SpanQueue:
    """Queue of parts in order of arrival. One thread adds, another one sends.

    Args:
        capacity: Bytes that may wait; the oldest parts are dropped.

    Example:
        queue = SpanQueue(32 << 20)
        dropped = queue.add(body, 512)
        parts = queue.join()
        queue.remove(parts)
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._parts: deque[Part] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._parts)

    def add(self, body: bytes, spans: int) -> int:
        """Add an encoded request. Returns how many spans were dropped to make room."""
        dropped = 0
        with self._lock:
            self._parts.append(Part(body, spans))
            self._bytes += len(body)
            while self._bytes > self._capacity and self._parts:
                oldest = self._parts.popleft()
                self._bytes -= len(oldest.body)
                dropped += oldest.spans
        return dropped

    def join(self) -> list[Part]:
        """Return what goes into the next request, the oldest first; it stays in the queue.

        Encoded requests one behind the other are one request, as protobuf merges messages
        (https://protobuf.dev/programming-guides/encoding/#last-one-wins).
        """
        parts: list[Part] = []
        size = 0
        with self._lock:
            for part in self._parts:
                size += len(part.body)
                if parts and size > REQUEST_BYTES:
                    break
                parts.append(part)
        return parts

    def remove(self, parts: list[Part]) -> None:
        """Remove parts that were sent or rejected permanently. A full queue may have dropped some of them meanwhile."""
        with self._lock:
            for part in parts:
                if self._parts and self._parts[0] is part:
                    self._parts.popleft()
                    self._bytes -= len(part.body)

    def clear(self) -> int:
        """Remove all parts. Returns their number of spans."""
        with self._lock:
            left = sum(part.spans for part in self._parts)
            self._parts.clear()
            self._bytes = 0
        return left


# -- Gives the points of a request the time of the request, as those of OpenTelemetry's SDK have the time of their collection --
# A store takes a value that is sent again with its old time for a repetition, and the series ends there: in Prometheus after five minutes. It
# also rejects a request in which one point is older than the request before. Differences keep the time until which they count.


def stamp(points: list[Point], is_delta: Callable[[Point], bool] | None) -> list[Point]:
    """Return points of verl-otel with the time of now."""
    now = time.time_ns()
    return [
        point
        if is_delta is not None and is_delta(point)
        else point._replace(time_ns=now, start_ns=min(point.start_ns, now))
        for point in points
    ]


def stamp_message(message: bytes) -> bytes:
    """Return a request with the user's own metrics with the time of now; unchanged if it cannot be read."""
    try:
        request = ExportMetricsServiceRequest.FromString(message)
    except Exception:
        return message
    now = time.time_ns()
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, str(metric.WhichOneof("data")), None)
                if data is None or getattr(data, "aggregation_temporality", 0) == AGGREGATION_TEMPORALITY_DELTA:
                    continue
                for point in data.data_points:
                    point.time_unix_nano = now
    return bytes(request.SerializeToString())


# -- the exporter --

SPANS_PER_REQUEST: Final = 512
POINTS_PER_REQUEST: Final = 1_000
"""Points in one request: 0.45 MB of histograms with the default bounds and exemplars."""
RECORDS_PER_REQUEST: Final = 256
LOG_SHARE: Final = 8
"""Divisor: the part of the capacity that encoded records of the run log may take."""
_REFUSED: Final = ("HTTP 401", "HTTP 403", "gRPC UNAUTHENTICATED", "gRPC PERMISSION_DENIED")
"""Ends of reasons that mean missing or wrong credentials."""
_TOO_LARGE: Final = "HTTP 413"
_NOT_SENT: Final = "not sent before exit"
MAX_MESSAGES: Final = 60
"""Delta messages of the user's own metrics that may wait: usually ten minutes."""


class OtlpExporter(Sender):
    """Sends spans and metrics by OTLP.

    Encoded spans wait in a queue that is bounded by bytes. Metrics do not wait: each request is built from the current state, so that an
    outage of the endpoint loses no measurement. With delta temporality (``OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE``) one request
    may wait, and the next one has everything since then.

    Args:
        capacity: Bytes of encoded spans that may wait.
        interval: Seconds after which unchanged series are sent again; a Collector expires series that are not.
        token_file: File with a bearer token.
        asked: Metrics that have a callback; see `Deltas`.
    """

    name = "otlp"

    def __init__(
        self,
        capacity: int = 32 << 20,
        interval: float = 10.0,
        token_file: Path | None = None,
        asked: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._interval = interval
        self._endpoints = {signal: load_endpoint(signal, token_file) for signal in SIGNALS}
        preference = self._endpoints["metrics"].temporality
        self._deltas = Deltas(preference, asked) if preference != "cumulative" else None
        self._has_reader = self._deltas is not None or self._endpoints["metrics"].histograms == EXPONENTIAL
        """Whether the user's own metrics arrive from a reader of this exporter alone."""
        self._pending: deque[tuple[bytes, int]] = deque()
        """Requests that were neither accepted nor rejected. Deltas are sent again unchanged, so that nothing is counted twice."""
        self._queue = SpanQueue(capacity)
        self._log_queue = SpanQueue(capacity // LOG_SHARE)
        self._sent = sent_signals()
        self._messages: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._cursor = 0
        self._left = ""
        self._full_at = float("-inf")  # the monotonic clock may start at 0 with the machine

    def open(self, resource: Resource, scope: Scope, state: MetricState) -> None:
        """Connect and start the thread."""
        self._resource, self._scope, self._state = resource, scope, state
        self._channels = {signal: RetryingSender(connect(endpoint)) for signal, endpoint in self._endpoints.items()}
        self._start()

    def consume(self, batch: Batch) -> None:
        """Encode and queue the sampled spans. The oldest are dropped if the queue is full."""
        spans = [span for span in batch.spans if span.flags & SAMPLED] if "traces" in self._sent else []
        for begin in range(0, len(spans), SPANS_PER_REQUEST):
            for body, count in self._encode(spans[begin : begin + SPANS_PER_REQUEST]):
                self.drop("spans", self._queue.add(body, count), "queue full")
        if spans or batch.points:
            self._wake.set()

    def consume_logs(self, records: Sequence[LogRecord]) -> None:
        """Encode and queue records of the run log. The oldest are dropped if the queue is full."""
        for begin in range(0, len(records) if "logs" in self._sent else 0, RECORDS_PER_REQUEST):
            for body, count in self._encode_logs(records[begin : begin + RECORDS_PER_REQUEST]):
                self.drop("logs", self._log_queue.add(body, count), "queue full")
        if self._log_queue:
            self._wake.set()

    def _encode(self, spans: list[SpanRecord]) -> Iterator[tuple[bytes, int]]:
        """Yield requests and their numbers of spans: one, if it is not too large. Spans that cannot be encoded are dropped."""
        try:
            body = protobuf.encode_traces(self._resource, self._scope, spans)
        except Exception:
            good = [span for span in spans if _is_encodable(span)]
            self.drop("spans", len(spans) - len(good), "cannot be encoded")
            spans, body = good, protobuf.encode_traces(self._resource, self._scope, good)
        if len(body) > REQUEST_BYTES and len(spans) > 1:
            half = len(spans) // 2
            yield from self._encode(spans[:half])
            yield from self._encode(spans[half:])
        elif spans:
            yield body, len(spans)

    def _encode_logs(self, records: Sequence[LogRecord]) -> Iterator[tuple[bytes, int]]:
        """Yield requests, each with its number of records."""
        body = protobuf.encode_logs(self._resource, self._scope, records)
        if len(body) > REQUEST_BYTES and len(records) > 1:
            half = len(records) // 2
            yield from self._encode_logs(records[:half])
            yield from self._encode_logs(records[half:])
        else:
            yield body, len(records)

    def make_reader(self) -> Any:
        """Return a reader of the user's own metrics if they differ from those of other exporters in temporality or aggregation."""
        if not self._has_reader:
            return None
        from verl_otel.exporting.own_opentelemetry import OtlpReader

        endpoint = self._endpoints["metrics"]
        exponential = endpoint.histograms == EXPONENTIAL
        return OtlpReader(endpoint.temporality, self.consume_read, exponential=exponential)

    def consume_metrics(self, message: bytes) -> None:
        """Queue cumulative metrics of the user, unless they arrive by `consume_read`."""
        if self._has_reader or "metrics" not in self._sent:
            return
        if self._deltas is not None:
            error_boundary.warn_once(
                "otlp whole",
                "verl-otel: OTLP: this version of OpenTelemetry has no differences of your own metrics for a forked process or a second "
                "session: their totals are sent (logged once)",
            )
        self._queue_latest(message)

    def _queue_latest(self, message: bytes) -> None:
        with self._lock:
            self._messages.clear()  # cumulative: only the latest is needed
            self._messages.append(message)
        self._wake.set()

    def detach_reader(self) -> None:
        """Accept cumulative metrics of the user: this exporter has no reader."""
        self._has_reader = False

    def consume_read(self, message: bytes) -> None:
        """Queue metrics of this exporter's reader. The oldest deltas are dropped if the queue is full."""
        if "metrics" not in self._sent:
            return
        if self._deltas is None:
            self._queue_latest(message)
            return
        with self._lock:
            too_many = len(self._messages) >= MAX_MESSAGES
            if too_many:
                self._messages.popleft()
            self._messages.append(message)
        self.drop("points", int(too_many), "queue full")
        self._wake.set()

    def poll(self) -> None:
        """End requests that take longer than their time-out."""
        for channel in self._channels.values():
            channel.transport.expire()

    def rest(self) -> None:
        """End requests that take longer than their time-out."""
        self.poll()

    def close(self, deadline: float) -> None:
        """Send the queue until ``deadline``, stop, and count the rest as dropped."""
        super().close(deadline)
        spans, records = self._queue.clear(), self._log_queue.clear()
        self._left = f" ({spans} spans, {records} records of the run log)"
        self.drop("spans", spans, _NOT_SENT)
        self.drop("logs", records, _NOT_SENT)
        if self._deltas is not None:
            self.drop("points", sum(count for _, count in self._pending), _NOT_SENT)

    def _run(self) -> None:
        _suppress_instrumentation()
        super()._run()
        for channel in self._channels.values():
            channel.transport.close()

    def _begin_pass(self) -> None:
        """Do not wait for retries: a request that was on its way when the flush began may have failed."""
        for channel in self._channels.values():
            channel.not_before = 0.0

    def _send(self, *, is_flush: bool) -> bool:
        self._send_queue("traces", self._queue, "spans")
        self._send_queue("logs", self._log_queue, "logs")
        metrics_sent = "metrics" not in self._sent or self._send_metrics(full=is_flush)
        return metrics_sent and not self._queue and not self._log_queue

    def _seconds_until_due(self) -> float:
        """Return the seconds until the next retry or full export of metrics."""
        due = [time.monotonic() + self._interval]
        if "metrics" in self._sent:
            full_at = 0.0 if self._deadline is not None else self._full_at + self._interval
            due.append(max(full_at, self._channels["metrics"].not_before))
        if self._queue:
            due.append(self._channels["traces"].not_before)
        if self._log_queue:
            due.append(self._channels["logs"].not_before)
        if self._pending:
            due.append(self._channels["metrics"].not_before)
        return max(0.05, min(due) - time.monotonic())

    def _may_send(self, channel: RetryingSender) -> bool:
        return time.monotonic() >= channel.not_before

    def _send_queue(self, signal: str, queue: SpanQueue, what: str) -> None:
        """Send what waits of ``traces`` or ``logs``.

        Args:
            signal: One of `SIGNALS`.
            queue: Its queue.
            what: What is counted if it is dropped.
        """
        channel = self._channels[signal]
        while queue and self._may_send(channel) and not self._stopped:
            deadline = self._deadline
            if deadline is not None and not remaining(deadline):
                return
            parts = queue.join()
            answer = channel.send(b"".join(part.body for part in parts), deadline)
            if answer.unsupported and signal == "logs":
                self._end_logs(answer)
                return
            if answer.retry and not answer.ok:
                self._log_once(answer)
                return
            queue.remove(parts)
            refused = answer.rejected if answer.ok else sum(part.spans for part in parts)
            self.drop(what, refused, answer.reason or "rejected by the server")

    def _end_logs(self, answer: Answer) -> None:
        """Send no more logs: the endpoint, such as one of Tempo or Prometheus, has no place for them."""
        self._sent -= {"logs"}
        self._log_queue.clear()
        error_boundary.warn_once(
            "otlp logs", "verl-otel: OTLP: %s: the run log is not sent there, spans and metrics are", answer.reason
        )

    def _send_metrics(self, *, full: bool) -> bool:
        """Send the metrics of the user and of verl-otel; return whether nothing is left to send."""
        channel = self._channels["metrics"]
        if not self._may_send(channel) or self._stopped:
            return False
        now = time.monotonic()
        full = full or now - self._full_at >= self._interval
        if not self._send_pending(channel):
            return False
        if not self._send_messages(channel):
            return False
        version, points = self._state.read(0 if full else self._cursor)
        if self._deltas is not None:
            points = self._deltas.convert(points)
        is_delta = self._deltas.is_delta if self._deltas is not None else None
        points = stamp(points, is_delta)
        for begin in range(0, len(points), POINTS_PER_REQUEST):
            part = points[begin : begin + POINTS_PER_REQUEST]
            self._pending.append((protobuf.encode_metrics(self._resource, self._scope, part, is_delta), len(part)))
        if self._deltas is not None:
            self._cursor = version  # on failure the request is sent again unchanged
        if not self._send_pending(channel):
            return False
        self._cursor = version
        self._full_at = now if full else self._full_at
        return True

    def _send_messages(self, channel: RetryingSender) -> bool:
        """Send the user's own metrics; return whether all were accepted or rejected permanently."""
        while True:
            with self._lock:  # a newer message may replace this one at any time
                message = next(iter(self._messages), None)
            if message is None:
                return True
            answer = self._send_points(channel, stamp_message(message))
            if answer is None:
                return False
            with self._lock:
                if self._messages and self._messages[0] is message:
                    self._messages.popleft()
            self._count_rejected(answer, 1)

    def _send_pending(self, channel: RetryingSender) -> bool:
        """Send the pending requests, if any; return whether all were accepted or rejected permanently."""
        while self._pending:
            body, count = self._pending[0]
            answer = self._send_points(channel, body)
            if answer is None:
                if self._deltas is None:  # the next request has newer cumulative points
                    self._pending.clear()
                return False
            self._pending.popleft()
            self._count_rejected(answer, count)
        return True

    def _send_points(self, channel: RetryingSender, body: bytes) -> Answer | None:
        """Send one request of metrics; return the answer, or None if it is to be sent again later."""
        answer = channel.send(body, self._deadline)
        if answer.retry and not answer.ok:
            self._log_once(answer)
            return None
        return answer

    def _count_rejected(self, answer: Answer, count: int) -> None:
        """Count the points of a request that the server has rejected, all or some of them."""
        self.drop("points", answer.rejected if answer.ok else count, answer.reason or "rejected by the server")

    def log_once(self, what: str, reason: str) -> None:
        """Log once for each reason that telemetry is dropped, with what to do where credentials or the size of a request are refused."""
        advice = ""
        if reason.endswith(_REFUSED):
            advice = ": check VERL_OTEL_TOKEN_FILE and OTEL_EXPORTER_OTLP_HEADERS"
        elif reason.endswith(_TOO_LARGE):
            advice = ": the request is too large for it: raise the limit of the server or proxy (nginx: client_max_body_size)"
        elif reason == _NOT_SENT:
            advice = self._left
        super().log_once(what, reason + advice)

    def _log_once(self, answer: Answer) -> None:
        if answer.cut_short or (self._deadline is not None and not remaining(self._deadline)):
            return  # at exit: the deadline says nothing about the endpoint, and there is no retry
        error_boundary.warn_once(
            "otlp retry",
            "verl-otel: OTLP: %s; trying again in the background, training is not affected (logged once)",
            answer.reason,
        )


def _is_encodable(span: SpanRecord) -> bool:
    try:
        protobuf.encode_spans((span,))
    except Exception:
        return False
    return True


def _suppress_instrumentation() -> None:
    """Keep instrumented HTTP libraries from tracing our own exports (the keys are private names of the API)."""
    from opentelemetry import context

    for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY"):
        key = getattr(context, name, None)
        if key is not None:
            context.attach(context.set_value(key, True))
