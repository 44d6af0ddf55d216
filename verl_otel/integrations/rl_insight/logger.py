# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""verl's ``RLInsightLogger``: no duplicate scalars, and no failing import after uninstall."""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any, Final

from verl_otel._internal import error_boundary
from verl_otel.integrations.patch import PATCHED, Hook
from verl_otel.integrations.rl_insight import finder

_TRACKING: Final = "verl.utils.tracking"


def forget() -> None:
    """Let verl import the real package from now on, if it is installed.

    Otherwise verl keeps the module of this package, which does nothing any more: importing it again would raise during training.
    """
    logger: Any = getattr(sys.modules.get(_TRACKING), "RLInsightLogger", None)
    if finder.is_ours(getattr(logger, "_rl_insight_module", None)):
        with error_boundary.suppress_errors("rl_insight"):
            if importlib.util.find_spec(finder.PACKAGE) is not None:
                logger._rl_insight_module = None
                logger._init_done = False


def _skip_log(original: Any) -> Any:
    """Wrap ``RLInsightLogger.log``: the hook of ``Tracking.log`` has recorded the same scalars."""

    @functools.wraps(original)
    def log(cls: Any, data: Any, step: Any) -> Any:
        if finder.is_ours(cls._rl_insight_module) and getattr(sys.modules[_TRACKING].Tracking.log, PATCHED, False):
            return None
        return original(cls, data, step)

    return log


HOOKS: Final = (
    Hook.wrapping(_TRACKING, "RLInsightLogger.log", _skip_log, "scalars are recorded twice", since="verl 0.9"),
)
