# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The session of a process: switches recording on, drains it at an interval, passes the batches to exporters, and ends within a deadline."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

from verl_otel import early_imports, resource, system, watchdog
from verl_otel._internal import error_boundary, log_lines, process_state, safe_files
from verl_otel._internal.call_timeout import remaining
from verl_otel._internal.process_state import SignalSafeEvent
from verl_otel.config import Config, find_endpoint, find_temporary_dir, find_unknown, load_config, with_run
from verl_otel.exporting import content_filter
from verl_otel.exporting.base import SCOPE, Exporter, GivenProviders, MetricState
from verl_otel.model import Batch, Resource, SpanRecord
from verl_otel.recording import collection, context, own_loop, run_log, series, state
from verl_otel.recording.sampling import POLICY
from verl_otel.recording.span import clock
from verl_otel.recording.state import RECORDER
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.session import children, prometheus_targets, run_manifest, same_name, self_metrics
from verl_otel.session.own_loop_verdicts import OwnLoopVerdicts
from verl_otel.session.run_log import RunLog, start_run_log, stop_run_log
from verl_otel.session.run_status import RunStatus
from verl_otel.session.self_metrics import OverheadMeter, estimate_recording
from verl_otel.session.shared_trajectories import SharedTrajectories
from verl_otel.system import collectors, procfs

if TYPE_CHECKING:
    from verl_otel.exporting.own_opentelemetry import OwnOpenTelemetry

# -- Decides which drains may be skipped: a process in which nothing happens is not drained every second --

REST_INTERVALS: Final = 5
"""Drain intervals from one drain to the next while nothing happens."""
MAX_REST_SECONDS: Final = 5.0
"""The same in seconds, at most: what is open must not be written later than guaranteed, whatever the interval is."""
IDLE_SECONDS: Final = 10.0
"""Seconds from one drain to the next while no span is open either."""
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
    series.keep_values(on="sdk" in config.exporters)
    RECORDER.capture_content = config.capture_content
    own_loop.configure(config.project, config.experiment)
    problem = safe_files.use_group(config.files_group)
    if problem:
        error_boundary.warn_once("files group", "verl-otel: VERL_OTEL_FILES_GROUP: %s; files stay private", problem)


def _warn_of_settings(config: Config) -> None:
    """Log which variables of the environment have no effect, and where files are that the user would look for in their home folder."""
    unknown = [f"{name} (did you mean {meant}?)" if meant else name for name, meant in find_unknown().items()]
    if unknown:
        message = "verl-otel: no such setting, without effect: %s. See verl-otel check"
        error_boundary.warn_once("unknown settings", message, ", ".join(unknown))
    if config.run_dir == find_temporary_dir() and "file" in config.exporters:
        message = (
            "verl-otel: the home folder cannot be written: files are in %s. VERL_OTEL_RUN_DIR names another folder"
        )
        error_boundary.warn_once("run folder", message, config.run_dir)


# -- the session --

MAX_USER_SPANS: Final = 10_000
"""Spans of the user's own OpenTelemetry that are queued for the next drain."""
OPEN_WAIT_SECONDS: Final = 1.0
"""Seconds that `Session.open_now` waits for another thread that drains. A session that opens meanwhile is open in any case."""
LOSSES: Final = frozenset(
    {
        metric_names.OTEL_ERRORS,
        metric_names.OTEL_SPANS_DROPPED,
        metric_names.OTEL_POINTS_DROPPED,
        metric_names.OTEL_LOGS_DROPPED,
    }
)
"""Metrics that count what was lost."""
FILE_SECONDS: Final = 10.0
"""Seconds for the files at the end of a session beyond ``exit_timeout``, which an endpoint may take as a whole."""
LAST_LINES_SECONDS: Final = 0.5
"""Seconds that the end of a session waits for a log that does not take its last lines."""
DRAIN_MARGIN_SECONDS: Final = 0.2
"""Seconds that a drain takes after its interval, writing included."""


class Current:
    """The session of this process."""

    session: Session | None = None


def _find_launcher() -> str:
    """Return what identifies the process that has started this one; empty if a shell has, which may start one job after another."""
    parent = procfs.find_process(os.getppid())
    command = "" if parent is None else procfs.read_command(parent.pid).strip()
    if parent is None or " " not in command:  # a shell that runs no script has no arguments
        return ""
    return f"{procfs.read_node_name()} {parent.pid} {parent.start}"


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
        # The run id is generated now, so that a child that is forked before the first record has the same.
        self._job = ""
        inherited = children.find_inherited_run()
        if inherited is not None and config.run_id in ("", inherited.run_id):
            self.config = with_run(config, *inherited)
        else:
            launcher = _find_launcher()
            run_id = resource.find_run_id(config, launcher=launcher)
            self._job = same_name.name_job(launcher, os.environ)
            if not config.run_id:
                run_id = same_name.keep_apart(config.run_dir, run_id, self._job)
            if resource.is_of_one_node(run_id, os.environ):
                error_boundary.warn_once(
                    "job",
                    "verl-otel: the ranks of each node are a run of their own, because nothing tells this job from others on all nodes: "
                    "set VERL_OTEL_RUN_ID to one name of the job",
                )
            self.config = with_run(config, run_id, config.run_attempt)
        self.variables = dict(variables or {})
        self.given = given or GivenProviders()
        self.on_provider: Callable[[], object] = bool
        """Called when the exporter ``sdk`` has found a provider."""
        self.began = clock()
        """When telemetry began in this process, on the clock of spans."""
        self.state = MetricState()
        self.opened = self.recorded = False
        self.resource = Resource({})
        self.user_spans: list[SpanRecord] = []
        self._collect_lock = threading.Lock()
        self._wake = SignalSafeEvent()
        self._began_run = self._ended_run = False
        self._may_resume = False
        self._started = 0.0
        self._stopping = False
        self._observed_at = float("-inf")
        self._schedule = DrainSchedule(config.drain_interval)
        self._thread: threading.Thread | None = None
        self._hardware: collectors.Reader | None = None
        """Reads the hardware; None before the exporters are open, and where hardware metrics are off."""
        self.exporters: list[Exporter] = []
        """The exporters that ``VERL_OTEL_EXPORTERS`` names, once they are open."""
        self._watchdog: list[Exporter] = []
        self._user: OwnOpenTelemetry | None = None
        self._run_log: RunLog | None = None
        self._verdicts = OwnLoopVerdicts(self.began)
        self._status = RunStatus(0.0)
        self._trajectories = SharedTrajectories()
        self._overhead = OverheadMeter(config.cpu_budget)
        self._drain_seconds = 0.0
        """CPU seconds of the drain thread."""
        self._just_opened = False
        """Whether the cost of opening, which imports modules once, is still to be left out of the measurement of overhead."""

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
        self._status = RunStatus(self._started)
        context.context_access()
        process_state.clear_records()
        _apply_to_recording(self.config)
        children.publish(self.config)
        self_metrics.register(self._list_sending, self._measure_overhead, lambda: self._overhead.used)
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
        own_loop.end()
        self._collect(observe=False, deadline=deadline)
        self._export_user_metrics(deadline)
        with error_boundary.suppress_errors("collectors"):
            if self._hardware is not None:
                self._hardware.stop(deadline)
        stop_run_log()
        self._for_each("flush", lambda exporter: exporter.begin_flush(deadline))
        self._close_exporters(deadline)
        collection.stop_observing()
        with error_boundary.suppress_errors("own loop"):
            self._verdicts.log_end(self.config.run_id)
        prometheus_targets.remove_target(self.config)
        self._record_end()
        log_lines.write_until(min(deadline, time.monotonic() + LAST_LINES_SECONDS))

    def _close_exporters(self, deadline: float) -> None:
        """Close the exporters, those of files last: what the others could not send is counted in the files.

        The files are written first as well: an endpoint may take the whole time, and a scheduler kills what takes too long.
        """
        self._for_each("flush", lambda exporter: exporter.flush(deadline) if exporter.name == "file" else None)
        self._for_each("close", lambda exporter: exporter.close(deadline) if exporter.name != "file" else None)
        if self.opened:
            with error_boundary.suppress_errors("losses"):
                observed = collection.collect_observed(Batch(time.time_ns()))
                self.state.update(point for point in observed.points if point.instrument.name in LOSSES)
        self._for_each("close", lambda exporter: exporter.close(deadline) if exporter.name == "file" else None)

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
        self._for_each("flush", lambda exporter: exporter.begin_flush(deadline))
        self._for_each("flush", lambda exporter: exporter.flush(deadline))

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
        self._for_each("abandon", lambda exporter: exporter.after_fork())

    # -- the run ------------------------------------------------------------------------------------------------------

    @property
    def last_drain_seconds(self) -> float:
        """Seconds that the end of a run may wait for the last drain of its workers, at most ``exit_timeout``."""
        return min(self.config.drain_interval + DRAIN_MARGIN_SECONDS, self.config.exit_timeout)

    def begin_run(self) -> None:
        """Record the start of the run, in the process that starts it, and which attempt it is if the run is resumed."""
        # Another process may have begun it, as for a server of Ray Client.
        if self._began_run or os.environ.get("VERL_OTEL_RUN_ATTEMPT", "").strip():
            return
        self._began_run = True
        _warn_of_settings(self.config)
        same_name.warn_of_other(self.config.run_path)
        watchdog.begin_run(self.config)
        if "file" in self.config.exporters:
            attempt = run_manifest.begin_attempt(self.config.run_path, self._started, self._job)
            names = {attr.PROJECT: self.config.project, attr.EXPERIMENT: self.config.experiment}
            self.record_run({name: value for name, value in names.items() if value})
            self.config = with_run(self.config, self.config.run_id, attempt)
            children.publish(self.config)
        elif self.config.stalls and self.config.exporters:  # the watchdog has made the folder
            run_manifest.note_destination(self.config.run_path, self.config.exporters, find_endpoint())

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
            self._update_resource()

    def record_run(self, facts: Mapping[str, object]) -> None:
        """Add facts to ``run.json``, if this run writes files."""
        if "file" in self.config.exporters:
            run_manifest.update(self.config.run_path, facts)

    def reload_settings(self) -> None:
        """Use exporters that the environment has named since the start: an OTLP endpoint that became known when a cluster was joined."""
        loaded = load_config({**os.environ, **self.variables})
        config = replace(self.config, exporters=loaded.exporters, token_file=loaded.token_file)
        early_imports.load(config)
        if not self._collect_lock.acquire(timeout=OPEN_WAIT_SECONDS):
            return
        try:
            new = tuple(name for name in config.exporters if name not in self.config.exporters)
            self.config = config
            if self.opened and new:
                self._shut_unused(self._open_exporters(new), ())
        finally:
            self._collect_lock.release()

    def describe(self) -> None:
        """Add the attributes that were described since the exporters were opened. Attributes that they have stay as they are."""
        if self.opened:
            attributes = resource.build_resource(self.config).attributes
            self.resource = Resource({**attributes, **self.resource.attributes})
            self._update_resource()

    def _update_resource(self) -> None:
        self._for_each("resource", lambda exporter: exporter.update_resource(self.resource))

    def end_run(self) -> None:
        """Record the end of the run and remove its ``file_sd`` file, in the process that started it."""
        if self._began_run:
            prometheus_targets.remove_run(self.config)
        self._record_end()

    @contextlib.contextmanager
    def end_of_workers(self) -> Iterator[None]:
        """Expect the other processes of the run to end in this block, as the workers of Ray in ``ray.shutdown``.

        The run goes on afterwards, unless one of its processes has recorded the end before: its trainer may be a worker.
        """
        if not self._began_run or watchdog.has_ended(self.config):
            self.end_run()
            yield
            return
        targets = prometheus_targets.read_own_targets(self.config)
        prometheus_targets.remove_run(self.config)
        with error_boundary.suppress_errors("black box"):
            watchdog.end_run(self.config)
        try:
            yield
        finally:
            with error_boundary.suppress_errors("black box"):
                watchdog.resume_run(self.config)
            if targets:
                prometheus_targets.add_targets(self.config, targets)

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
        """Drain and poll the exporters. After a failure the next call drains again.

        Args:
            woken: Whether a drain was requested. Otherwise it is left out if it would find nothing.
        """
        log_lines.write_waiting()
        now = time.monotonic()
        due = self.opened and now - self._observed_at >= self.config.metric_interval
        if not (woken or due or own_loop.has_received()) and self._may_rest(now):
            self._trajectories.exchange(self.config.run_id)
            self._for_each("rest", lambda exporter: exporter.rest())
            return
        self._schedule.note_drain(now)
        self._collect(observe=due)
        self._trajectories.exchange(self.config.run_id)
        self._for_each("tick", lambda exporter: exporter.poll())
        with error_boundary.suppress_errors("overhead"):
            self._update_overhead()

    def _may_rest(self, now: float) -> bool:
        """Return whether nothing has happened since the last drain whose result has been written."""
        waits = self.user_spans or (self._user is not None and self._user.metrics.has_messages)
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
                    hardware = () if self._hardware is None else self._hardware.take()
                    self._dispatch(collection.collect_observed(batch, collectors.list_metrics(), hardware))
                    self._observed_at = time.monotonic()
                if self._user is not None:
                    self._user.collect()
            self._pass_user_metrics()
        finally:
            self._collect_lock.release()

    def _dispatch(self, batch: Batch) -> None:
        self._schedule.note_batch(batch)
        self.state.update(batch.points, batch.asked)
        self._for_each("put", lambda exporter: exporter.consume(batch))
        records = self._run_log.take(batch) if self._run_log is not None else []
        if records:
            self._for_each("put", lambda exporter: exporter.consume_logs(records))
        with error_boundary.suppress_errors("own loop"):
            self._verdicts.judge()
        if "file" in self.config.exporters:
            with error_boundary.suppress_errors("run status"):
                self._status.consume(batch)
                self._status.write(self.config, self.resource)

    def _pass_user_metrics(self) -> None:
        """Pass on what the user's instruments have reported since the last call."""
        for message in self._user.metrics.take() if self._user is not None else ():
            self._for_each("put", methodcaller("consume_metrics", message))

    def _export_user_metrics(self, deadline: float) -> None:
        """Export what the user's instruments report now, waiting for them for at most half of the time that is left."""
        if self._user is not None:
            self._user.metrics.wait(time.monotonic() + remaining(deadline) / 2)
        if self._collect_lock.acquire(timeout=remaining(deadline)):
            try:
                self._pass_user_metrics()
            finally:
                self._collect_lock.release()

    # -- exporters ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Build the resource of this process and open the exporters. The watchdog is first: its heartbeat must not wait for another."""
        self.opened = self._just_opened = True
        writes = "file" in self.config.exporters
        if run_manifest.is_first_process() and (not writes or run_manifest.can_write(self.config.run_path)):
            self.begin_run()
        self.resource = resource.build_resource(self.config)
        if self.config.hardware and self.config.exporters and not self._stopping:  # no driver is asked at the end
            self._hardware = collectors.Reader(self.config)
        self._open_watchdog()
        readers = self._open_exporters(self.config.exporters)
        # A forked child must not have half of the user's providers.
        with error_boundary.suppress_errors("providers"), early_imports.hold_off_forks():
            from verl_otel.exporting import own_opentelemetry

            used = tuple(reader for _, reader in readers if reader)
            sends_otlp = "otlp" in self.config.exporters
            user = own_opentelemetry.attach(
                self.resource,
                context,
                on_user_span,
                used,
                sends_otlp=sends_otlp,
                list_open=collection.list_open_above,
                given=self.given if "sdk" in self.config.exporters else None,
            )
            user.open(self.resource, SCOPE, self.state)
            self._user = user
        with error_boundary.suppress_errors("readers"):
            self._shut_unused(readers, self._user.readers if self._user is not None else ())
        self._run_log = RunLog(self.config)
        self._run_log.open(self.resource, SCOPE, self.state)

    def _open_watchdog(self) -> None:
        """Open the watchdog's files; without them the session goes on."""
        try:
            for exporter in watchdog.make_exporters(self.config, self._started):
                exporter.open(self.resource, SCOPE, self.state)
                self._watchdog.append(exporter)
        except Exception as error:
            error_boundary.may_propagate(error)
            error_boundary.warn_once(
                "open black box", "verl-otel: stalls and crashes will not be seen: %s. See verl-otel check", error
            )

    def _open_exporters(self, names: Sequence[str]) -> list[tuple[Exporter, Any]]:
        """Open exporters; one that cannot be opened is left out and logged.

        Returns:
            Each exporter with its reader of the user's own instruments, or None.
        """
        opened = []
        for name in names:
            try:
                exporter = self._make_exporter(name)
                exporter.open(self.resource, SCOPE, self.state)
            except Exception as error:
                error_boundary.may_propagate(error)
                message = "verl-otel: exporter %s cannot start and is left out: %s. See verl-otel check"
                error_boundary.warn_once(f"open {name}", message, name, error)
                continue
            self.exporters.append(exporter)
            reader = None
            with error_boundary.suppress_errors(f"{name} reader"):
                reader = exporter.make_reader()
            opened.append((exporter, reader))
        return opened

    def _make_exporter(self, name: str) -> Exporter:
        """Return an exporter. Its module is imported only if it is used."""
        config = self.config
        if name == "file":
            from verl_otel.exporting.files import FileExporter

            return FileExporter(config.run_path, config.file_mib << 20, config.file_count)
        if name == "otlp":
            from verl_otel.exporting.otlp.exporter import OtlpExporter

            asked = collection.observed() | collectors.list_metrics()
            return OtlpExporter(config.memory_mib << 19, config.metric_interval, config.token_file, asked)
        if name == "prometheus":
            from verl_otel.exporting.prometheus import PrometheusExporter

            return PrometheusExporter(config.prometheus_host, config.prometheus_port, self.announce)
        if name == "tensorboard":
            from verl_otel.exporting.tensorboard.exporter import TensorBoardExporter

            return TensorBoardExporter(config.run_path)
        if name == "sdk":
            from verl_otel.exporting.sdk import SdkExporter

            return SdkExporter(self.given, lambda: "otlp" in self.config.exporters, self.on_provider)
        from verl_otel.exporting.console import ConsoleExporter

        return ConsoleExporter()

    def _shut_unused(self, opened: list[tuple[Exporter, Any]], used: Sequence[Any]) -> None:
        """Close the readers that no provider uses: the user has providers of their own, and at a scrape the readers would only warn."""
        for exporter, reader in opened:
            if reader is not None and reader not in used:
                reader.shutdown()
                exporter.detach_reader()

    def _list_sending(self) -> list[Exporter]:
        """Return the exporters that send something somewhere."""
        return [*self.exporters, *([self._user] if self._user is not None and self._user.is_serving else ())]

    def _for_each(self, what: str, call: Callable[[Exporter], None]) -> None:
        """Call something with every exporter; an exception is counted and does not keep the next one from its call."""
        others = [exporter for exporter in (self._user, self._run_log) if exporter is not None]
        for exporter in (*self._watchdog, *self.exporters, *others):
            with error_boundary.suppress_errors(f"{what} {exporter.name}"):
                call(exporter)

    # -- overhead -----------------------------------------------------------------------------------------------------

    def _update_overhead(self) -> None:
        """Compare the CPU time of telemetry with its budget. Called on the drain thread, whose CPU time is read here."""
        self._drain_seconds = time.thread_time()
        just_opened, self._just_opened = self._just_opened, False
        update = self._overhead.restart if just_opened else self._overhead.update
        update(time.monotonic(), sum(self._measure_overhead().values()))

    def _measure_overhead(self) -> dict[str, float]:
        """Return the CPU seconds that telemetry has taken in this process, by kind of work."""
        drain = self._drain_seconds + (self._hardware.cpu_seconds if self._hardware is not None else 0.0)
        totals = {"recording": estimate_recording(RECORDER.ended_count, series.count_values())}
        totals["drain"] = drain + (self._user.metrics.cpu_seconds if self._user is not None else 0.0)
        for exporter in (*self._watchdog, *self._list_sending()):
            if exporter.cpu_seconds:
                totals[exporter.name] = totals.get(exporter.name, 0.0) + exporter.cpu_seconds
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
