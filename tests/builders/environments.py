# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Environments of the processes that tests start."""

import os


def inherit(*hidden):
    """Return the environment of this process without the variables whose names begin with one of ``hidden``."""
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
