# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the committed boards, without the SDK that builds them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).with_name("generated")


def read(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Return every board by its name, as Grafana's classic JSON."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def walk(panels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield panels and headings, those inside folded rows included."""
    for panel in panels:
        yield panel
        yield from walk(panel.get("panels") or ())
