# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Histogram bounds, each family written once.

Every duration family reaches one hour, because one rollout may. Few bounds: a series is paid for per bound and process.
"""

from typing import Final

LONG: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
"""Seconds: steps, phases, trajectories. Holds 0.1, 0.5, 1, 2, 5, 10, which the older guides' panels ask for."""

SHORT: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Seconds: turns, LLM calls, tools, rewards."""

TINY: Final = (0.000001, 0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
"""Seconds: a user's own `timed` functions, from microseconds up."""

TOKENS: Final = (16.0, 64.0, 256.0, 1024.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0)
"""Tokens of a prompt, a response or a whole sequence."""

TURNS: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
"""Turns of one trajectory."""

STALENESS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0)
"""Model versions between generating a sample and training on it."""

REWARD_BINS: Final = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
"""Upper bounds of the reward bins: a counter with a label, since a histogram may not hold negative values."""
