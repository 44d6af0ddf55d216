# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A session in this process."""

from tests.builders.processes import start

__all__ = ["start"]
