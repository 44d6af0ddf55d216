# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Types of the state of a reader, which `saved_state` writes and reads.

The classes that accumulate a run are structs. Their fields are their state; what can be found again is an attribute that ``__post_init__`` sets.
Those that a training uses, too, are dataclasses: msgspec would add 4 MB to its process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


if TYPE_CHECKING:
    Unbounded = float
else:

    class Unbounded(float):
        """A number that may be infinite, which JSON has not: it is written as null."""


class Keyed(dict[Key, Value]):
    """A dict whose keys are tuples, which JSON has not."""
