# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Start and end telemetry in this process. Integrations and users call these functions; `lifecycle.Session` does the work."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any, Final

from verl_otel import early_imports, resource
from verl_otel._internal import error_boundary
from verl_otel.config import Config, is_enabled, is_unset, load_config, to_variables, with_sdk
from verl_otel.exporting.base import GivenProviders
from verl_otel.model import AttributeValue
from verl_otel.resource import add_describer
from verl_otel.session import children, signals
from verl_otel.session.lifecycle import Current, Session

__all__ = [
    "add_describer",
    "current_session",
    "describe_resource",
    "flush",
    "init",
    "record_run",
    "shutdown",
    "start_lazily",
    "wake",
]

_registered = False
_NOTHING: Final = "verl-otel: enabled, but this program recorded nothing: it used neither a trainer of verl nor a function of verl_otel"


def current_session() -> Session | None:
    """Return the session of this process, or None."""
    return Current.session


def init(tracer_provider: Any = None, meter_provider: Any = None, **keywords: object) -> None:
    """Start telemetry in this process; see `verl_otel.init`, which also installs the hooks.

    Raises:
        ConfigError: A setting cannot be used.
    """
    given = GivenProviders(tracer_provider, meter_provider)
    if any(provider is not None for provider in given):
        keywords["exporters"] = with_sdk(keywords.get("exporters"))
    variables = to_variables(keywords)
    if keywords.get("enabled") is None:
        keywords["enabled"] = "1"
    config = load_config(None, **keywords)
    if not config.enabled or not (is_unset() or is_enabled()):
        return
    _discard_unused(variables)
    _start(config, lazy=False, variables=variables, given=given)
    if Current.session is not None:
        Current.session.open_now()


def _discard_unused(variables: Mapping[str, str]) -> None:
    """Discard a session that the first use of a verb has started, so that one with these settings can replace it."""
    session = Current.session
    if session is None or not variables:
        return
    if session.opened:
        error_boundary.warn_once(
            "init", "verl-otel: init(%s) has no effect: telemetry has started already", ", ".join(sorted(variables))
        )
    else:
        shutdown()


def start_lazily() -> None:
    """Start telemetry for a plug-in: nothing is opened before the first record. The switch must be on.

    Raises:
        ConfigError: A setting cannot be used.
    """
    if is_enabled():
        _start(load_config(), lazy=True)


def _start(
    config: Config,
    *,
    lazy: bool,
    forked: bool = False,
    variables: Mapping[str, str] | None = None,
    given: GivenProviders | None = None,
) -> None:
    global _registered
    if Current.session is not None:
        return
    session = Current.session = Session(config, variables, given)
    session.outputs.on_provider = _end_before_others
    if not _registered:  # before it starts: another thread may fork meanwhile
        _registered = True
        atexit.register(_shutdown_at_exit)
        # Not by `process_state`: a session restarts after the handlers of the libraries that it has imported, whose locks it uses.
        os.register_at_fork(after_in_child=_restart_in_child)
        children.register_finalizer(shutdown)
        if children.is_child():  # finalizers that are registered while its main module is imported are discarded
            children.register_finalizer_in_child(shutdown)
    with early_imports.hold_off_forks():
        session.start(lazy=lazy, forked=forked)


def _end_before_others() -> None:
    """End at exit before a provider of the user's does, which is there now: a later handler runs first."""
    atexit.unregister(_shutdown_at_exit)
    atexit.register(_shutdown_at_exit)


def shutdown() -> None:
    """Send what is queued, within ``VERL_OTEL_EXIT_TIMEOUT`` seconds, and stop. Called automatically when the interpreter exits."""
    if Current.session is None:
        return
    with signals.deferred():
        session, Current.session = Current.session, None
        if session is not None:
            session.stop()


def _shutdown_at_exit() -> None:
    session = Current.session
    shutdown()
    if session is not None and not session.recorded and session.run.expects_records:
        with error_boundary.suppress_errors("exit"):
            error_boundary.warn_once("exit", _NOTHING)


def flush(timeout: float = 5.0) -> None:
    """Send what was recorded so far; wait for at most ``timeout`` seconds."""
    session = Current.session
    if session is not None:
        session.flush(timeout)


def wake() -> None:
    """Start a drain on the drain thread, without waiting for it."""
    session = Current.session
    if session is not None:
        session.wake()


def describe_resource(attributes: Mapping[str, AttributeValue]) -> None:
    """Add resource attributes of this process. An attribute that is set stays; files that are open use the new ones from now on."""
    resource.describe(attributes)
    session = Current.session
    if session is not None:
        with error_boundary.suppress_errors("resource"):
            session.describe()


def record_run(facts: Mapping[str, object]) -> None:
    """Add facts about the run to ``run.json`` in its folder."""
    session = Current.session
    if session is not None:
        session.run.add_facts(facts)


def _restart_in_child() -> None:
    """Start a new session in a forked child: the threads do not exist there, and recorded data belongs to the parent."""
    session = Current.session
    if session is None:
        return
    session.abandon()
    error_boundary.reset()
    resource.mark_forked()
    Current.session = None
    _start(session.config, lazy=True, forked=True, variables=session.variables, given=session.given)
    children.register_finalizer_in_child(shutdown)
