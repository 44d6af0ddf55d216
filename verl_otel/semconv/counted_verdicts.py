# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How often verdicts of each kind were right in real trainings with planted faults. Made with ``docs/reference/faults.md``, and not edited."""

from typing import Final

SERIES: Final = "47, 53, 59, 61, 62, 63, 64, 65, 66, healthy-asyncio, healthy-sync, healthy-threads"
"""What was trained: seeds, and modes without a fault."""
RIGHT: Final[dict[str, tuple[int, int]]] = {
    "between": (40, 41),
    "loop": (46, 46),
    "phase": (122, 132),
    "process": (133, 145),
    "rank": (11, 12),
    "replica": (0, 1),
    "reward": (0, 1),
    "trajectory": (38, 41),
}
"""How many were right, and of how many, by kind."""
