# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Loaded by ``import verl`` in every process: reads the switch and registers post-import hooks, nothing else.

verl 0.9 and later find this module by its entry point; for 0.7 and 0.8 set ``VERL_USE_EXTERNAL_MODULES=verl_otel.plugin``. Importing it never
raises: verl hides a plug-in's failure at DEBUG and an external module's failure kills the process.
"""

import contextlib
import logging

from verl_otel.config import is_enabled

_loaded = False


def load() -> None:
    """Register every hook and start the session lazily, once per process, if the switch is on. Never raises."""
    global _loaded
    if _loaded or not is_enabled():
        return
    _loaded = True
    try:
        from verl_otel import integrations, session

        session.start_lazily()
        integrations.install()
    except Exception as error:
        logging.getLogger("verl_otel").warning("verl-otel is off: %s: %s", type(error).__name__, error)
        _take_back()


def _take_back() -> None:
    """Stop what was begun before a failure: a part of us that goes on would be half a telemetry."""
    with contextlib.suppress(Exception):
        from verl_otel import session

        session.shutdown()
    with contextlib.suppress(Exception):
        from verl_otel import integrations

        integrations.uninstall()


def unload() -> None:
    """Forget that the hooks were registered, after they were put back, so that `load` may be called again."""
    global _loaded
    _loaded = False


load()
