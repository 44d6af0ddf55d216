# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry instrumentation with a Prometheus bridge for verl reinforcement-learning training.

Set ``VERL_OTEL_ENABLED=1`` in front of the command. verl is instrumented automatically; decorate code of your own:

Example:
    import verl_otel

    @verl_otel.reward("math")
    def compute_score(data_source, solution, ground_truth): ...
"""

import os
import sys

from verl_otel._internal.first_use import FirstUse
from verl_otel._version import __version__

TYPE_CHECKING = False  # type checkers know the name; `typing` is most of what importing this would cost
if TYPE_CHECKING:
    from verl_otel.errors import ConfigError, VerlOtelError
    from verl_otel.guards.decisions import on_record
    from verl_otel.plugin import init
    from verl_otel.recording.api import (
        bind_context,
        consume,
        counter,
        gauge,
        histogram,
        llm,
        phase,
        reward,
        rollout,
        span,
        step,
        timed,
        tool,
        trajectory,
        turn,
        update,
    )
    from verl_otel.recording.run_log import log
    from verl_otel.session import shutdown

__all__ = [
    "ConfigError",
    "VerlOtelError",
    "__version__",
    "bind_context",
    "consume",
    "counter",
    "gauge",
    "histogram",
    "init",
    "llm",
    "log",
    "on_record",
    "phase",
    "reward",
    "rollout",
    "shutdown",
    "span",
    "step",
    "timed",
    "tool",
    "trajectory",
    "turn",
    "update",
]

_HOMES = {
    "ConfigError": "errors",
    "VerlOtelError": "errors",
    "consume": "recording.api",
    "init": "plugin",
    "log": "recording.run_log",
    "on_record": "guards.decisions",
    "shutdown": "session",
}


def __getattr__(name: str) -> object:
    """Load a public name at its first use, so that importing the package loads no OpenTelemetry module."""
    if name not in __all__:
        raise AttributeError(f"module 'verl_otel' has no attribute {name!r}")
    from importlib import import_module

    if not _HOMES.get(name, "recording").startswith(("errors", "guards", "session", "plugin")):
        _start_if_enabled()
    value = getattr(import_module(f"verl_otel.{_HOMES.get(name, 'recording.api')}"), name)
    globals()[name] = value
    return value


def _start_if_enabled() -> None:
    """Start telemetry at the first use of a verb, if it is switched on here or in the Ray job of this process."""
    from verl_otel import config

    if config.is_enabled() or (config.is_unset() and "ray" in sys.modules):
        from verl_otel import plugin

        plugin.load()


FirstUse.start = staticmethod(_start_if_enabled)
_ray = sys.modules.get("ray")
if _ray is not None and (os.environ.get("VERL_OTEL_ENABLED") or getattr(_ray, "is_initialized", bool)()):
    # A driver whose first verb comes after `ray.init`, and its workers, which then have no setup hook, as those of Ray Client: calls of actors
    # before telemetry starts have no context.
    _start_if_enabled()


def __dir__() -> list[str]:
    return __all__
