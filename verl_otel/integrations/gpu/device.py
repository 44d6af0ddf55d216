# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of drivers: a driver finds devices, and a device is read value by value. A value that fails costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from verl_otel._internal import error_boundary
from verl_otel.recording.collection import Measurement
from verl_otel.semconv import attributes as attr

GENERAL = ((attr.HW_TASK, "general"),)
"""Label of compute utilisation, as opposed to video encoding."""


class Unreadable(Exception):  # noqa: N818 - it is a state of the device
    """A device, or all devices, cannot be read now. The message is the reason, of low cardinality."""


class Library:
    """The library of a driver, called for one device: a value that fails costs only itself.

    Args:
        module: The library.
        error: The class of its exceptions.
        name_error: Returns the name of an exception, such as ``not_supported``.
        gone: Names, in capitals, of errors of a device that cannot be used, or of a driver that is gone.
        absent: Names of errors of values that this model or driver does not support.
    """

    def __init__(
        self,
        module: Any,
        error: type[Exception],
        name_error: Callable[[Any, Any], str],
        gone: Collection[str],
        absent: Collection[str],
    ) -> None:
        self._module, self._error, self._name_error = module, error, name_error
        self._gone, self._absent = gone, absent
        self._failure, self._answered = "", False

    def begin(self) -> None:
        """Begin a collection."""
        self._failure, self._answered = "", False

    def check(self) -> None:
        """Raise `Unreadable` if a value could not be read in this collection, and no other one could."""
        if self._failure and not self._answered:
            raise Unreadable(self._failure)

    def call(self, device: str, name: str, *arguments: Any) -> Any:
        """Return the result of a function; None if this model or driver does not support it, or if it fails, as on some clouds, which is logged once.

        Raises:
            Unreadable: The device cannot be used, or its driver is gone.
        """
        function: Callable[..., Any] | None = getattr(self._module, name, None)
        if function is None:
            return None
        try:
            result = function(*arguments)
        except self._error as error:
            reason = self._name_error(self._module, error)
            if reason.upper() in self._gone:
                raise Unreadable(reason) from error
            if reason.upper() not in self._absent:
                self._failure = reason
                text = "verl-otel: GPU %s: %s fails (%s): its value is missing"
                error_boundary.warn_once(f"gpu {name} {reason}", text, device, name, reason)
            return None
        self._answered = True
        return result


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
