# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP to a Collector: a bounded queue, one thread, retries with jitter that never reach the caller."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from verl_otel import _guard
from verl_otel.exporting import wire
from verl_otel.exporting.endpoint import SIGNALS, load_endpoint
from verl_otel.exporting.exporter import Exporter, remaining
from verl_otel.exporting.transport import Answer, Transport, connect

if TYPE_CHECKING:
    from pathlib import Path

    from verl_otel.exporting.fold import State
    from verl_otel.model import Batch, Resource, Scope, SpanRecord

SPANS_PER_REQUEST: Final = 512
FIRST_RETRY: Final = 1.0
"""Seconds before the first retry; doubled with each, up to `LAST_RETRY`."""
LAST_RETRY: Final = 30.0
MAX_DOUBLINGS: Final = 20
"""After more the pause would be beyond any float: 1,024 failures are a night's outage."""
_jitter = random.SystemRandom()  # the user's seeds must not bring a thousand ranks into step


class _Channel:
    """One signal: its transport, and when it may be tried again."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.failures = 0
        self.not_before = 0.0

    def send(self, body: bytes, deadline: float | None) -> Answer:
        timeout = 3600.0 if deadline is None else max(0.05, remaining(deadline))
        try:
            answer = self.transport.send(body, timeout)
        except Exception as error:
            _guard.say("otlp transport", "verl-otel: OTLP: %s", type(error).__name__)
            answer = Answer(ok=False, retry=True, reason=f"cannot send: {type(error).__name__}")
        if answer.ok or not answer.retry:
            self.failures, self.not_before = 0, 0.0
        else:
            backoff = min(LAST_RETRY, FIRST_RETRY * 2 ** min(self.failures, MAX_DOUBLINGS)) * _jitter.uniform(0.8, 1.2)
            pause = max(answer.wait * _jitter.uniform(1.0, 1.2), backoff)  # never before the server says
            self.failures += 1
            self.not_before = time.monotonic() + pause
        return answer


class OtlpExporter(Exporter):
    """Sends spans and metrics by OTLP.

    Spans wait encoded, bounded by bytes. Metrics do not wait at all: each request is made from the state of its moment, so
    an endpoint that was away costs no measurement.

    Args:
        capacity: Bytes of encoded spans that may wait.
        interval: Seconds after which unchanged series are sent again; a Collector forgets what it does not hear of.
        token_file: File with a bearer token.
    """

    name = "otlp"

    def __init__(self, capacity: int = 32 << 20, interval: float = 10.0, token_file: Path | None = None) -> None:
        super().__init__()
        self._capacity = capacity
        self._interval = interval
        self._endpoints = {signal: load_endpoint(signal, token_file) for signal in SIGNALS}
        self._queue: deque[tuple[bytes, int]] = deque()
        self._queued = 0
        self._messages: deque[bytes] = deque(maxlen=1)  # cumulative: the latest says it all
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._flushed = threading.Condition()
        self._wanted = self._done = 0
        """Number of the last flush that was asked for, and of the last one that everything was sent for."""
        self._deadline: float | None = None
        self._stopped = False
        self._cursor = 0
        self._full_at = 0.0
        self._thread: threading.Thread | None = None

    def open(self, resource: Resource, scope: Scope, state: State) -> None:
        """Connect and start the thread."""
        self._resource, self._scope, self._state = resource, scope, state
        self._channels = {signal: _Channel(connect(endpoint)) for signal, endpoint in self._endpoints.items()}
        self._thread = threading.Thread(target=self._run, name="verl-otel-otlp", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Encode and queue the spans; the oldest make room."""
        spans = [span for span in batch.spans if span.flags & 1]
        for begin in range(0, len(spans), SPANS_PER_REQUEST):
            part = spans[begin : begin + SPANS_PER_REQUEST]
            body, count = self._encode(part)
            if count:
                with self._lock:
                    self._queue.append((body, count))
                    self._queued += len(body)
        self._shrink()
        if spans or batch.points:
            self._wake.set()

    def _encode(self, spans: list[SpanRecord]) -> tuple[bytes, int]:
        """Return a request and how many spans it has; one that cannot be encoded costs itself only."""
        try:
            return wire.encode_traces(self._resource, self._scope, spans), len(spans)
        except Exception:
            good = [span for span in spans if _is_encodable(span)]
            self.drop("spans", len(spans) - len(good), "cannot be encoded")
            return wire.encode_traces(self._resource, self._scope, good), len(good)

    def put_metrics(self, message: bytes) -> None:
        """Queue the user's own metrics."""
        self._messages.append(message)
        self._wake.set()

    def flush(self, deadline: float) -> None:
        """Send what waits, until ``deadline``; what is waiting for a retry is tried at once."""
        if self._thread is None:
            return
        with self._flushed:
            self._wanted += 1
            wanted = self._wanted
            for channel in self._channels.values():
                channel.not_before = 0.0
            self._deadline = deadline
            self._wake.set()
            self._flushed.wait_for(lambda: self._done >= wanted, remaining(deadline))
            self._deadline = None

    def close(self, deadline: float) -> None:
        """Send what waits, until ``deadline``, stop, and count what is left as dropped."""
        self.flush(deadline)
        self._stopped = True
        self._wake.set()
        with self._lock:
            left = sum(count for _, count in self._queue)
            self._queue.clear()
            self._queued = 0
        self.drop("spans", left, "not sent before exit")

    def _shrink(self) -> None:
        dropped = 0
        with self._lock:
            while self._queued > self._capacity and self._queue:
                body, count = self._queue.popleft()
                self._queued -= len(body)
                dropped += count
        self.drop("spans", dropped, "queue full")

    def _run(self) -> None:
        _suppress_instrumentation()
        while not self._stopped:
            self._wake.wait(self._pause())
            self._wake.clear()
            wanted = self._wanted
            try:
                begin = time.monotonic()
                self._send_spans()
                sent = self._send_metrics(full=self._done < wanted) and not self._queue
                self.seconds += time.monotonic() - begin
                self.cpu_seconds = time.thread_time()
            except Exception as error:
                _guard.report("otlp", error)
                sent = False
            if sent and self._done < wanted:
                with self._flushed:
                    self._done = wanted
                    self._flushed.notify_all()
        for channel in self._channels.values():
            channel.transport.close()

    def _pause(self) -> float:
        """Return the seconds until there is something to do: a retry, or the next full export of metrics."""
        full_at = 0.0 if self._deadline is not None else self._full_at + self._interval
        due = [max(full_at, self._channels["metrics"].not_before)]
        if self._queue:
            due.append(self._channels["traces"].not_before)
        return max(0.05, min(due) - time.monotonic())

    def _may_send(self, channel: _Channel) -> bool:
        return time.monotonic() >= channel.not_before

    def _send_spans(self) -> None:
        channel = self._channels["traces"]
        while self._queue and self._may_send(channel) and not self._stopped:
            deadline = self._deadline
            if deadline is not None and not remaining(deadline):
                return
            body, count = self._queue[0]
            answer = channel.send(body, deadline)
            if answer.ok or not answer.retry:
                with self._lock:
                    if self._queue and self._queue[0][0] is body:  # a full queue may have dropped it meanwhile
                        self._queue.popleft()
                        self._queued -= len(body)
                self.drop("spans", answer.rejected if answer.ok else count, answer.reason or "rejected by the server")
            else:
                self._complain(answer)
                return

    def _send_metrics(self, *, full: bool) -> bool:
        """Send the user's metrics and ours; return whether nothing is left to send."""
        channel = self._channels["metrics"]
        if not self._may_send(channel) or self._stopped:
            return False
        now = time.monotonic()
        full = full or now - self._full_at >= self._interval
        version, points = self._state.read(0 if full else self._cursor)
        for message in list(self._messages):
            if not self._send_points(channel, message, 1):
                return False
            with self._lock:
                if self._messages and self._messages[0] is message:
                    self._messages.clear()
        if points:
            body = wire.encode_metrics(self._resource, self._scope, points)
            if not self._send_points(channel, body, len(points)):
                return False
        self._cursor = version
        self._full_at = now if full else self._full_at
        return True

    def _send_points(self, channel: _Channel, body: bytes, count: int) -> bool:
        """Send one request; return whether it is settled. ``count`` points are lost if the server refuses it for good."""
        answer = channel.send(body, self._deadline)
        if answer.retry and not answer.ok:
            self._complain(answer)
            return False
        self.drop("points", answer.rejected if answer.ok else count, answer.reason or "rejected by the server")
        return True

    def _complain(self, answer: Answer) -> None:
        _guard.say(
            "otlp retry",
            "verl-otel: OTLP: %s; trying again in the background, training is not affected (said once)",
            answer.reason,
        )


def _is_encodable(span: SpanRecord) -> bool:
    try:
        wire.encode_span(span)
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
