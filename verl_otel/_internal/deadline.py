# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Deadlines on the monotonic clock."""

from __future__ import annotations

import time


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline (`time.monotonic`), not below 0."""
    return max(0.0, deadline - time.monotonic())
