# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The watchdog: detects stalls and crashes while a run is going on. See ``docs/explanation/decisions/0013-run-one-watchdog-per-node.md``.

Every process writes a heartbeat and a report about itself (`heartbeat`, `process_reports`). One process of a node, the holder of a lock,
monitors all of them (`monitor`). It keeps a table of the processes (`process_table`). If a process looks suspicious, it takes a snapshot of
all open spans and decides which are overdue (`overdue`), finds the process that the others wait for (`diagnosis`), collects stacks (`stack_dumps`), and
reports the incident (`reporter`).
"""

from __future__ import annotations

from verl_otel.config import Config
from verl_otel.exporting.base import Exporter

__all__ = ["begin_run", "end_run", "has_ended", "make_exporters", "resume_run"]


def make_exporters(config: Config, since: float) -> list[Exporter]:
    """Return the exporters of the watchdog; none if stall detection or exporting is off.

    Args:
        config: The settings.
        since: Unix time at which telemetry started in this process; see `heartbeat.Heartbeat`.
    """
    if not config.stalls or not config.exporters:
        return []
    from verl_otel.exporting.files import FileExporter
    from verl_otel.watchdog.heartbeat import Heartbeat

    heartbeat = Heartbeat(config, since)
    return [heartbeat] if "file" in config.exporters else [heartbeat, FileExporter(config.run_path, only_open=True)]


def begin_run(config: Config) -> None:
    """Record that a run begins, in a folder where an earlier attempt may have ended."""
    _mark_run(config, has_ended=False)


def end_run(config: Config) -> None:
    """Record that a run has ended: heartbeats are not expected any more."""
    from verl_otel.watchdog import cluster_backend

    _mark_run(config, has_ended=True)
    cluster_backend.query(lambda cluster: cluster.clear(config.run_id))


def has_ended(config: Config) -> bool:
    """Return whether the end of the run is recorded, by whichever of its processes."""
    from verl_otel.watchdog import process_reports

    return process_reports.read_run_end(config.run_path / process_reports.FOLDER) is not None


def resume_run(config: Config) -> None:
    """Record that the run goes on after the end of its Ray workers, which are forgotten: their death was intended."""
    from verl_otel.watchdog import process_reports

    process_reports.remove_workers(config.run_path / process_reports.FOLDER)
    _mark_run(config, has_ended=False)


def _mark_run(config: Config, *, has_ended: bool) -> None:
    if config.stalls and config.exporters:
        from verl_otel.watchdog import process_reports

        process_reports.mark_run(config, process_reports.FINISHED if has_ended else process_reports.RUNNING)
