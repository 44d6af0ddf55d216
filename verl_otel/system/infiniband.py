# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Counters of InfiniBand and RoCE ports, from ``/sys/class/infiniband``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import metric_names
from verl_otel.system.collectors import DeltaCounter

MAX_PORTS: Final = 16
WORD: Final = 4
"""Bytes that ``port_xmit_data`` and ``port_rcv_data`` count as one (InfiniBand Architecture, PortCounters)."""
_DATA: Final = (("port_rcv_data", "receive"), ("port_xmit_data", "transmit"))
_ERRORS: Final = {
    "link_downed": ("link_downed",),
    "port": ("symbol_error", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors"),
}
"""The counters that are added up for each kind of error."""


def read_ports(root: Path, counters: DeltaCounter) -> Iterable[Measurement]:
    """Return bytes and errors of every port since the first reading.

    Args:
        root: Folder that holds ``sys``.
        counters: The counters of earlier readings.
    """
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*/counters"))[:MAX_PORTS]:
        port = f"{folder.parents[2].name}/{folder.parent.name}"
        labels = ((attr.HW_ID, port), (attr.HW_TYPE, "network"))
        for name, direction in _DATA:
            value = _read(folder / name)
            if value is not None:
                bytes_ = counters.count((port, name), value * WORD)
                yield metric_names.HW_NETWORK_IO, (*labels, (attr.HW_DIRECTION, direction)), bytes_
        for kind, names in _ERRORS.items():
            counts = [
                counters.count((port, name), value) for name in names if (value := _read(folder / name)) is not None
            ]
            if counts:
                yield metric_names.HW_ERRORS, (*labels, (attr.ERROR_TYPE, kind)), sum(counts)


def _read(path: Path) -> int | None:
    """Return one counter; None if the driver does not provide it."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
