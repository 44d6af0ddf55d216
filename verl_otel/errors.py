# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The public exceptions.

The tree::

    VerlOtelError
      ConfigError (also a ValueError)

Recording never raises. A failure after start-up is logged once and counted in `verl.otel.errors`.
"""


class VerlOtelError(Exception):
    """Base class of all exceptions of verl-otel."""


class ConfigError(VerlOtelError, ValueError):
    """A setting has a value that cannot be used.

    The message names the setting, the value and the allowed ones, for example
    ``VERL_OTEL_EXPORTERS='kafka': use a comma-separated list of otlp, prometheus, file, tensorboard, console, sdk, none``.
    """
