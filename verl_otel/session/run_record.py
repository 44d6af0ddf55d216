# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The run of a process: its id, and in the process that starts it, its attempt, the facts about it and its end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

from verl_otel import resource, watchdog
from verl_otel._internal import error_boundary
from verl_otel.config import Config, find_endpoint, find_temporary_dir, find_unknown, with_run
from verl_otel.recording import own_loop
from verl_otel.semconv import attributes as attr
from verl_otel.semconv.run_state import DRAIN_INTERVAL, DRAIN_SECONDS
from verl_otel.session import children, prometheus_targets, run_manifest, same_name
from verl_otel.system import procfs


class RunRecord:
    """The data of its run that this process holds and records.

    The id is generated at once, so that a child that is forked before the first record has the same.

    Args:
        config: The settings, which may name a run.
    """

    def __init__(self, config: Config) -> None:
        self.started = 0.0
        """Unix time at which this process began to record."""
        self._job = ""
        self._has_begun = self._has_ended = self._may_resume = False
        inherited = children.find_inherited_run()
        if inherited is not None and config.run_id in ("", inherited.run_id):
            self.config = with_run(config, *inherited)
            return
        launcher = _find_launcher()
        run_id = resource.find_run_id(config, launcher=launcher)
        self._job = same_name.name_job(launcher, os.environ)
        if not config.run_id:
            run_id = same_name.keep_apart(config.run_dir, run_id, self._job)
        if resource.is_of_one_node(run_id, os.environ):
            error_boundary.warn_once(
                "job",
                "verl-otel: the ranks of each node are a run of their own, because nothing tells this job from others on all "
                "nodes: set VERL_OTEL_RUN_ID to one name of the job",
            )
        self.config = with_run(config, run_id, config.run_attempt)

    @property
    def expects_records(self) -> bool:
        """Whether this process would begin a run and has recorded nothing: the user is warned at its exit."""
        return run_manifest.is_first_process() and not self._has_begun

    @property
    def writes_files(self) -> bool:
        """Whether this process writes into the folder of the run."""
        return "file" in self.config.exporters

    def start(self) -> None:
        """Note that recording begins now."""
        self.started, self._may_resume = time.time(), run_manifest.may_resume()

    def begin(self) -> None:
        """Record the start of the run, in the process that starts it, and which attempt it is if the run is resumed."""
        # Another process may have begun it, as for a server of Ray Client.
        if self._has_begun or os.environ.get("VERL_OTEL_RUN_ATTEMPT", "").strip():
            return
        self._has_begun = True
        _warn_of_settings(self.config)
        same_name.warn_of_other(self.config.run_path)
        watchdog.begin_run(self.config)
        if self.writes_files:
            attempt = run_manifest.begin_attempt(self.config.run_path, self.started, self._job)
            is_slow = self.config.drain_interval > DRAIN_SECONDS
            facts = {
                attr.PROJECT: self.config.project,
                attr.EXPERIMENT: self.config.experiment,
                DRAIN_INTERVAL: self.config.drain_interval if is_slow else 0,
            }
            self.add_facts({name: value for name, value in facts.items() if value})
            self.config = with_run(self.config, self.config.run_id, attempt)
            children.publish(self.config)
        elif self.config.stalls and self.config.exporters:  # the watchdog has made the folder
            run_manifest.note_destination(self.config.run_path, self.config.exporters, find_endpoint())

    def begin_if_first(self) -> None:
        """Record the start of the run if this process starts it and its folder can be written."""
        if run_manifest.is_first_process() and self._can_write():
            self.begin()

    def resume(self) -> bool:
        """Begin the run that the environment names, if this process is the one with the training loop; return whether it has begun now."""
        if not self._may_resume or self._has_begun or not own_loop.has_step():
            return False
        self._may_resume = run_manifest.may_resume()  # the program may have set its rank meanwhile
        if not self._may_resume or not self._can_write():
            return False
        self.begin()
        return True

    def has_no_training(self) -> bool:
        """Return whether this process starts the run, or would, and no process has written a training of this attempt."""
        is_first = self._has_begun or run_manifest.is_first_process() or run_manifest.may_resume()
        return is_first and not run_manifest.has_training(self.config.run_path, self.started)

    def _can_write(self) -> bool:
        return not self.writes_files or run_manifest.can_write(self.config.run_path)

    def add_facts(self, facts: Mapping[str, object]) -> None:
        """Add facts to ``run.json``, if this run writes files."""
        if self.writes_files:
            run_manifest.update(self.config.run_path, facts)

    def end(self) -> None:
        """Record the end of the run and remove its ``file_sd`` file, in the process that started it."""
        if self._has_begun:
            prometheus_targets.remove_run(self.config)
        self.end_attempt()

    def end_attempt(self) -> None:
        """Record the end of the run, in the process that started it."""
        if self._has_begun and not self._has_ended:
            self._has_ended = True
            if self.writes_files:
                run_manifest.end_attempt(self.config.run_path)
            with error_boundary.suppress_errors("black box"):
                watchdog.end_run(self.config)

    @contextlib.contextmanager
    def end_of_workers(self) -> Iterator[None]:
        """Expect the other processes of the run to end in this block, as the workers of Ray in ``ray.shutdown``.

        The run goes on afterwards, unless one of its processes has recorded the end before: its trainer may be a worker.
        """
        if not self._has_begun or watchdog.has_ended(self.config):
            self.end()
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


def _find_launcher() -> str:
    """Return what identifies the process that has started this one; empty if a shell has, which may start one job after another."""
    parent = procfs.find_process(os.getppid())
    command = "" if parent is None else procfs.read_command(parent.pid).strip()
    if parent is None or " " not in command:  # a shell that runs no script has no arguments
        return ""
    return f"{procfs.read_node_name()} {parent.pid} {parent.start}"


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
