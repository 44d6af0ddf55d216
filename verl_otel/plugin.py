# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The plug-in that ``import verl`` loads in every process: reads the switch and registers post-import hooks, nothing else.

verl 0.9 and later find this module by its entry point; for 0.7 and 0.8 set ``VERL_USE_EXTERNAL_MODULES=verl_otel.plugin``. Importing it never
raises: verl logs a failing plug-in at DEBUG only, and a failing external module ends the process.
"""

import contextlib
import logging
import sys
from typing import Any

from verl_otel._internal import log_lines
from verl_otel._internal.error_boundary import may_propagate
from verl_otel.config import is_enabled, is_unset

_loaded = False


def load() -> None:
    """Register every hook and start the session lazily, once per process, if the switch is on. Never raises.

    The switch is the environment's; in a worker of Ray that has none, that of the driver of its job.
    """
    global _loaded
    if _loaded or not (_is_enabled_by_job() or is_enabled()):
        return
    _loaded = True
    try:
        from verl_otel import early_imports

        with early_imports.hold_off_forks():
            from verl_otel import integrations, session

            _use_cluster_endpoint()
            session.start_lazily()
            integrations.install()
    except Exception as error:
        from verl_otel._internal.printable import show

        line = "verl-otel is off: %s: %s"
        log_lines.warn(logging.getLogger("verl_otel"), line, type(error).__name__, show(error, 2000))
        _undo()
        may_propagate(error)


def _is_enabled_by_job() -> bool:
    """Join the run of this process's Ray job, if it has one, and return whether that switches verl-otel on."""
    ray = sys.modules.get("ray")
    if ray is None or not (is_unset() or is_enabled()):
        return False
    try:
        if not ray.is_initialized():  # before anything is imported
            return False
        from verl_otel.integrations.ray import cluster

        return cluster.join()
    except Exception as error:
        may_propagate(error)
        return False


def _use_cluster_endpoint() -> None:
    """Send to the OTLP endpoint of the Ray cluster that this process is part of, if it has one and the environment has none."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return
    from verl_otel.integrations.ray import cluster_endpoint

    cluster_endpoint.take()


def init(*, tracer_provider: Any = None, meter_provider: Any = None, **keywords: object) -> None:
    """Start telemetry in this process and in the Ray workers of its job, with settings in code.

    Not needed with ``VERL_OTEL_ENABLED=1``, which starts telemetry at the first use of verl, Ray or a function of verl-otel. Settings come
    from keywords, the environment and the defaults, in this order. ``VERL_OTEL_ENABLED=0`` and ``OTEL_SDK_DISABLED=true`` overrule
    this call. Once something was recorded, a call does nothing, with a warning.

    Args:
        tracer_provider: A provider of OpenTelemetry's SDK whose span processors get the spans of this process, by the exporter ``sdk``.
        meter_provider: A provider whose readers get its metrics. In the workers the global providers are used.
        **keywords: Settings by name; see the table in the guide.

    Raises:
        ConfigError: A setting cannot be used.

    Example:
        verl_otel.init(exporters="file,prometheus", run_dir="./runs")
    """
    global _loaded
    from verl_otel import session

    session.init(tracer_provider, meter_provider, **keywords)
    if session.current_session() is None or _loaded:
        return
    _loaded = True
    try:
        from verl_otel import early_imports, integrations

        with early_imports.hold_off_forks():
            integrations.install()
    except Exception as error:
        from verl_otel._internal.error_boundary import record_internal_error

        record_internal_error("init", error)


def _undo() -> None:
    """Remove a partially installed instrumentation after a failure."""
    with contextlib.suppress(Exception):
        from verl_otel import session

        session.shutdown()
    with contextlib.suppress(Exception):
        from verl_otel import integrations

        integrations.uninstall()


def unload() -> None:
    """Allow `load` to be called again, after the hooks were removed."""
    global _loaded
    _loaded = False


load()
