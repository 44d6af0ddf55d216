# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of drivers: a driver finds devices, and a device is read value by value. A value that fails costs only itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from verl_otel._internal import error_boundary
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr

GENERAL = ((attr.HW_TASK, "general"),)
"""Label of compute utilisation, as opposed to video encoding."""


class Unreadable(Exception):  # noqa: N818 - it is a state of the device
    """A device, or all devices, cannot be read now. The message is the reason, of low cardinality."""


def note_missing(device: str, function: str, reason: str) -> None:
    """Log once that a value of a device cannot be read, as on some clouds. The device has its other values."""
    error_boundary.warn_once(
        f"gpu {function} {reason}", "verl-otel: GPU %s: %s fails (%s): its value is missing", device, function, reason
    )


class Device(Protocol):
    """One GPU, or one MIG device."""

    @property
    def id(self) -> str:
        """Its id, unique on the node and stable across restarts: the UUID if there is one."""

    @property
    def name(self) -> str:
        """Its number in Ray and in the driver."""

    @property
    def model(self) -> str:
        """Its product name."""

    def read(self) -> list[Measurement]:
        """Return its current measurements, without those that this model or driver does not support.

        Raises:
            Unreadable: The device is lost or must be reset, its driver is gone, or nothing of it can be read.
        """


class Driver(Protocol):
    """The library of one vendor."""

    def find_devices(self) -> Sequence[Device]:
        """Return the devices of this node, in the order of their numbers.

        Raises:
            Unreadable: The driver does not respond.
        """

    def close(self) -> None:
        """Shut the library down."""


class MissingDevice:
    """A device that its driver could not open."""

    def __init__(self, identity: str, name: str, reason: str) -> None:
        self.id, self.name, self.model = identity, name, ""
        self._reason = reason

    def read(self) -> list[Measurement]:
        """Raise `Unreadable` with the reason."""
        raise Unreadable(self._reason)


def measure(metric: str, device: str, value: float, *labels: tuple[str, str]) -> Measurement:
    """Return one measurement of a GPU, with the attributes of the hardware conventions.

    Args:
        metric: Name of the metric, one of ``hw.*``.
        device: The GPU's `Device.id`.
        value: The value, in the metric's unit.
        *labels: Further labels, in the order of the catalogue.
    """
    return metric, ((attr.HW_ID, device), (attr.HW_TYPE, "gpu"), *labels), value


def measure_own(metric: str, device: str, value: float, *labels: tuple[str, str]) -> Measurement:
    """Return one measurement of a ``verl.gpu.*`` metric, which has no ``hw.type``."""
    return metric, ((attr.HW_ID, device), *labels), value
