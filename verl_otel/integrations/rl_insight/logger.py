# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's ``RLInsightLogger``: no second set of scalars, and no import that raises after we have gone."""

from __future__ import annotations

import functools
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard
from verl_otel.integrations.patch import PATCHED, Hook, replace
from verl_otel.integrations.rl_insight import finder

_TRACKING: Final = "verl.utils.tracking"


def forget() -> None:
    """Have verl import the real package from now on, where there is one.

    Where there is none verl keeps our module, which does nothing by now: to import it again would raise in the middle of a training.
    """
    logger: Any = getattr(sys.modules.get(_TRACKING), "RLInsightLogger", None)
    if finder.is_ours(getattr(logger, "_rl_insight_module", None)):
        with _guard.swallowed("rl_insight"):
            if importlib.util.find_spec(finder.PACKAGE) is not None:
                logger._rl_insight_module = None
                logger._init_done = False


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
