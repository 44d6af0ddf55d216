# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Start and end telemetry in this process. Integrations and users call these functions; `lifecycle.Session` does the work."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from typing import Final

from verl_otel import _guard
from verl_otel import config as settings
from verl_otel.model import AttributeValue
from verl_otel.session import resource, signals
from verl_otel.session.lifecycle import Current, Session
from verl_otel.session.resource import add_describer

__all__ = ["add_describer", "current", "describe", "flush", "init", "record_run", "shutdown", "start_lazily", "wake"]

_registered = False
_LAST: Final = -1000
"""Priority of a finalizer that multiprocessing calls after all others."""


def current() -> Session | None:
    """Return the session of this process, or None."""
    return Current.session


def init(**keywords: object) -> None:
    """Start telemetry in this process. A second call does nothing.

    Not needed under verl: there ``VERL_OTEL_ENABLED=1`` is enough. Settings come from keywords, the environment and the
    defaults, in this order; calling this function is the switch, ``OTEL_SDK_DISABLED=true`` overrules it.

    Args:
        **keywords: Settings by name; see the table in the guide.

    Raises:
        ConfigError: A setting cannot be used.

    Example:
        verl_otel.init(exporters="file,prometheus", run_dir="./runs")
    """
    if keywords.get("enabled") is None:
        keywords["enabled"] = "1"
    config = settings.load(None, **keywords)
    if config.enabled and not settings.is_disabled():
        _begin(config, lazy=False)


def start_lazily() -> None:
    """Start telemetry for a plug-in: nothing is opened before the first record. The switch must be on.

    Raises:
        ConfigError: A setting cannot be used.
    """
    if settings.is_enabled():
        _begin(settings.load(), lazy=True)


def _begin(config: settings.Config, *, lazy: bool) -> None:
    global _registered
    if Current.session is not None:
        return
    session = Current.session = Session(config)
    session.start(lazy=lazy)
    if not _registered:
        _registered = True
        atexit.register(shutdown)
        os.register_at_fork(after_in_child=_restart_in_child)
        _end_with_multiprocessing()
    with _guard.swallowed("signals"):
        signals.install(_on_term)


def shutdown() -> None:
    """Send what there is, within ``VERL_OTEL_EXIT_TIMEOUT`` seconds, and stop. Runs by itself when the interpreter exits."""
    session, Current.session = Current.session, None
    if session is not None:
        session.stop()
        signals.uninstall()


def flush(timeout: float = 5.0) -> None:
    """Send what was recorded so far; wait for at most ``timeout`` seconds."""
    session = Current.session
    if session is not None:
        session.flush(timeout)


def wake() -> None:
    """Have the drain thread send what was recorded so far, without waiting for it."""
    session = Current.session
    if session is not None:
        session.wake()


def describe(attributes: Mapping[str, AttributeValue]) -> None:
    """Say something about this process. What was said first stays; files that were begun say it from now on."""
    resource.describe(attributes)
    session = Current.session
    if session is not None:
        with _guard.swallowed("resource"):
            session.describe()


def record_run(facts: dict[str, str]) -> None:
    """Add to the record in the run's folder what this run is."""
    session = Current.session
    if session is not None:
        session.record_run(facts)


def _on_term() -> None:
    session = Current.session
    if session is not None:
        session.flush_from_signal()


def _restart_in_child() -> None:
    """Begin anew in a forked child: the threads are gone, and what was recorded belongs to the parent."""
    session = Current.session
    if session is None:
        return
    session.abandon()
    _guard.reset()
    resource.mark_forked()
    Current.session = None
    _begin(session.config, lazy=True)
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:  # its children forget the finalizers of their parent, right after this
        multiprocessing.register_after_fork(Current, _end_with_multiprocessing)


def _end_with_multiprocessing(_: object = None) -> None:
    """Have multiprocessing call `shutdown`, where it is in use: children of it that were forked end without `atexit`."""
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, shutdown, exitpriority=_LAST)
