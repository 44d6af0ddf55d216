# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The rank of a process in a distributed job, from the variables of its launcher. All ranks run one loop and record the same steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SIZES: Final = {
    "RANK": "WORLD_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
}
"""Variables with the number of a process of a distributed job, and with that of all: of torch's launchers, ``srun`` and ``mpirun``."""
RANKS: Final = tuple(_SIZES)


def find_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this process in a distributed job of several; None if it is in none, as each task of a job array is."""
    name = next((name for name in RANKS if name in environ), "")
    try:
        size = environ.get("WORLD_SIZE") or environ.get(_SIZES[name], "1")
        return int(environ[name]) if int(size) > 1 else None
    except (LookupError, ValueError):
        return None
