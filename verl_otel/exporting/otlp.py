# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP to a Collector: a bounded queue, one thread, retries with jitter that never reach the caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from verl_otel import _guard
from verl_otel.exporting import span_wire, wire
from verl_otel.exporting.channel import Channel
from verl_otel.exporting.deltas import Deltas
from verl_otel.exporting.endpoint import SIGNALS, load_endpoint
from verl_otel.exporting.exporter import Exporter, remaining
from verl_otel.exporting.span_queue import SpanQueue
from verl_otel.exporting.transport import Answer, connect
from verl_otel.model import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from verl_otel.exporting.fold import State
    from verl_otel.model import Batch, Resource, Scope, SpanRecord

SPANS_PER_REQUEST: Final = 512
MAX_MESSAGES: Final = 60
"""Differences of the user's own metrics that may wait: ten minutes of them, as a rule."""


class OtlpExporter(Exporter):
    """Sends spans and metrics by OTLP.

    Spans wait encoded, bounded by bytes. Metrics do not wait at all: each request is made from the state of its moment, so
    an endpoint that was away costs no measurement. Where differences are asked for
    (``OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE``), one request may wait, and the next has all that happened since.

    Args:
        capacity: Bytes of encoded spans that may wait.
        interval: Seconds after which unchanged series are sent again; a Collector forgets what it does not hear of.
        token_file: File with a bearer token.
        asked: Metrics that are asked at collection; see `Deltas`.
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
        self._whole = self._deltas is None
        """Whether the user's own metrics come as a whole and not as differences."""
        self._unsettled: tuple[bytes, int] | None = None
        """A request of differences that is neither taken nor refused: it is sent again as it is, so that nothing counts twice."""
        self._queue = SpanQueue(capacity)
        self._messages: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._flushed = threading.Condition()
        self._wanted = self._done = 0
        """Number of the last flush that was asked for, and of the last one that everything was sent for."""
        self._deadline: float | None = None
        self._stopped = False
        self._cursor = 0
        self._full_at = float("-inf")  # the clock may have begun a second ago, with the machine
        self._thread: threading.Thread | None = None

    def open(self, resource: Resource, scope: Scope, state: State) -> None:
        """Connect and start the thread."""
        self._resource, self._scope, self._state = resource, scope, state
        self._channels = {signal: Channel(connect(endpoint)) for signal, endpoint in self._endpoints.items()}
        self._thread = threading.Thread(target=self._run, name="verl-otel-otlp", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        """Encode and queue the spans; the oldest make room."""
        spans = [span for span in batch.spans if span.flags & SAMPLED]
        for begin in range(0, len(spans), SPANS_PER_REQUEST):
            part = spans[begin : begin + SPANS_PER_REQUEST]
            body, count = self._encode(part)
            if count:
                self.drop("spans", self._queue.add(body, count), "queue full")
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

    @property
    def temporality(self) -> str:
        """The word of `PREFERENCES` that is asked for."""
        return self._endpoints["metrics"].temporality

    def put_metrics(self, message: bytes) -> None:
        """Queue the user's own metrics, unless differences are asked for: those come by `put_differences`."""
        if not self._whole:
            return
        if self._deltas is not None:
            _guard.say(
                "otlp whole",
                "verl-otel: OTLP: this version of OpenTelemetry has no differences of your own metrics for a forked process or a second "
                "session: their totals are sent (said once)",
            )
        with self._lock:
            self._messages.clear()  # cumulative: the latest says it all
            self._messages.append(message)
        self._wake.set()

    def lose_reader(self) -> None:
        """Take the user's own metrics as a whole: nobody makes differences of them."""
        self._whole = True

    def put_differences(self, message: bytes) -> None:
        """Queue differences of the user's own metrics; the oldest make room."""
        with self._lock:
            too_many = len(self._messages) >= MAX_MESSAGES
            if too_many:
                self._messages.popleft()
            self._messages.append(message)
        self.drop("points", int(too_many), "queue full")
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
        self.drop("spans", self._queue.clear(), "not sent before exit")
        if self._deltas is not None and self._unsettled is not None:
            self.drop("points", self._unsettled[1], "not sent before exit")

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
        if self._unsettled is not None:
            due.append(self._channels["metrics"].not_before)
        return max(0.05, min(due) - time.monotonic())

    def _may_send(self, channel: Channel) -> bool:
        return time.monotonic() >= channel.not_before

    def _send_spans(self) -> None:
        channel = self._channels["traces"]
        while self._queue and self._may_send(channel) and not self._stopped:
            deadline = self._deadline
            if deadline is not None and not remaining(deadline):
                return
            parts = self._queue.join()
            answer = channel.send(b"".join(part.body for part in parts), deadline)
            if not answer.ok:
                self._queue.separate(parts)
                if answer.retry:
                    self._complain(answer)
                    return
                if len(parts) > 1:
                    continue
            self._queue.remove(parts)
            refused = answer.rejected if answer.ok else sum(part.spans for part in parts)
            self.drop("spans", refused, answer.reason or "rejected by the server")

    def _send_metrics(self, *, full: bool) -> bool:
        """Send the user's metrics and ours; return whether nothing is left to send."""
        channel = self._channels["metrics"]
        if not self._may_send(channel) or self._stopped:
            return False
        now = time.monotonic()
        full = full or now - self._full_at >= self._interval
        if not self._settle(channel):
            return False
        for message in list(self._messages):
            if not self._send_points(channel, message, 1):
                return False
            with self._lock:
                if self._messages and self._messages[0] is message:
                    self._messages.popleft()
        version, points = self._state.read(0 if full else self._cursor)
        if self._deltas is not None:
            points = self._deltas.convert(points)
        if points:
            is_delta = self._deltas.is_delta if self._deltas is not None else None
            self._unsettled = wire.encode_metrics(self._resource, self._scope, points, is_delta), len(points)
        if self._deltas is not None:
            self._cursor = version  # what failed now is sent as it is
        if not self._settle(channel):
            return False
        self._cursor = version
        self._full_at = now if full else self._full_at
        return True

    def _settle(self, channel: Channel) -> bool:
        """Send the request that was made last, if there is one; return whether it is taken or refused for good."""
        if self._unsettled is None:
            return True
        settled = self._send_points(channel, *self._unsettled)
        if settled or self._deltas is None:  # of cumulative points the next request says more
            self._unsettled = None
        return settled

    def _send_points(self, channel: Channel, body: bytes, count: int) -> bool:
        """Send one request; return whether it is settled. ``count`` points are lost if the server refuses it for good."""
        answer = channel.send(body, self._deadline)
        if answer.retry and not answer.ok:
            self._complain(answer)
            return False
        self.drop("points", answer.rejected if answer.ok else count, answer.reason or "rejected by the server")
        return True

    def _complain(self, answer: Answer) -> None:
        if self._deadline is not None and not remaining(self._deadline):
            return  # our own patience ended, at the exit: nothing is known of the endpoint, and nothing is tried again
        _guard.say(
            "otlp retry",
            "verl-otel: OTLP: %s; trying again in the background, training is not affected (said once)",
            answer.reason,
        )


def _is_encodable(span: SpanRecord) -> bool:
    try:
        span_wire.encode_spans((span,))
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
