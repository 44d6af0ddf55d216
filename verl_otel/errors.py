# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions that a user can meet.

The tree::

    VerlOtelError
      ConfigError (also a ValueError)

Recording never raises: what goes wrong after start-up is one log line and a counter (`verl.otel.errors`).
"""


class VerlOtelError(Exception):
    """Everything that verl-otel raises on purpose."""


class ConfigError(VerlOtelError, ValueError):
    """A setting has a value that cannot be used.

    The message names the setting, the value and the allowed ones, for example
    ``VERL_OTEL_EXPORTERS='kafka': use a comma-separated list of otlp, prometheus, file, console, none``.
    """
