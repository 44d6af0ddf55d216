# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The session of a process: switches recording on, drains it at an interval, and ends within a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from verl_otel import early_imports, resource, system
from verl_otel._internal import error_boundary, log_lines, process_state, safe_files
from verl_otel._internal.call_timeout import remaining
from verl_otel._internal.process_state import SignalSafeEvent
from verl_otel.config import Config, load_config
from verl_otel.exporting import content_filter
from verl_otel.exporting.base import GivenProviders
from verl_otel.model import Batch, SpanRecord
from verl_otel.recording import collection, context, own_loop, run_log, series, state
from verl_otel.recording.sampling import POLICY
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.session import children, prometheus_targets, run_manifest, run_status, self_metrics
from verl_otel.session.outputs import Outputs
from verl_otel.session.own_loop_verdicts import OwnLoopVerdicts
from verl_otel.session.run_log import start_run_log, stop_run_log
from verl_otel.session.run_record import RunRecord
from verl_otel.session.run_status import RunStatus
from verl_otel.session.self_metrics import OverheadMeter, estimate_recording
from verl_otel.session.shared_trajectories import SharedTrajectories
from verl_otel.system import collectors

# -- Decides which drains may be skipped: a process in which nothing happens is not drained every second --

REST_INTERVALS: Final = 5
"""Drain intervals from one drain to the next while nothing happens."""
MAX_REST_SECONDS: Final = 5.0
"""The same in seconds, at most: what is open must not be written later than guaranteed, whatever the interval is."""
IDLE_SECONDS: Final = 60.0
"""Seconds from one drain to the next while no span is open either."""
IDLE_INTERVALS: Final = 6
"""Metric intervals between two collections of observable metrics while nothing happens: a minute by default."""
QUIET_SECONDS: Final = 10.0
"""Seconds without a drain after which the drain thread wakes up every `QUIET_TURN_SECONDS`: wake-ups are most of the cost
of an idle process."""
QUIET_TURN_SECONDS: Final = 2.0
"""A request for stacks is answered within three, and a heartbeat counts as missed after 2.7."""
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

    def note_drain(self, now: float) -> None:
        """Note that the drain thread drains now (`time.monotonic`)."""
        self._drained_at = now

    def note_batch(self, batch: Batch) -> None:
        """Note a batch that is about to be passed to the exporters, by whichever thread."""
        self._listed = len(batch.open_spans)

    def may_skip(self, now: float) -> bool:
        """Return whether a drain would find nothing, except in the user's own instruments and spans."""
        return (
            now - self._drained_at < (self._rest_seconds if RECORDER.open_spans else IDLE_SECONDS)
            and not RECORDER.pending_points
            and not run_log.has_records()
            and self._knows_all_open()
            and not series.has_new_values()
        )

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing has happened for long, and no span is open."""
        return not RECORDER.open_spans and now - self._drained_at >= QUIET_SECONDS

    def _knows_all_open(self) -> bool:
        """Return whether no span has begun or ended that the last batch does not list as open."""
        return not RECORDER.ended and len(RECORDER.open_spans) == self._listed <= MAX_OPEN


# -- what a session sets in recording --


def _apply_to_recording(config: Config) -> None:
    """Apply the settings of sampling, memory and file access."""
    POLICY.ratio = config.sampler_ratio
    POLICY.whole_per_step = config.trajectories_per_step if "file" in config.exporters else 0
    POLICY.share_above = config.trajectory_share
    POLICY.exemplars = config.exemplar_filter != "always_off"
    RECORDER.convention_aliases = bool(config.semconv_opt_in)
    RECORDER.capacity = config.memory_mib * 1024 * 1024 // (2 * state.SPAN_BYTES)
    RECORDER.verdict_lines = config.verdict_lines
    RECORDER.writes_files = "file" in config.exporters
    RECORDER.run_id = config.run_id
    series.keep_values(on="sdk" in config.exporters)
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
FILE_SECONDS: Final = 10.0
"""Seconds for the files at the end of a session beyond ``exit_timeout``, which an endpoint may take as a whole."""
LAST_LINES_SECONDS: Final = 0.5
"""Seconds that the end of a session waits for a log that does not take its last lines."""
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
        given: The providers of the exporter ``sdk`` that were given in code.
    """

    def __init__(
        self, config: Config, variables: Mapping[str, str] | None = None, given: GivenProviders | None = None
    ) -> None:
        self.run = RunRecord(config)
        self.variables = dict(variables or {})
        self.given = given or GivenProviders()
        self.outputs = Outputs(self.run, self.given, self._announce, on_user_span)
        self.began = clock()
        """When telemetry began in this process, on the clock of spans."""
        self.opened = self.recorded = False
        self.user_spans: list[SpanRecord] = []
        self._collect_lock = threading.Lock()
        self._wake = SignalSafeEvent()
        self._stopping = False
        self._observed_at = float("-inf")
        self._schedule = DrainSchedule(config.drain_interval)
        self._thread: threading.Thread | None = None
        self._hardware: collectors.Reader | None = None
        """Reads the hardware; None before the exporters are open, and where hardware metrics are off."""
        self._verdicts = OwnLoopVerdicts(self.began)
        self._status = RunStatus(0.0)
        self._trajectories = SharedTrajectories()
        self._overhead = OverheadMeter(config.cpu_budget)
        self._drain_seconds = 0.0
        """CPU seconds of the drain thread."""
        self._just_opened = False
        """Whether the cost of opening, which imports modules once, is still to be left out of the measurement of overhead."""

    @property
    def config(self) -> Config:
        """The settings, with the run."""
        return self.run.config

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
        self.run.start()
        self._status = RunStatus(self.run.started)
        context.context_access()
        process_state.clear_records()
        _apply_to_recording(self.config)
        children.publish(self.config)
        self_metrics.register(self.outputs.list_sending, self._measure_overhead, lambda: self._overhead.used)
        system.install()
        start_run_log(self.config)
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
        """Switch recording off, send what is queued within ``exit_timeout``, and close the exporters.

        A file system that does not answer blocks each thread that uses it, without a time-out. So a thread does that, and is left behind
        `FILE_SECONDS` after ``exit_timeout``.
        """
        deadline = time.monotonic() + self.config.exit_timeout
        children.withdraw()
        RECORDER.on = False
        self._stopping = True
        self._wake.set()
        failures: list[BaseException] = []

        def finish() -> None:
            try:
                self._finish(deadline)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=finish, name="verl-otel-end", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # as many as this system allows, or the interpreter starts none any more
            self._finish(deadline)
            return
        thread.join(remaining(deadline) + FILE_SECONDS)
        if thread.is_alive():
            where = self.config.run_path
            error_boundary.warn_once("end", "verl-otel: %s does not answer: the last records may be missing", where)
            log_lines.write_until(time.monotonic() + LAST_LINES_SECONDS)
        if failures:
            raise failures[0]

    def _finish(self, deadline: float) -> None:
        """Do the work of `stop`."""
        if self._thread is not None:
            self._thread.join(remaining(deadline))
        self._collect(observe=self.opened, deadline=deadline)
        with error_boundary.suppress_errors("run state"):
            self._note_failure()
        own_loop.end()
        self._collect(observe=False, deadline=deadline)
        self._export_user_metrics(deadline)
        with error_boundary.suppress_errors("collectors"):
            if self._hardware is not None:
                self._hardware.stop(deadline)
        stop_run_log()
        self.outputs.close(deadline, is_open=self.opened)
        collection.stop_observing()
        with error_boundary.suppress_errors("own loop"):
            self._verdicts.log_end(self.config.run_id)
        prometheus_targets.remove_target(self.config)
        self.run.end_attempt()
        log_lines.write_until(min(deadline, time.monotonic() + LAST_LINES_SECONDS))

    def _note_failure(self) -> None:
        """Note the exception with which the program ends. Without a training it is all that the run says: it failed before the first step."""
        error = own_loop.find_error()
        if error is not None:
            run_status.note_error(error)
            if self.run.has_no_training():
                own_loop.begin()

    def open_now(self) -> None:
        """Open the exporters although nothing was recorded yet; they open at the first record otherwise."""
        if not self._collect_lock.acquire(timeout=OPEN_WAIT_SECONDS):
            return
        try:
            if not self.opened:
                self._open()
        finally:
            self._collect_lock.release()

    def flush(self, timeout: float) -> None:
        """Drain, and have the exporters send, for at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._collect(observe=True, deadline=deadline)
        self._export_user_metrics(deadline)
        self.outputs.flush(deadline)

    def take_last_trajectories(self) -> None:
        """Take what other processes have sent, before they end. Waits for it for at most `shared_trajectories.LAST_SECONDS`."""
        self._collect(observe=False, deadline=time.monotonic() + OPEN_WAIT_SECONDS)
        self._trajectories.take_last(self.config.run_id)
        self._wake.set()

    def wake(self) -> None:
        """Start a drain on the drain thread now, without waiting for it. Takes a millisecond at most; safe in a signal handler."""
        self._wake.set()

    def abandon(self) -> None:
        """Release everything without sending: this is a forked child, and the parent sends."""
        with error_boundary.suppress_errors("collectors"):
            if self._hardware is not None:
                self._hardware.after_fork()
        stop_run_log()
        self.outputs.for_each("abandon", lambda exporter: exporter.after_fork())

    @property
    def last_drain_seconds(self) -> float:
        """Seconds that the end of a run may wait for the last drain of its workers, at most ``exit_timeout``."""
        return min(self.config.drain_interval + DRAIN_MARGIN_SECONDS, self.config.exit_timeout)

    def reload_settings(self) -> None:
        """Use exporters that the environment has named since the start: an OTLP endpoint that became known when a cluster was joined."""
        loaded = load_config({**os.environ, **self.variables})
        config = replace(self.config, exporters=loaded.exporters, token_file=loaded.token_file)
        early_imports.load(config)
        if not self._collect_lock.acquire(timeout=OPEN_WAIT_SECONDS):
            return
        try:
            new = tuple(name for name in config.exporters if name not in self.config.exporters)
            self.run.config = config
            if self.opened and new:
                self.outputs.open_more(new)
        finally:
            self._collect_lock.release()

    def describe(self) -> None:
        """Add the attributes that were described since the exporters were opened. Attributes that they have stay as they are."""
        if self.opened:
            # attributes that they have stay as they are
            described = resource.build_resource(self.config).attributes
            self.outputs.add_attributes({**described, **self.outputs.resource.attributes})

    def _announce(self, port: int) -> None:
        """Add the bound port of ``/metrics`` to the run's ``file_sd`` file, unless the session is stopping."""
        if not self._stopping:
            prometheus_targets.add_target(
                self.config, self.outputs.resource, prometheus_targets.make_address(self.config, port)
            )

    # -- draining -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            interval = self.config.drain_interval
            if self._schedule.is_quiet(time.monotonic()):
                interval = max(interval, QUIET_TURN_SECONDS)
            self._run_once(woken=self._wake.wait(interval))

    @error_boundary.never_raises("drain thread")
    def _run_once(self, *, woken: bool = True) -> None:
        """Drain and poll the exporters. After a failure the next call drains again.

        Args:
            woken: Whether a drain was requested. Otherwise it is left out if it would find nothing.
        """
        log_lines.write_waiting()
        now = time.monotonic()
        rests = not (woken or own_loop.has_received()) and self._may_rest(now)
        interval = self._idle_interval if rests else self.config.metric_interval
        due = self.opened and now - self._observed_at >= interval
        if rests and not due:
            self._trajectories.exchange(self.config.run_id)
            self.outputs.for_each("rest", lambda exporter: exporter.rest())
            return
        self._schedule.note_drain(now)
        self._collect(observe=due)
        self._trajectories.exchange(self.config.run_id)
        self.outputs.for_each("tick", lambda exporter: exporter.poll())
        with error_boundary.suppress_errors("overhead"):
            self._update_overhead()

    def _may_rest(self, now: float) -> bool:
        """Return whether nothing has happened since the last drain whose result has been written."""
        user = self.outputs.user
        waits = self.user_spans or (user is not None and user.metrics.has_messages)
        return not waits and self._schedule.may_skip(now)

    @error_boundary.never_raises("drain")
    def _collect(self, *, observe: bool, deadline: float | None = None) -> None:
        """Drain once and dispatch the batch, then the batch of the observed instruments: recorded data does not wait for those.

        One thread at a time: a later batch must not overtake an earlier one.

        Args:
            observe: Whether instruments that are read at a collection are due, and the values that were read of the hardware.
            deadline: Until when to wait for another thread that drains; None: without end.
        """
        if not self._collect_lock.acquire(timeout=_wait(deadline)):
            return
        try:
            was_opened = self.opened
            if observe and self._hardware is not None:
                self._hardware.begin()
            batch = collection.collect(wait=_wait(deadline))
            if batch is None:
                return
            user_spans = state.take(self.user_spans)
            if user_spans:
                batch = batch._replace(spans=(*batch.spans, *user_spans))
            self.recorded = self.recorded or bool(batch.spans or batch.points or batch.open_spans)
            if self.run.resume() and self.opened:
                self.outputs.add_attributes({attr.RUN_ATTEMPT: self.config.run_attempt})
            if not self.opened and (self.recorded or run_log.is_waiting()):
                self._open()
            if self.opened:
                self._dispatch(batch)
            if self.opened and observe:
                self._observe(batch, was_opened=was_opened)
            self.outputs.put_user_metrics()
        finally:
            self._collect_lock.release()

    def _observe(self, batch: Batch, *, was_opened: bool) -> None:
        if was_opened:
            hardware = () if self._hardware is None else self._hardware.take()
            self._dispatch(collection.collect_observed(batch, collectors.list_metrics(), hardware))
            self._observed_at = time.monotonic()
        if self.outputs.user is not None:
            self.outputs.user.collect()

    def _dispatch(self, batch: Batch) -> None:
        self._schedule.note_batch(batch)
        self.outputs.put(batch)
        with error_boundary.suppress_errors("own loop"):
            self._verdicts.judge()
        if self.run.writes_files:
            with error_boundary.suppress_errors("run status"):
                self._status.consume(batch)
                self._status.write(self.config, self.outputs.resource)

    def _export_user_metrics(self, deadline: float) -> None:
        """Export what the user's instruments report now."""
        self.outputs.wait_for_user_metrics(deadline)
        if self._collect_lock.acquire(timeout=remaining(deadline)):
            try:
                self.outputs.put_user_metrics()
            finally:
                self._collect_lock.release()

    def _open(self) -> None:
        """Open the exporters, and read the hardware: no driver is asked at the end."""
        self.opened = self._just_opened = True
        self.run.begin_if_first()
        if self.run.writes_files:
            RECORDER.writes_files = run_manifest.can_write(self.config.run_path)
        self.outputs.open()
        if self.config.hardware and self.config.exporters and not self._stopping:
            self._hardware = collectors.Reader(self.config, self._idle_interval)

    @property
    def _idle_interval(self) -> float:
        """Seconds between two collections of observable metrics while nothing happens: longer with files only."""
        user = self.outputs.user
        is_often = self.config.exporters != ("file",) or (user is not None and user.metrics.has_reported)
        return self.config.metric_interval * (1 if is_often else IDLE_INTERVALS)

    # -- overhead -----------------------------------------------------------------------------------------------------

    def _update_overhead(self) -> None:
        """Compare the CPU time of telemetry with its budget. Called on the drain thread, whose CPU time is read here."""
        self._drain_seconds = time.thread_time()
        just_opened, self._just_opened = self._just_opened, False
        update = self._overhead.restart if just_opened else self._overhead.update
        update(time.monotonic(), sum(self._measure_overhead().values()))

    def _measure_overhead(self) -> dict[str, float]:
        """Return the CPU seconds that telemetry has taken in this process, by kind of work."""
        totals = {"recording": estimate_recording(RECORDER.ended_count, series.count_values())}
        totals["drain"] = self._drain_seconds + (self._hardware.cpu_seconds if self._hardware is not None else 0.0)
        for name, seconds in self.outputs.measure():
            totals[name] = totals.get(name, 0.0) + seconds
        return totals


def _wait(deadline: float | None) -> float:
    """Return the time-out of a lock, in seconds; -1, which is no time-out, without a deadline."""
    return -1 if deadline is None else remaining(deadline)


def on_user_span(record: SpanRecord) -> None:
    """Queue one ended span of the user's own OpenTelemetry, for the session of this process, which may be a forked child."""
    session = Current.session
    if session is None:
        return
    weight = state.weigh_beyond(record.attributes, (*record.events, *record.links))
    if len(session.user_spans) < MAX_USER_SPANS and RECORDER.take_room(weight):
        session.user_spans.append(record if RECORDER.capture_content else content_filter.remove_content(record))
    else:
        state.count_dropped()
