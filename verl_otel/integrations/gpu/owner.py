# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.gpu.owner``: on which GPUs this process computes, so that a GPU's series can be joined with those of a role or rank.

A process knows the numbers of its GPUs (`verl.gpu.ids`, from Ray). Which device has which number, the reader of the node has written
down: no process opens the driver for this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel.integrations.gpu.source import find_path
from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.lifecycle import Current
from verl_otel.session.sources import Place

_IDENTITIES: Final = ("GPU-", "MIG-")
"""How the ids begin that CUDA takes in the place of numbers."""


class OwnerSource:
    """Says which GPUs this process has."""

    name = "gpu owner"
    metrics = ("verl.gpu.owner",)
    once_per_node = False

    def __init__(self) -> None:
        self._version = (0, 0)
        self._known: dict[str, Any] = {}

    def read(self, place: Place) -> Iterable[Measurement]:
        """Return 1 for each GPU of this process whose device is known."""
        session = Current.session
        ids = session.resource.attributes.get(attr.GPU_IDS, ()) if session is not None else ()
        if not isinstance(ids, tuple) or not ids:
            return []
        self._load(find_path(place))
        return [("verl.gpu.owner", labels, 1) for labels in map(self._label, map(str, ids)) if labels]

    def close(self) -> None:
        """Forget the numbers."""
        self._version, self._known = (0, 0), {}

    def _load(self, path: Path) -> None:
        try:
            found = path.stat()
            version = found.st_ino, found.st_mtime_ns
            if version != self._version:
                self._known = json.loads(path.read_text("utf-8"))
                self._version = version
        except (OSError, ValueError):  # nobody has read the GPUs yet
            return

    def _label(self, number: str) -> tuple[tuple[str, str], ...]:
        device = self._known.get(number)
        if isinstance(device, Mapping):
            return (
                (attr.HW_ID, str(device.get("id"))),
                (attr.HW_NAME, number),
                (attr.HW_MODEL, str(device.get("model"))),
            )
        if not number.startswith(_IDENTITIES):
            return ()
        named = next((name for name, each in self._known.items() if str(each.get("id", "")).startswith(number)), None)
        return ((attr.HW_ID, number),) if named is None else self._label(named)
