# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The folder with all data of a stack (``--data``)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SETTINGS_FILE: Final = "prometheus.yml"
COLLECTOR_FOLDER: Final = "otelcol"


def is_data_folder(folder: Path) -> bool:
    """Return whether a folder is the ``--data`` of a stack."""
    return (folder / SETTINGS_FILE).is_file() and (folder / COLLECTOR_FOLDER).is_dir()
