# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Interface of the backends. Cases define a workload once, by these methods; this class does nothing and is the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final

Function = Callable[..., Any]
Region = Callable[[], AbstractContextManager[Any]]

ATTRIBUTES: Final[Mapping[str, str | int]] = MappingProxyType(
    {"rl.phase": "rollout", "worker.role": "actor", "model": "qwen", "dp.rank": 3}
)
"""The four attributes that every span and every series has, in every backend."""
LABELS: Final = {name.replace(".", "_"): str(value) for name, value in ATTRIBUTES.items()}
"""The same for those that take names without dots and text only."""


class Backend:
    """No telemetry. Others override what they can do."""

    timed_block = "with r(): pass"
    """How a block is timed with what `timed_region` returns."""
    addition = "c.add(5)"
    """How something is added to what `counter` returns; ``a`` are the attributes."""

    def timed(self, function: Function) -> Function:
        """Return a function whose every call is a value of a histogram of durations."""
        return function

    def traced(self, function: Function) -> Function:
        """Return a function whose every call is a span, and a value of a histogram besides."""
        return function

    def timed_region(self) -> Any:
        """Return what opens a block whose duration goes to a histogram; `timed_block` says how it is used."""
        return nullcontext

    def traced_region(self) -> Region:
        """Return what opens a block that is a span, and a value of a histogram besides."""
        return nullcontext

    def counter(self) -> Any:
        """Return a counter; `addition` says how it is used."""
        raise NotImplementedError

    def empty(self) -> None:
        """Take away what waits to be drained; off the clock."""

    def deliver(self) -> None:
        """Bring everything that was recorded where it goes: into the answer to a scrape, or to the server."""

    def close(self) -> None:
        """Stop its threads."""
