# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""RL-Insight's call sites, answered by us: no actor, no server, no port.

verl calls the package ``rl_insight`` where ``trainer.logger`` holds ``rl_insight``. Where that package is not installed, or the setting
``VERL_OTEL_RL_INSIGHT=on`` says so, the import finds our modules: what verl reports there is said by our hooks already and is not said
twice, and what users report themselves becomes their spans and metrics. Names and signatures are those of RL-Insight 0.3.0.
"""

from verl_otel import session
from verl_otel.integrations.patch import register
from verl_otel.integrations.rl_insight import finder, logger

HOOKS = logger.HOOKS


def install() -> None:
    """Answer the import of ``rl_insight``, as the setting says, and register the hook of verl's logger."""
    current = session.current()
    mode = current.config.rl_insight if current is not None else "auto"
    if mode != "off":
        finder.install(first=mode == "on")
        register(HOOKS)


def uninstall() -> None:
    """Take our modules away."""
    finder.uninstall()
    logger.forget()
