# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The session: starts recording, drains it, hands it to exporters, and ends in time. The only importer of both sides."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from verl_otel import _guard
from verl_otel import config as settings
from verl_otel._version import __version__
from verl_otel.config import Config
from verl_otel.exporting.exporter import Exporter, remaining
from verl_otel.exporting.fold import State
from verl_otel.model import Batch, Resource, Scope, SpanRecord
from verl_otel.recording import context, ids, recorder, registry, store, wrap
from verl_otel.recording.records import Ended
from verl_otel.recording.sampling import Policy
from verl_otel.recording.store import Store
from verl_otel.semconv import SCHEMA_URL
from verl_otel.session import black_box, exporters, host, manifest, observables, resource, sources, targets
from verl_otel.session.bell import Bell
from verl_otel.session.collection import Collection
from verl_otel.session.governor import Governor, estimate_recording

if TYPE_CHECKING:
    from verl_otel.exporting.readable import UserExporter

SCOPE: Final = Scope("verl_otel", __version__, SCHEMA_URL)
MAX_FOREIGN_SPANS: Final = 10_000
"""The user's own spans that may wait for a drain."""
OPEN_SECONDS: Final = 1.0
"""For how long a caller of `Session.open_now` waits for somebody who drains; what opens then is there anyway."""


class Current:
    """The session of this process."""

    session: Session | None = None


class Session:
    """One process's telemetry, from `start` to `stop`.

    Everything is started lazily: files, ports and ``file_sd`` entries appear with the first record, because half of the
    processes of a verl run never record anything.
    """

    def __init__(self, config: Config) -> None:
        # The id is made now, so that everybody who is asked for the run says the same: a child that is forked before the
        # first record, too.
        self.config = settings.with_run(config, resource.find_run_id(config), config.run_attempt)
        self.state = State()
        self.exporters: list[Exporter] = []
        self.black_box: list[Exporter] = []
        self.brought: list[UserExporter] = []
        self.opened = False
        self.resource = Resource({})
        self.providers: Any = None
        self.foreign_spans: list[SpanRecord] = []
        self.foreign_metrics = Collection()
        self._pump_lock = threading.Lock()
        self._wake = Bell()
        self._flushed = Bell()
        self._flush_wanted = False
        self._began_run = False
        self._stopping = False
        self._observed_at = float("-inf")
        self._cpu_seconds = 0.0
        self.governor = Governor(config.cpu_budget)
        self._thread: threading.Thread | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, *, lazy: bool) -> None:
        """Switch recording on and start the drain thread."""
        context.kernel()
        recorder.forget()
        Policy.ratio = self.config.sampler_ratio
        Policy.whole_per_step = self.config.trajectories_per_step if "file" in self.config.exporters else 0
        Policy.share_above = self.config.trajectory_share
        Policy.exemplars = self.config.exemplar_filter != "always_off"
        Store.capacity = self.config.memory_mib * 1024 * 1024 // (2 * store.SPAN_BYTES)
        Store.capture_content = self.config.capture_content
        observables.register(lambda: [*self.exporters, *self.brought], self._overhead, lambda: self.governor.used)
        host.install()
        sources.start(self.config)
        Store.on = True
        wrap.switch(on=True)
        if not lazy:
            self._open()
        self._thread = threading.Thread(target=self._run, name="verl-otel-drain", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Switch recording off, send what there is within ``exit_timeout``, and close the exporters."""
        deadline = time.monotonic() + self.config.exit_timeout
        Store.on = False
        wrap.switch(on=False)
        self._stopping = True
        self._wake.ring()
        if self._thread is not None:
            self._thread.join(remaining(deadline))
        self._pump(observe=self.opened, deadline=deadline)
        self._await_foreign(deadline)
        recorder.stop_observing()
        sources.stop()
        self._open_brought()
        for each in self.brought:
            each.begin_flush(deadline)  # it works while ours are closed
        for exporter in self._parts():
            with _guard.swallowed(f"close {exporter.name}"):
                exporter.close(deadline)
        targets.remove_target(self.config)

    def open_now(self) -> None:
        """Open the exporters although nothing was recorded yet; they open with the first record otherwise."""
        if not self._pump_lock.acquire(timeout=OPEN_SECONDS):
            return
        try:
            if not self.opened:
                self._open()
        finally:
            self._pump_lock.release()

    def flush(self, timeout: float) -> None:
        """Hand everything recorded so far to the exporters and have them send it, for at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._pump(observe=True, deadline=deadline)
        self._await_foreign(deadline)
        for each in self.brought:
            each.begin_flush(deadline)
        for exporter in (*self.exporters, *self.brought):
            with _guard.swallowed(f"flush {exporter.name}"):
                exporter.flush(deadline)

    def wake(self) -> None:
        """Have the drain thread work now. Costs a millisecond at most; safe in a signal handler."""
        self._wake.ring()

    def flush_from_signal(self) -> None:
        """Have the drain thread send everything and wait for it; takes no lock that the interrupted code may hold."""
        self._flushed.wait(0)  # takes what rang for a handler that has stopped waiting
        self._flush_wanted = True
        self._wake.ring()
        if self._thread is not None and self._thread.is_alive():
            self._flushed.wait(self.config.exit_timeout)

    def _overhead(self) -> dict[str, float]:
        return {
            "recording": estimate_recording(Ended.count, registry.count_values()),
            "drain": self._cpu_seconds + self.foreign_metrics.cpu_seconds,
            **{each.name: each.cpu_seconds for each in self._parts() if each.cpu_seconds},
        }

    def begin_run(self) -> None:
        """Note the start of the run, in the process that starts it, and which attempt it is if it is a resume."""
        if self._began_run:
            return
        self._began_run = True
        black_box.begin_run(self.config)
        if "file" in self.config.exporters:
            attempt = manifest.begin_attempt(self.config.run_path)
            self.config = settings.with_run(self.config, self.config.run_id, attempt)

    def record_run(self, facts: dict[str, str]) -> None:
        """Add facts to ``run.json``, if this run writes files."""
        if "file" in self.config.exporters:
            manifest.update(self.config.run_path, facts)

    def describe(self) -> None:
        """Tell the exporters what was said of this process since they were opened. What they know stays."""
        if self.opened:
            said = resource.build(self.config).attributes
            self.resource = Resource({**said, **self.resource.attributes})
            for exporter in self._parts():
                exporter.put_resource(self.resource)

    def end_run(self) -> None:
        """Say that the run is over and take its ``file_sd`` file away, in the process that started it."""
        if self._began_run:
            targets.remove_run(self.config)
            if "file" in self.config.exporters:
                manifest.end_attempt(self.config.run_path)
            with _guard.swallowed("black box"):
                black_box.end_run(self.config)

    def abandon(self) -> None:
        """Let go of everything without sending: this is a forked child, the parent will send."""
        sources.stop()
        for exporter in self._parts():
            exporter.abandon()

    # -- draining -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self.config.drain_interval)
            self._turn()

    @_guard.guarded("drain thread")
    def _turn(self) -> None:
        """Do what is due. Whatever goes wrong here, there is a next turn: nobody else drains."""
        opened = self.opened
        due = time.monotonic() - self._observed_at >= self.config.metric_interval
        self._pump(observe=due, ask_sources=due)
        for exporter in self._parts():
            with _guard.swallowed(f"tick {exporter.name}"):
                exporter.tick()
        if self._flush_wanted:
            self._flush_wanted = False
            try:
                self.flush(self.config.exit_timeout)
            finally:
                self._flushed.ring()
        self._cpu_seconds = time.thread_time()
        judge = self.governor.judge if opened is self.opened else self.governor.begin  # opening imports, once
        judge(time.monotonic(), sum(self._overhead().values()))

    def refresh(self) -> None:
        """Bring the folded state up to this moment: a scrape asks for it."""
        self._pump(observe=True, ask_sources=True, deadline=time.monotonic() + 1.0)

    @_guard.guarded("drain")
    def _pump(self, *, observe: bool, ask_sources: bool = False, deadline: float | None = None) -> None:
        """Drain once and hand the batch to every exporter, then what is asked: what was recorded does not wait for that.

        One at a time: a later batch must not be overtaken.

        Args:
            observe: Whether instruments that are read at a collection are due.
            ask_sources: Also those of hardware, which may take their time: not for somebody who has a deadline.
            deadline: Until when to wait for another one who drains.
        """
        if not self._pump_lock.acquire(timeout=_wait(deadline)):
            return
        try:
            was_opened = self.opened
            batch = recorder.drain(wait=_wait(deadline))
            if batch is None:
                return
            foreign = store.take(self.foreign_spans)
            if foreign:
                batch = batch._replace(spans=(*batch.spans, *foreign))
            if not self.opened and (batch.spans or batch.points or batch.open_spans):
                self._open()
            if self.opened:
                self._hand_over(batch)
            if self.opened and observe:
                if was_opened:
                    self._hand_over(recorder.ask(batch, groups=ask_sources))
                self._observed_at = time.monotonic()
                self.foreign_metrics.begin(self.providers.pulled if self.providers is not None else ())
            self._put_foreign()
        finally:
            self._pump_lock.release()

    def _hand_over(self, batch: Batch) -> None:
        self.state.update(batch.points, batch.asked)
        self._open_brought()
        for exporter in self._parts():
            with _guard.swallowed(f"put {exporter.name}"):
                exporter.put(batch)

    def _await_foreign(self, deadline: float) -> None:
        """Hand over what the user's instruments say now, if they say it in half of the time that is left."""
        self.foreign_metrics.wait(time.monotonic() + remaining(deadline) / 2)
        if self._pump_lock.acquire(timeout=remaining(deadline)):
            try:
                self._put_foreign()
            finally:
                self._pump_lock.release()

    def _put_foreign(self) -> None:
        for message in self.foreign_metrics.take():
            for exporter in self.exporters:
                with _guard.swallowed(f"put {exporter.name}"):
                    exporter.put_metrics(message)

    def _open(self) -> None:
        """Resolve who we are and open the exporters; one that cannot be opened is left out and said."""
        self.opened = True
        self.resource = resource.build(self.config)
        made = exporters.open_all(
            self.config, lambda each: each.open(self.resource, SCOPE, self.state), self.refresh, self.announce
        )
        self.exporters.extend(exporter for exporter, _ in made)
        self._open_black_box()
        with _guard.swallowed("providers"):
            from verl_otel.exporting import providers

            self.providers = providers.install(
                self.resource,
                ids,
                on_foreign_span,
                self.foreign_metrics.put,
                tuple(reader for _, reader in made if reader),
            )
        exporters.close_unused(made, self.providers.readers if self.providers is not None else ())

    def _open_brought(self) -> None:
        """Have the exporters that the user brings served, from the first one on that he has added to our provider."""
        if not self.brought and self.providers is not None and self.providers.brought:
            from verl_otel.exporting.readable import UserExporter

            exporter = UserExporter(self.providers)
            exporter.open(self.resource, SCOPE, self.state)
            self.brought.append(exporter)

    def _parts(self) -> list[Exporter]:
        """Return all who take batches. The black box is first: its sign of life must not wait for what exporters do."""
        return [*self.black_box, *self.exporters, *self.brought]

    def _open_black_box(self) -> None:
        """Have stalls seen."""
        for part in black_box.make(self.config):
            try:
                part.open(self.resource, SCOPE, self.state)
            except Exception as error:
                _guard.say("open black box", "verl-otel: stalls and crashes will not be seen: %s", error)
                return
            self.black_box.append(part)

    def announce(self, port: int) -> None:
        """Add the bound port of ``/metrics`` to the run's ``file_sd`` file, unless the process ends just now."""
        if not self._stopping:
            targets.add_target(self.config, self.resource, targets.make_address(self.config, port))


def _wait(deadline: float | None) -> float:
    """Return for how long a lock may be waited for; -1, as locks have it, if there is no deadline."""
    return -1 if deadline is None else remaining(deadline)


def on_foreign_span(record: SpanRecord) -> None:
    """Take one ended span of the user's own OpenTelemetry, in whatever process of a fork we are."""
    session = Current.session
    if session is None:
        return
    if len(session.foreign_spans) < MAX_FOREIGN_SPANS:
        session.foreign_spans.append(record)
    else:
        store.count_dropped()
