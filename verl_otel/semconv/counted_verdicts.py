# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How often verdicts of each kind were right in real trainings with planted faults. Made with ``docs/reference/faults.md``, and not edited."""

from typing import Final

SERIES: Final = "41"
"""What was trained: seeds, and modes without a fault."""
RIGHT: Final[dict[str, tuple[int, int]]] = {}
"""How many were right, and of how many, by kind."""
