# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Where OTLP goes, by OpenTelemetry's own variables (``OTEL_EXPORTER_OTLP_*``, specification "OTLP exporter")."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from verl_otel.errors import ConfigError

SIGNALS: Final = ("traces", "metrics")
_PROTOCOLS: Final = ("http/protobuf", "grpc")
_COMPRESSIONS: Final = ("none", "gzip", "deflate")


@dataclass(frozen=True)
class Endpoint:
    """Where and how one signal is sent."""

    signal: str
    url: str
    protocol: str
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    """Seconds for one request (the Python SDK reads the variable as seconds, and so do we)."""
    compression: str
    certificate: str | None
    client_certificate: str | None
    client_key: str | None
    token_file: Path | None

    def fresh_headers(self) -> dict[str, str]:
        """Return the headers with the token of this moment: it may have been renewed."""
        headers = dict(self.headers)
        if self.token_file is not None:
            headers["authorization"] = f"Bearer {self.token_file.read_text('utf-8').strip()}"
        return headers


def load_endpoint(signal: str, token_file: Path | None = None, environ: Mapping[str, str] | None = None) -> Endpoint:
    """Return the endpoint of ``traces`` or ``metrics``.

    Raises:
        ConfigError: A variable has a value that cannot be used.
    """
    values = os.environ if environ is None else environ

    def read(name: str, default: str = "") -> str:
        own = values.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", "")
        return (own or values.get(f"OTEL_EXPORTER_OTLP_{name}", "") or default).strip()

    protocol = _one_of("PROTOCOL", read("PROTOCOL", "http/protobuf"), _PROTOCOLS)
    own_url = values.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "").strip()
    base = values.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or _default_url(protocol)
    url = own_url or (base if protocol == "grpc" else f"{base.rstrip('/')}/v1/{signal}")
    if protocol != "grpc" and not url.startswith(("http://", "https://")):
        raise ConfigError(f"OTEL_EXPORTER_OTLP_ENDPOINT={base!r}: use http://host:port or https://host:port")
    return Endpoint(
        signal=signal,
        url=url,
        protocol=protocol,
        headers=_parse_headers(read("HEADERS")),
        timeout=_seconds(read("TIMEOUT", "10")),
        compression=_one_of("COMPRESSION", read("COMPRESSION", "none").lower(), _COMPRESSIONS),
        certificate=read("CERTIFICATE") or None,
        client_certificate=read("CLIENT_CERTIFICATE") or None,
        client_key=read("CLIENT_KEY") or None,
        token_file=token_file,
    )


def _default_url(protocol: str) -> str:
    return "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_{name}={value!r}: use one of {', '.join(allowed)}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 3600:  # noqa: PLR2004 - an hour
        raise ConfigError(f"OTEL_EXPORTER_OTLP_TIMEOUT={text!r}: use seconds, more than 0 and up to 3600")
    return value


def _parse_headers(text: str) -> dict[str, str]:
    """Read ``key=value,key2=value2`` with percent-encoded values; what has no ``=`` is left out (it is never logged)."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {unquote(key.strip()).lower(): unquote(value.strip()) for key, _, value in pairs}
