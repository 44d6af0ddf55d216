# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A replacement of the package ``rl_insight``, without its actor, server and port.

verl calls ``rl_insight`` if ``trainer.logger`` holds ``rl_insight``. If that package is not installed, or with ``VERL_OTEL_RL_INSIGHT=on``, the
import finds the modules of this package. Calls of verl are ignored, because hooks record the same data; calls of users become spans and
metrics. Names and signatures are those of RL-Insight 0.3.0.
"""

from verl_otel.integrations.patch import register
from verl_otel.integrations.rl_insight import finder
from verl_otel.session import current as current_session

HOOKS = finder.HOOKS


def install() -> None:
    """Register the import finder according to the setting, and the hook of verl's logger."""
    current = current_session()
    mode = current.config.rl_insight if current is not None else "auto"
    if mode != "off":
        finder.install(first=mode == "on")
        register(HOOKS)


def uninstall() -> None:
    """Remove the finder and its modules."""
    finder.uninstall()
    finder.forget()
