# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Addresses of the stack's components: the loopback, with default ports, ports from the environment, or free ports."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

from verl_otel.errors import VerlOtelError

HOST: Final = "127.0.0.1"


class Listener(NamedTuple):
    """A listener: its default port, and the variable that changes it."""

    port: int
    variable: str
    text: str


LISTENERS: Final = {
    "grpc": Listener(4317, "OTELCOL_GRPC", "OTLP/gRPC"),
    "http": Listener(4318, "OTELCOL_HTTP", "OTLP/HTTP"),
    "metrics": Listener(8889, "OTELCOL_METRICS", "what Prometheus scrapes"),
    "self": Listener(8888, "OTELCOL_SELF_PORT", "the Collector's own metrics"),
    "health": Listener(13133, "OTELCOL_HEALTH", "the Collector's health"),
    "store": Listener(14317, "OTELCOL_TRACE_STORE", "Tempo's OTLP"),
    "prometheus": Listener(9090, "STACK_PROMETHEUS", "Prometheus"),
    "tempo": Listener(3200, "STACK_TEMPO", "Tempo"),
    "tempo-grpc": Listener(9095, "STACK_TEMPO_GRPC", "Tempo, inside"),
    "grafana": Listener(3000, "STACK_GRAFANA", "Grafana"),
}
"""Every port of the stack. The Collector's variables are those of its configuration files."""


def choose(environ: Mapping[str, str], *, free: bool = False) -> dict[str, str]:
    """Return ``host:port`` of every listener, by its name.

    Args:
        environ: The environment: variables contain ``port`` or ``host:port``.
        free: Let the operating system choose the ports, and ignore the variables.

    Raises:
        VerlOtelError: A variable has no port in it.
    """
    if free:
        return _find_free()
    addresses = {}
    for name, listener in LISTENERS.items():
        text = environ.get(listener.variable, "").strip() or str(listener.port)
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65536:  # noqa: PLR2004 - as ports are numbered
            raise VerlOtelError(f"{listener.variable}={text!r}: give a port, or host:port")
        addresses[name] = f"{host or HOST}:{port}"
    return addresses


def _find_free() -> dict[str, str]:
    """Return free ports. All are bound at once, so that none is returned twice."""
    with contextlib.ExitStack() as held:
        addresses = {}
        for name in LISTENERS:
            probe = held.enter_context(socket.socket())
            probe.bind((HOST, 0))
            addresses[name] = f"{HOST}:{probe.getsockname()[1]}"
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
