# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a run has ended: from then on processes are expected to go, whatever they hold."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from verl_otel.config import Config
from verl_otel.session.black_box import members

_MARK: Final = "ended"


def mark(config: Config, *, ended: bool) -> None:
    """Say that a run has ended, or that it has begun again."""
    path = config.run_path / members.FOLDER / _MARK
    with contextlib.suppress(OSError):
        if ended:
            path.touch()
        else:
            path.unlink(missing_ok=True)


def is_marked(folder: Path) -> bool:
    """Return whether the run of a folder has ended."""
    return (folder / _MARK).exists()
