# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""InfiniBand and RoCE ports: what the kernel counts in ``/sys/class/infiniband``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr
from verl_otel.session.sources import Since

MAX_PORTS: Final = 16
WORD: Final = 4
"""Bytes that ``port_xmit_data`` and ``port_rcv_data`` count as one (InfiniBand Architecture, PortCounters)."""
_DATA: Final = (("port_rcv_data", "receive"), ("port_xmit_data", "transmit"))
_ERRORS: Final = {
    "link_downed": ("link_downed",),
    "port": ("symbol_error", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors"),
}
"""Kinds of errors and the counters that are added up for each."""


def read_ports(root: Path, since: Since) -> Iterable[Measurement]:
    """Return bytes and errors of every port, since they are read.

    Args:
        root: Folder that holds ``sys``.
        since: Where the counters were before.
    """
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*/counters"))[:MAX_PORTS]:
        port = f"{folder.parents[2].name}/{folder.parent.name}"
        labels = ((attr.HW_ID, port), (attr.HW_TYPE, "network"))
        for name, direction in _DATA:
            value = _read(folder / name)
            if value is not None:
                sent = since.count((port, name), value * WORD)
                yield "hw.network.io", (*labels, (attr.HW_DIRECTION, direction)), sent
        for kind, names in _ERRORS.items():
            counts = [since.count((port, name), value) for name in names if (value := _read(folder / name)) is not None]
            if counts:
                yield "hw.errors", (*labels, (attr.ERROR_TYPE, kind)), sum(counts)


def _read(path: Path) -> int | None:
    """Return one counter; None if the driver does not have it."""
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
