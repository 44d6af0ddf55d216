# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How often verdicts of each kind were right in real trainings with planted faults. Made with ``docs/reference/faults.md``, and not edited."""

from typing import Final

SERIES: Final = "47, healthy-asyncio, healthy-sync, healthy-threads"
"""What was trained: seeds, and modes without a fault."""
RIGHT: Final[dict[str, tuple[int, int]]] = {
    "between": (5, 5),
    "loop": (7, 7),
    "phase": (12, 16),
    "process": (17, 17),
    "rank": (2, 2),
    "replica": (0, 1),
    "trajectory": (7, 7),
}
"""How many were right, and of how many, by kind."""
