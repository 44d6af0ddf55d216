# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of every driver: it finds devices, and a device is read as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from verl_otel.recording.recorder import Measurement
from verl_otel.semconv import attributes as attr

GENERAL = ((attr.HW_TASK, "general"),)
"""Label of the utilisation by programs, not by a video encoder."""


class Unreadable(Exception):  # noqa: N818 - it is a state of the device
    """A device, or all of them, cannot be read now; the message is the reason, one of few."""


class Device(Protocol):
    """One GPU, or one part of a GPU that is shared out (MIG)."""

    @property
    def id(self) -> str:
        """What identifies it on its node and after a restart: its UUID where it has one."""

    @property
    def name(self) -> str:
        """The number by which Ray and the driver call it."""

    @property
    def model(self) -> str:
        """What it is sold as."""

    def read(self) -> list[Measurement]:
        """Return what it says now. What this model or driver does not know is left out.

        Raises:
            Unreadable: It is lost, must be reset, or its driver went away.
        """


class Driver(Protocol):
    """One vendor's library."""

    def find_devices(self) -> Sequence[Device]:
        """Return the devices of this node, in the order of their numbers.

        Raises:
            Unreadable: The driver does not answer.
        """

    def close(self) -> None:
        """Let go of the library."""


class Lost:
    """A device that was not there when its driver was asked for it."""

    def __init__(self, identity: str, name: str, reason: str) -> None:
        self.id, self.name, self.model = identity, name, ""
        self._reason = reason

    def read(self) -> list[Measurement]:
        """Raise `Unreadable` with the reason."""
        raise Unreadable(self._reason)


def measure(metric: str, device: str, value: float, *labels: tuple[str, str]) -> Measurement:
    """Return one value of a GPU as the hardware conventions want it.

    Args:
        metric: Name of the metric, one of ``hw.*``.
        device: The GPU's `Device.id`.
        value: Its value, in the metric's unit.
        *labels: More labels, in the order of the catalogue.
    """
    return metric, ((attr.HW_ID, device), (attr.HW_TYPE, "gpu"), *labels), value


def measure_own(metric: str, device: str, value: float, *labels: tuple[str, str]) -> Measurement:
    """Return one value of a GPU for a metric of our own, ``verl.gpu.*``, which needs no ``hw.type``."""
    return metric, ((attr.HW_ID, device), *labels), value
