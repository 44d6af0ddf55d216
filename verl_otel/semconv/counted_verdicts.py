# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How often verdicts of each kind were right in real trainings with planted faults. Made with ``docs/reference/faults.md``, and not edited."""

from typing import Final

SERIES: Final = "47, 53, 59, 61, healthy-asyncio, healthy-sync, healthy-threads"
"""What was trained: seeds, and modes without a fault."""
RIGHT: Final[dict[str, tuple[int, int]]] = {
    "between": (26, 26),
    "loop": (30, 30),
    "phase": (75, 84),
    "process": (83, 89),
    "rank": (7, 8),
    "replica": (0, 1),
    "trajectory": (29, 29),
}
"""How many were right, and of how many, by kind."""
