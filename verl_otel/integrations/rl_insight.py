# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A replacement of the package ``rl_insight``, without its actor, server and port.

verl calls ``rl_insight`` if ``trainer.logger`` holds ``rl_insight``. If that package is not installed, or with
``VERL_OTEL_RL_INSIGHT=on``, the import finds the modules of this package. Calls of verl are ignored, because hooks
record the same data; calls of users become spans and metrics. Names and signatures are those of RL-Insight 0.3.0.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import PATCHED, Hook, register
from verl_otel.session import current_session

PACKAGE: Final = "rl_insight"
VERSION: Final = "0.3.0+verl.otel"
"""The version of RL-Insight whose functions exist here, as verl compares it, with a local version label."""
_MARKER: Final = "__verl_otel__"
"""Attribute of a module that this finder created."""


def _add_finder(*, first: bool) -> None:
    """Register the finder: the last one on ``sys.meta_path``, so that an installed package takes precedence, or the first one.

    Args:
        first: Take precedence over an installed package.
    """
    if _FINDER in sys.meta_path:
        return
    sys.meta_path.insert(0 if first else len(sys.meta_path), _FINDER)
    loaded = sys.modules.get(PACKAGE)
    if first and loaded is not None and not is_ours(loaded):
        error_boundary.warn_once(
            PACKAGE, "verl-otel: %s was imported before verl-otel was loaded, and goes on answering", PACKAGE
        )


def uninstall() -> None:
    """Remove the finder and its modules from ``sys.modules``, and have verl forget them. References to the modules stay valid."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        if is_ours(sys.modules[name]):
            del sys.modules[name]
    _forget()


def is_ours(module: object) -> bool:
    """Return whether this finder created a module."""
    return isinstance(module, ModuleType) and _MARKER in vars(module)


_API: Final = (
    *("finish", "init", "metric_count", "metric_gauge", "metric_histogram"),
    *("trace_op", "trace_span", "trace_state"),
)
_CONTENTS: Final[Mapping[str, tuple[str, ...]]] = {
    PACKAGE: (*_API, "agent_loop_session", "update_prometheus_config"),
    f"{PACKAGE}.api": _API,
    f"{PACKAGE}.agent_loop": ("agent_loop_lane_id", "agent_loop_session"),
    f"{PACKAGE}.utils": ("update_prometheus_config",),
}
"""The modules that users of RL-Insight import, and their names."""


class _ReplacementFinder(importlib.abc.MetaPathFinder):
    """Finds `_CONTENTS`; submodules only if the package was created here."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname not in _CONTENTS or (fullname != PACKAGE and not is_ours(sys.modules.get(PACKAGE))):
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(), origin="verl-otel", is_package=fullname == PACKAGE)


class _Loader(importlib.abc.Loader):
    """Fills a module with its contents."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({_MARKER: True, "__doc__": "RL-Insight's functions, answered by verl-otel."})
        from verl_otel.integrations import rl_insight_shim

        vars(module).update({function: getattr(rl_insight_shim, function) for function in _CONTENTS[module.__name__]})
        if module.__name__ == PACKAGE:
            exported_names = sorted(["__version__", *(name for name in vars(module) if not name.startswith("_"))])
            vars(module).update(__version__=VERSION, __all__=exported_names)


_FINDER: Final = _ReplacementFinder()


# -- verl's ``RLInsightLogger``: no duplicate scalars, and no failing import after uninstall --

_TRACKING: Final = "verl.utils.tracking"


def _forget() -> None:
    """Let verl import the real package from now on, if it is installed.

    Otherwise verl keeps the module of this package, which does nothing any more: importing it again would raise during training.
    """
    logger: Any = getattr(sys.modules.get(_TRACKING), "RLInsightLogger", None)
    if is_ours(getattr(logger, "_rl_insight_module", None)):
        with error_boundary.suppress_errors("rl_insight"):
            if importlib.util.find_spec(PACKAGE) is not None:
                logger._rl_insight_module = None
                logger._init_done = False


def _skip_log(original: Any) -> Any:
    """Wrap ``RLInsightLogger.log``: the hook of ``Tracking.log`` has recorded the same scalars."""

    @functools.wraps(original)
    def log(cls: Any, data: Any, step: Any) -> Any:
        if is_ours(cls._rl_insight_module) and getattr(sys.modules[_TRACKING].Tracking.log, PATCHED, False):
            return None
        return original(cls, data, step)

    return log


HOOKS: Final = (
    Hook.wrapping(_TRACKING, "RLInsightLogger.log", _skip_log, "scalars are recorded twice", since="verl 0.9"),
)


def install() -> None:
    """Register the import finder according to the setting, and the hook of verl's logger."""
    current = current_session()
    mode = current.config.rl_insight if current is not None else "auto"
    if mode != "off":
        _add_finder(first=mode == "on")
        register(HOOKS)
