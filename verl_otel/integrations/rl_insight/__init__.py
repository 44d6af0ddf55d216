# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's call sites, answered by us: no actor, no server, no port.

verl calls the package ``rl_insight`` where ``trainer.logger`` holds ``rl_insight``. Where that package is not installed, or the setting
``VERL_OTEL_RL_INSIGHT=on`` says so, the import finds our modules: what verl reports there is said by our hooks already and is not said
twice, and what users report themselves becomes their spans and metrics. Names and signatures are those of RL-Insight 0.3.0.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.integrations.patch import PATCHED, Hook, register, replace
from verl_otel.integrations.rl_insight import finder

_TRACKING: Final = "verl.utils.tracking"


def install() -> None:
    """Answer the import of ``rl_insight``, as the setting says, and register the hook of verl's logger."""
    current = session.current()
    mode = current.config.rl_insight if current is not None else "auto"
    if mode == "off":
        return
    finder.install(first=mode == "on")
    register(HOOKS)


def uninstall() -> None:
    """Take our modules away; verl forgets them where the real package can take over.

    Where it cannot, verl keeps ours, which do nothing by now: to import it again would raise in the middle of a training.
    """
    finder.uninstall()
    logger = getattr(sys.modules.get(_TRACKING), "RLInsightLogger", None)
    if finder.is_ours(getattr(logger, "_rl_insight_module", None)):
        with _guard.swallowed("rl_insight"):
            if importlib.util.find_spec(finder.PACKAGE) is not None:
                logger._rl_insight_module = None  # type: ignore[union-attr]  # it has the attribute
                logger._init_done = False  # type: ignore[union-attr]  # as above


def _skip_log(original: Any, tracking: ModuleType) -> Any:
    """Wrap ``RLInsightLogger.log``: our hook of ``Tracking.log`` has recorded the same scalars, under better names."""

    @functools.wraps(original)
    def log(cls: Any, data: Any, step: Any) -> Any:
        if finder.is_ours(cls._rl_insight_module) and getattr(tracking.Tracking.log, PATCHED, False):
            return None
        return original(cls, data, step)

    return log


def _patch(module: ModuleType) -> None:
    logger = getattr(module, "RLInsightLogger", None)
    if logger is not None:  # verl 0.9 has it, older ones have nothing to answer
        replace(logger, "log", lambda original: _skip_log(original, module))


HOOKS: Final = (Hook(_TRACKING, "RLInsightLogger.log", _patch, "scalars are recorded twice", since="verl 0.9"),)
