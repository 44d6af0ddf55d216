# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The plug-in that ``import verl`` loads in every process: reads the switch and registers post-import hooks, nothing else.

verl 0.9 and later find this module by its entry point; for 0.7 and 0.8 set ``VERL_USE_EXTERNAL_MODULES=verl_otel.plugin``. Importing it never
raises: verl logs a failing plug-in at DEBUG only, and a failing external module ends the process.
"""

import contextlib
import logging

from verl_otel._internal.error_boundary import may_propagate
from verl_otel.config import is_enabled

_loaded = False


def load() -> None:
    """Register every hook and start the session lazily, once per process, if the switch is on. Never raises."""
    global _loaded
    if _loaded or not is_enabled():
        return
    _loaded = True
    try:
        from verl_otel import early_imports

        with early_imports.hold_off_forks():
            from verl_otel import integrations, session

            session.start_lazily()
            integrations.install()
    except Exception as error:
        from verl_otel._internal.printable import show

        logging.getLogger("verl_otel").warning("verl-otel is off: %s: %s", type(error).__name__, show(error, 2000))
        _undo()
        may_propagate(error)


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
