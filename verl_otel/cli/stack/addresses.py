# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Addresses of the stack's components: the loopback, with default ports, ports from the environment, or free ports."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

from verl_otel.cli.stack import ray_dashboard
from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import show_address

HOST: Final = "127.0.0.1"


class Listener(NamedTuple):
    """A listener: its default port, and the variable that changes it."""

    port: int
    variable: str
    text: str
    outside: bool = False
    """Whether other nodes connect to it in a cluster."""


LISTENERS: Final = {
    "grpc": Listener(4317, "OTELCOL_GRPC", "OTLP/gRPC", outside=True),
    "http": Listener(4318, "OTELCOL_HTTP", "OTLP/HTTP", outside=True),
    "metrics": Listener(8889, "OTELCOL_METRICS", "what Prometheus scrapes"),
    "self": Listener(8888, "OTELCOL_SELF_PORT", "the Collector's own metrics"),
    "health": Listener(13133, "OTELCOL_HEALTH", "the Collector's health"),
    "store": Listener(14317, "OTELCOL_TRACE_STORE", "Tempo's OTLP"),
    "prometheus": Listener(9090, "STACK_PROMETHEUS", "Prometheus"),
    "discovery": Listener(9465, "STACK_DISCOVERY", "HTTP service discovery"),
    "tempo": Listener(3200, "STACK_TEMPO", "Tempo"),
    "tempo-grpc": Listener(9095, "STACK_TEMPO_GRPC", "Tempo, inside"),
    "grafana": Listener(3000, "STACK_GRAFANA", "Grafana"),
}
"""Every port of the stack. The Collector's variables are those of its configuration files."""


def choose(environ: Mapping[str, str], *, free: bool = False, outside: str = HOST) -> dict[str, str]:
    """Return ``host:port`` of every listener, by its name.

    Args:
        environ: The environment: variables contain ``port`` or ``host:port``.
        free: Let the operating system choose the ports, and ignore the variables.
        outside: Host of the listeners that other nodes connect to, unless their variable has one.

    Raises:
        VerlOtelError: A variable has no port in it.
    """
    if free:
        return _find_free(outside)
    addresses = {}
    for name, listener in LISTENERS.items():
        variables = (listener.variable, ray_dashboard.ALSO_PORT.get(name, ""))
        variable = next((each for each in variables if environ.get(each, "").strip()), listener.variable)
        text = environ.get(variable, "").strip() or str(listener.port)
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65536:  # noqa: PLR2004 - as ports are numbered
            raise VerlOtelError(f"{variable}={text!r}: give a port, or host:port")
        addresses[name] = show_address(host or (outside if listener.outside else HOST), int(port))
    return addresses


def _find_free(outside: str) -> dict[str, str]:
    """Return free ports. All are bound at once, so that none is returned twice.

    Raises:
        VerlOtelError: This machine does not have the address.
    """
    with contextlib.ExitStack() as held:
        addresses = {}
        for name, listener in LISTENERS.items():
            host = outside if listener.outside else HOST
            probe = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            try:
                probe.bind((host, 0))
            except OSError as error:
                raise VerlOtelError(f"{host} cannot be bound: {os.strerror(error.errno or 0)}") from None
            addresses[name] = show_address(host, probe.getsockname()[1])
    return addresses


def check_free(addresses: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Check that the ports of the stack are free.

    Raises:
        VerlOtelError: A port is in use; the message names it and the variable that changes it.
    """
    for name in names:
        host, _, port = addresses[name].rpartition(":")
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the programs do
            try:
                probe.bind((host.strip("[]"), int(port)))
            except OSError as error:
                listener = LISTENERS[name]
                raise VerlOtelError(
                    f"{addresses[name]} ({listener.text}) cannot be bound: {os.strerror(error.errno or 0)}; "
                    f"{listener.variable} moves it, --free-ports moves all"
                ) from None
