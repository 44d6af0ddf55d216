# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.gpu.owner``: the GPUs that this process uses, to join the series of a GPU with those of a role or rank.

A process knows the numbers of its GPUs (`verl.gpu.ids`) from Ray. Without Ray it has those on which PyTorch has memory. The process that reads
the GPUs of the node writes a file that maps numbers to devices, so that other processes do not open the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from verl_otel._internal import safe_files
from verl_otel.integrations.gpu.allocator import find_uuids
from verl_otel.integrations.gpu.collector import find_path
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.session import current as current_session
from verl_otel.system.collectors import NodeScope

_IDENTITIES: Final = ("GPU-", "MIG-")
"""Prefixes of the ids that CUDA accepts in place of numbers."""


class OwnerCollector:
    """Reports the GPUs of this process."""

    name = "gpu owner"
    metrics = (metric_names.GPU_OWNER,)
    once_per_node = False

    def __init__(self) -> None:
        self._version = (0, 0)
        self._devices: dict[str, Any] = {}

    def read(self, scope: NodeScope) -> Iterable[Measurement]:
        """Return 1 for each GPU of this process whose device is known."""
        session = current_session()
        ids = session.resource.attributes.get(attr.GPU_IDS, ()) if session is not None else ()
        if isinstance(ids, tuple) and ids:
            self._load(find_path(scope))
            found = [self._label(str(number)) for number in ids]
        elif uuids := find_uuids():
            self._load(find_path(scope))
            found = [self._find_label(end=uuid) for uuid in uuids]
        else:
            return []
        return [(metric_names.GPU_OWNER, labels, 1) for labels in found if labels]

    def close(self) -> None:
        """Drop the mapping."""
        self._version, self._devices = (0, 0), {}

    def _load(self, path: Path) -> None:
        try:
            status = path.stat()
            version = status.st_ino, status.st_mtime_ns
            if version != self._version:
                content = safe_files.read_json(path, 1 << 20, follow=False)
                self._devices = content if isinstance(content, dict) else {}
                self._version = version
        except (OSError, ValueError):  # the file is not written yet
            return

    def _label(self, number: str) -> tuple[tuple[str, str], ...]:
        device = self._devices.get(number)
        if isinstance(device, Mapping):
            return (
                (attr.HW_ID, str(device.get("id"))),
                (attr.HW_NAME, number),
                (attr.HW_MODEL, str(device.get("model"))),
            )
        if not number.startswith(_IDENTITIES):
            return ()
        return self._find_label(begin=number) or ((attr.HW_ID, number),)

    def _find_label(self, begin: str = "", end: str = "") -> tuple[tuple[str, str], ...]:
        """Return the labels of the device whose id begins and ends so; empty if there is none."""
        for name, entry in self._devices.items():
            identity = str(entry.get("id", "")) if isinstance(entry, Mapping) else ""
            if identity.startswith(begin) and identity.endswith(end):
                return self._label(name)
        return ()
