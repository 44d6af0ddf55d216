# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The session of a process: switches recording on, drains it at an interval, passes the batches to components, and ends within a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from verl_otel import config as settings
from verl_otel import early_imports, resource, watchdog
from verl_otel._internal import error_boundary, process_state, safe_files
from verl_otel._internal.deadline import remaining
from verl_otel._internal.process_state import SignalSafeEvent
from verl_otel.config import Config
from verl_otel.exporting import content_filter
from verl_otel.exporting.base import Exporter, MetricState
from verl_otel.model import Batch, Resource, SpanRecord
from verl_otel.recording import collection, context, own_loop, run_log, series_registry, state
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.session import children, prometheus_targets, run_manifest, self_metrics
from verl_otel.session.components import (
    Component,
    ConfiguredExporters,
    Context,
    NodeAndProcessCollectors,
    Overhead,
    UserTelemetry,
    Watchdog,
)
from verl_otel.session.overhead_limiter import estimate_recording
from verl_otel.session.own_loop_verdicts import OwnLoopVerdicts
from verl_otel.session.run_log import RunLog

# -- Decides which drains may be skipped: a process in which nothing happens is not drained every second --

REST_INTERVALS: Final = 5
"""Drain intervals from one drain to the next while nothing happens."""
MAX_REST_SECONDS: Final = 5.0
"""The same in seconds, at most: what is open must not be written later than guaranteed, whatever the interval is."""
MAX_OPEN: Final = 64
"""Open spans up to which it is cheaper to look at them than to drain."""


class DrainSchedule:
    """Keeps what the last drain left, to find whether anything has happened since.

    Args:
        interval: Seconds between two drains.
    """

    def __init__(self, interval: float) -> None:
        self._rest_seconds = min(REST_INTERVALS * interval, MAX_REST_SECONDS)
        self._drained_at = float("-inf")
        self._listed = 0
        self._has_unpolled = False

    def note_drain(self, now: float) -> None:
        """Note that the drain thread drains now (`time.monotonic`)."""
        self._drained_at = now

    def note_poll(self) -> None:
        """Note that the exporters are about to write everything that they were passed."""
        self._has_unpolled = False

    def note_batch(self, batch: Batch) -> None:
        """Note a batch that is about to be passed to the exporters, by whichever thread."""
        self._listed = len(batch.open_spans)
        if batch.spans or batch.points or run_log.has_records():
            self._has_unpolled = True  # a scrape drains, too, but writes nothing

    def may_skip(self, now: float) -> bool:
        """Return whether a drain would find nothing, except in the user's own instruments and spans."""
        return (
            now - self._drained_at < self._rest_seconds
            and not self._has_unpolled
            and not RECORDER.pending_points
            and not run_log.has_records()
            and self._knows_all_open()
            and not series_registry.has_new_values()
        )

    def _knows_all_open(self) -> bool:
        """Return whether no span has begun or ended that the last batch does not list as open."""
        begun = RECORDER.begun[:]
        return len(begun) == self._listed <= MAX_OPEN and not any(span.stop for span in begun)


# -- The session of a process: switches recording on, drains it at an interval, passes the batches to components, and ends within a deadline --

# -- what a session sets in recording --


def _apply_to_recording(config: Config) -> None:
    """Apply the settings of sampling, memory and file access."""
    RECORDER.sampling.ratio = config.sampler_ratio
    RECORDER.sampling.whole_per_step = config.trajectories_per_step if "file" in config.exporters else 0
    RECORDER.sampling.share_above = config.trajectory_share
    RECORDER.sampling.exemplars = config.exemplar_filter != "always_off"
    RECORDER.convention_aliases = bool(config.semconv_opt_in)
    RECORDER.capacity = config.memory_mib * 1024 * 1024 // (2 * state.SPAN_BYTES)
    RECORDER.verdict_lines = config.verdict_lines
    RECORDER.capture_content = config.capture_content
    own_loop.configure(config.project, config.experiment)
    problem = safe_files.use_group(config.files_group)
    if problem:
        error_boundary.warn_once("files group", "verl-otel: VERL_OTEL_FILES_GROUP: %s; files stay private", problem)


# -- the session --

MAX_USER_SPANS: Final = 10_000
"""Spans of the user's own OpenTelemetry that are queued for the next drain."""
OPEN_WAIT_SECONDS: Final = 1.0
"""Seconds that `Session.open_now` waits for another thread that drains. A session that opens meanwhile is open in any case."""
DRAIN_MARGIN_SECONDS: Final = 0.2
"""Seconds that a drain takes after its interval, writing included."""


class Current:
    """The session of this process."""

    session: Session | None = None


class Session:
    """The telemetry of one process, from `start` to `stop`.

    Files, ports and ``file_sd`` entries are created at the first record: half of the processes of a verl run never record anything.

    Args:
        config: The settings.
        variables: Settings that were given in code, as environment variables for other processes of the run.
    """

    def __init__(self, config: Config, variables: Mapping[str, str] | None = None) -> None:
        # The run id is generated now, so that a child that is forked before the first record has the same.
        inherited = children.find_inherited_run()
        if inherited is not None and config.run_id in ("", inherited.run_id):
            self.config = settings.with_run(config, *inherited)
        else:
            self.config = settings.with_run(config, resource.find_run_id(config), config.run_attempt)
        self.variables = dict(variables or {})
        self.state = MetricState()
        self.opened = self.recorded = False
        self.resource = Resource({})
        self.user_spans: list[SpanRecord] = []
        self._collect_lock = threading.Lock()
        self._wake = SignalSafeEvent()
        self._flushed = SignalSafeEvent()
        self._flush_wanted = False
        self._began_run = self._ended_run = False
        self._may_resume = False
        self._started = 0.0
        self._stopping = False
        self._sources_asked_at = float("-inf")
        self._schedule = DrainSchedule(config.drain_interval)
        self._thread: threading.Thread | None = None
        self._configured = ConfiguredExporters()
        self._user = UserTelemetry(self._configured, on_user_span)
        self._overhead = Overhead(config.cpu_budget, self._measure_overhead)
        self._components: tuple[Component, ...] = (
            NodeAndProcessCollectors(),
            Watchdog(),
            self._configured,
            self._user,
            RunLog(self._configured),
            OwnLoopVerdicts(),
            self._overhead,
        )

    @property
    def exporters(self) -> list[Exporter]:
        """The exporters that ``VERL_OTEL_EXPORTERS`` names, once they are open."""
        return self._configured.exporters

    @property
    def expects_records(self) -> bool:
        """Whether a run without a record of this process is a mistake: it started the run, and no worker of the run exists."""
        return run_manifest.is_first_process() and not self._began_run

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self, *, lazy: bool, forked: bool = False) -> None:
        """Switch recording on and start the drain thread.

        Args:
            lazy: Whether the exporters open at the first record instead of now.
            forked: Whether this is a forked child. Nothing is imported there: the parent has imported it, and the fork may have
                interrupted an import.
        """
        if not forked:
            early_imports.load(self.config)
        self._started, self._may_resume = time.time(), run_manifest.may_resume()
        context.context_access()
        process_state.clear_records()
        _apply_to_recording(self.config)
        children.publish(self.config)
        self_metrics.register(
            lambda: [*self.exporters, *self._user.exporters],
            self._measure_overhead,
            lambda: self._overhead.limiter.used,
        )
        for component in self._components:
            component.start(self.config)
        RECORDER.on = True
        if not lazy:
            self._open()
        thread = threading.Thread(target=self._run, name="verl-otel-drain", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as many as this system allows
            error_boundary.warn_once(
                "drain", "verl-otel: %s: telemetry is written at the end of the process only", error
            )
            return
        self._thread = thread

    def stop(self) -> None:
        """Switch recording off, send what is queued within ``exit_timeout``, and stop the components."""
        deadline = time.monotonic() + self.config.exit_timeout
        children.withdraw()
        RECORDER.on = False
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(remaining(deadline))
        self._collect(observe=self.opened, deadline=deadline)
        own_loop.end()
        self._collect(observe=False, deadline=deadline)
        self._export_user_metrics(deadline)
        collection.stop_observing()
        self._for_each(lambda component: component.begin_flush(deadline))
        self._for_each(lambda component: component.stop(deadline))
        prometheus_targets.remove_target(self.config)
        self._record_end()

    def open_now(self) -> None:
        """Open the components although nothing was recorded yet; they open at the first record otherwise."""
        if not self._collect_lock.acquire(timeout=OPEN_WAIT_SECONDS):
            return
        try:
            if not self.opened:
                self._open()
        finally:
            self._collect_lock.release()

    def flush(self, timeout: float) -> None:
        """Drain, and have the components send, for at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._collect(observe=True, deadline=deadline)
        self._export_user_metrics(deadline)
        self._for_each(lambda component: component.begin_flush(deadline))
        self._for_each(lambda component: component.flush(deadline))

    def wake(self) -> None:
        """Start a drain on the drain thread now, without waiting for it. Takes a millisecond at most; safe in a signal handler."""
        self._wake.set()

    def flush_from_signal(self) -> None:
        """Flush on the drain thread and wait for it. Takes no lock that the interrupted code may hold."""
        self._flushed.wait(0)  # discards an event that a former handler did not wait for
        self._flush_wanted = True
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
            self._flushed.wait(self.config.exit_timeout)

    def abandon(self) -> None:
        """Release everything without sending: this is a forked child, and the parent sends."""
        self._for_each(lambda component: component.after_fork())

    # -- the run ------------------------------------------------------------------------------------------------------

    @property
    def last_drain_seconds(self) -> float:
        """Seconds that the end of a run may wait for the last drain of its workers, at most ``exit_timeout``."""
        return min(self.config.drain_interval + DRAIN_MARGIN_SECONDS, self.config.exit_timeout)

    def begin_run(self) -> None:
        """Record the start of the run, in the process that starts it, and which attempt it is if the run is resumed."""
        if self._began_run:
            return
        self._began_run = True
        watchdog.begin_run(self.config)
        if "file" in self.config.exporters:
            attempt = run_manifest.begin_attempt(self.config.run_path, self._started)
            names = {attr.PROJECT: self.config.project, attr.EXPERIMENT: self.config.experiment}
            self.record_run({name: value for name, value in names.items() if value})
            self.config = settings.with_run(self.config, self.config.run_id, attempt)
            children.publish(self.config)
        elif self.config.stalls and self.config.exporters:  # the watchdog has made the folder
            run_manifest.note_destination(self.config.run_path, self.config.exporters, settings.find_endpoint())

    def _resume_run(self) -> None:
        """Begin the run that the environment names, if this process is the one with the training loop."""
        if not self._may_resume or self._began_run or not own_loop.has_step():
            return
        self._may_resume = run_manifest.may_resume()  # the program may have set its rank meanwhile
        if not self._may_resume:
            return
        if "file" in self.config.exporters and not run_manifest.can_write(self.config.run_path):
            return
        self.begin_run()
        if self.opened:
            attempt = {attr.RUN_ATTEMPT: self.config.run_attempt}
            self.resource = Resource({**self.resource.attributes, **attempt})
            self._for_each(lambda component: component.update_resource(self.resource))

    def record_run(self, facts: Mapping[str, object]) -> None:
        """Add facts to ``run.json``, if this run writes files."""
        if "file" in self.config.exporters:
            run_manifest.update(self.config.run_path, facts)

    def reload_settings(self) -> None:
        """Use exporters that the environment has named since the start: an OTLP endpoint that became known when a cluster was joined."""
        loaded = settings.load({**os.environ, **self.variables})
        config = replace(self.config, exporters=loaded.exporters, token_file=loaded.token_file)
        early_imports.load(config)
        if not self._collect_lock.acquire(timeout=OPEN_WAIT_SECONDS):
            return
        try:
            new = tuple(name for name in config.exporters if name not in self.config.exporters)
            self.config = config
            if self.opened and new:
                self._configured.open_more(self._make_context(), new)
        finally:
            self._collect_lock.release()

    def describe(self) -> None:
        """Add the attributes that were described since the exporters were opened. Attributes that they have stay as they are."""
        if self.opened:
            attributes = resource.build(self.config).attributes
            self.resource = Resource({**attributes, **self.resource.attributes})
            for component in self._components:
                component.update_resource(self.resource)

    def end_run(self) -> None:
        """Record the end of the run and remove its ``file_sd`` file, in the process that started it."""
        if self._began_run:
            prometheus_targets.remove_run(self.config)
        self._record_end()

    def _record_end(self) -> None:
        if self._began_run and not self._ended_run:
            self._ended_run = True
            if "file" in self.config.exporters:
                run_manifest.end_attempt(self.config.run_path)
            with error_boundary.suppress_errors("black box"):
                watchdog.end_run(self.config)

    def announce(self, port: int) -> None:
        """Add the bound port of ``/metrics`` to the run's ``file_sd`` file, unless the session is stopping."""
        if not self._stopping:
            prometheus_targets.add_target(
                self.config, self.resource, prometheus_targets.make_address(self.config, port)
            )

    # -- draining -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            woken = self._wake.wait(self.config.drain_interval)
            self._run_once(woken=woken)

    @error_boundary.never_raises("drain thread")
    def _run_once(self, *, woken: bool = True) -> None:
        """Drain, poll the components, and flush if a signal handler waits for it. After a failure the next call drains again.

        Args:
            woken: Whether a drain was requested. Otherwise it is left out if it would find nothing.
        """
        now = time.monotonic()
        due = self.opened and now - self._sources_asked_at >= self.config.metric_interval
        if not (woken or due) and self._may_rest(now):
            self._for_each(lambda component: component.rest())
            return
        self._schedule.note_drain(now)
        self._collect(observe=due, ask_sources=due)
        self._schedule.note_poll()
        self._for_each(lambda component: component.poll())
        if self._flush_wanted:
            self._flush_wanted = False
            try:
                self.flush(self.config.exit_timeout)
            finally:
                self._flushed.set()

    def _may_rest(self, now: float) -> bool:
        """Return whether nothing has happened since the last drain whose result has been written."""
        waits = self._flush_wanted or self.user_spans or self._user.metrics.has_messages
        return not waits and self._schedule.may_skip(now)

    def refresh(self) -> None:
        """Bring the metric state up to date, for a scrape. The hardware is not read: its metrics are those of the last interval."""
        self._collect(observe=True, deadline=time.monotonic() + 1.0)

    @error_boundary.never_raises("drain")
    def _collect(self, *, observe: bool, ask_sources: bool = False, deadline: float | None = None) -> None:
        """Drain once and dispatch the batch, then the batch of the observed instruments: recorded data does not wait for those.

        One thread at a time: a later batch must not overtake an earlier one.

        Args:
            observe: Whether instruments that are read at a collection are due.
            ask_sources: Whether the hardware collectors are read as well. They may take long: not for a caller with a deadline.
            deadline: Until when to wait for another thread that drains; None: without end.
        """
        if not self._collect_lock.acquire(timeout=_wait(deadline)):
            return
        try:
            was_opened = self.opened
            batch = collection.collect(wait=_wait(deadline))
            if batch is None:
                return
            user_spans = state.take(self.user_spans)
            if user_spans:
                batch = batch._replace(spans=(*batch.spans, *user_spans))
            self.recorded = self.recorded or bool(batch.spans or batch.points or batch.open_spans)
            self._resume_run()
            if not self.opened and (self.recorded or run_log.is_waiting()):
                self._open()
            if self.opened:
                self._dispatch(batch)
            if self.opened and observe:
                if was_opened:
                    self._dispatch(collection.collect_observed(batch, groups=ask_sources))
                if ask_sources:
                    self._sources_asked_at = time.monotonic()
                self._user.begin_collection()
            self._user.export_metrics()
        finally:
            self._collect_lock.release()

    def _dispatch(self, batch: Batch) -> None:
        self._schedule.note_batch(batch)
        self.state.update(batch.points, batch.asked)
        self._for_each(lambda component: component.on_batch(batch))

    def _export_user_metrics(self, deadline: float) -> None:
        """Export what the user's instruments report now, waiting for them for at most half of the time that is left."""
        self._user.metrics.wait(time.monotonic() + remaining(deadline) / 2)
        if self._collect_lock.acquire(timeout=remaining(deadline)):
            try:
                self._user.export_metrics()
            finally:
                self._collect_lock.release()

    def _open(self) -> None:
        """Build the resource of this process and open the components."""
        self.opened = True
        writes = "file" in self.config.exporters
        if run_manifest.is_first_process() and (not writes or run_manifest.can_write(self.config.run_path)):
            self.begin_run()
        self.resource = resource.build(self.config)
        opening = self._make_context()
        self._for_each(lambda component: component.open(opening))

    def _make_context(self) -> Context:
        return Context(self.config, self.resource, self.state, self.refresh, self.announce)

    def _for_each(self, call: Callable[[Component], None]) -> None:
        """Call something with every component; an exception is counted and does not keep the next one from its call."""
        for component in self._components:
            with error_boundary.suppress_errors(component.name):
                call(component)

    def _measure_overhead(self) -> dict[str, float]:
        """Return the CPU seconds that telemetry has taken in this process, by kind of work."""
        totals = {"recording": estimate_recording(RECORDER.ended_count, series_registry.count_values())}
        for component in self._components:
            for kind, seconds in component.read_cpu_seconds().items():
                totals[kind] = totals.get(kind, 0.0) + seconds
        return totals


def _wait(deadline: float | None) -> float:
    """Return the time-out of a lock, in seconds; -1, which is no time-out, without a deadline."""
    return -1 if deadline is None else remaining(deadline)


def on_user_span(record: SpanRecord) -> None:
    """Queue one ended span of the user's own OpenTelemetry, for the session of this process, which may be a forked child."""
    session = Current.session
    if session is None:
        return
    weight = record.weight
    if len(session.user_spans) < MAX_USER_SPANS and (not weight or RECORDER.bytes + weight <= RECORDER.byte_limit):
        RECORDER.bytes += weight
        session.user_spans.append(record if RECORDER.capture_content else content_filter.remove_content(record))
    else:
        state.count_dropped()
