# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How often verdicts of each kind were right in real trainings with planted faults. Made with ``docs/reference/faults.md``, and not edited."""

from typing import Final

SERIES: Final = "47, 53, 59, healthy-asyncio, healthy-sync, healthy-threads"
"""What was trained: seeds, and modes without a fault."""
RIGHT: Final[dict[str, tuple[int, int]]] = {
    "between": (15, 15),
    "loop": (17, 17),
    "phase": (42, 46),
    "process": (50, 52),
    "rank": (4, 4),
    "replica": (0, 1),
    "trajectory": (21, 21),
}
"""How many were right, and of how many, by kind."""
