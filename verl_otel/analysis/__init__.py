# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Why a step was slow: reads the files of a run. `Run` is public; the modules below are not."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_otel.analysis.run import TABLES, Run

__all__ = ["TABLES", "Run"]


def __getattr__(name: str) -> object:
    """Load a public name at its first use: the command imports submodules only."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from verl_otel.analysis import run

    return getattr(run, name)
