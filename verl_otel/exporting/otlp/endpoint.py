# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP endpoints from OpenTelemetry's variables (``OTEL_EXPORTER_OTLP_*``, specification "OTLP exporter")."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from verl_otel.errors import ConfigError
from verl_otel.exporting.delta_temporality import PREFERENCES
from verl_otel.model import SIGNALS

_PROTOCOLS: Final = ("http/protobuf", "grpc")
_COMPRESSIONS: Final = ("none", "gzip", "deflate")
EXPLICIT: Final = "explicit_bucket_histogram"
EXPONENTIAL: Final = "base2_exponential_bucket_histogram"
HISTOGRAMS: Final = (EXPLICIT, EXPONENTIAL)
"""Words of ``OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION``. Source: OpenTelemetry's specification, "OTLP exporter"."""


@dataclass(frozen=True)
class Endpoint:
    """Endpoint and options of one signal."""

    signal: str
    url: str = field(repr=False)
    protocol: str
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    """Seconds for one request (the variable is in seconds, as in the Python SDK)."""
    compression: str
    certificate: str | None
    client_certificate: str | None
    client_key: str | None
    token_file: Path | None
    temporality: str
    """Of metrics: a word of `PREFERENCES`."""
    histograms: str
    """Aggregation of the user's own histograms: a word of `HISTOGRAMS`."""

    @property
    def shown(self) -> str:
        """The URL without user, password and query, which may be secret."""
        return hide(self.url)

    def fresh_headers(self) -> dict[str, str]:
        """Return the headers with the current token, which may have been renewed."""
        headers = dict(self.headers)
        if self.token_file is not None:
            headers["authorization"] = f"Bearer {self.token_file.read_text('utf-8').strip()}"
        return headers


def load_endpoint(signal: str, token_file: Path | None = None, environ: Mapping[str, str] | None = None) -> Endpoint:
    """Return the endpoint of a signal of `SIGNALS`.

    Raises:
        ConfigError: A variable has a value that cannot be used.
    """
    values = os.environ if environ is None else environ

    own_prefix, prefix = f"OTEL_EXPORTER_OTLP_{signal.upper()}_", "OTEL_EXPORTER_OTLP_"

    def find(name: str, default: str = "") -> tuple[str, str]:
        """Return the variable that applies and its value."""
        for variable in (own_prefix + name, prefix + name):
            value = values.get(variable, "").strip()
            if value:
                return variable, value
        return prefix + name, default

    def read(name: str) -> str:
        return find(name)[1]

    protocol = _one_of(*find("PROTOCOL", "http/protobuf"), _PROTOCOLS)
    variable, given = find("ENDPOINT", "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318")
    own = variable.startswith(own_prefix)
    url = _with_scheme(variable, given, protocol, insecure=read("INSECURE").lower() == "true")
    if not own and protocol != "grpc":
        url = f"{url.rstrip('/')}/v1/{signal}"
    compression_variable, compression = find("COMPRESSION", "none")
    temporality_variable = f"{prefix}METRICS_TEMPORALITY_PREFERENCE"
    temporality = values.get(temporality_variable, "").strip() or "cumulative"
    histograms_variable = f"{prefix}METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
    histograms = values.get(histograms_variable, "").strip() or EXPLICIT
    return Endpoint(
        signal=signal,
        url=url,
        protocol=protocol,
        headers=_parse_headers(read("HEADERS")),
        timeout=_seconds(*find("TIMEOUT", "10")),
        compression=_one_of(compression_variable, compression.lower(), _COMPRESSIONS),
        certificate=read("CERTIFICATE") or None,
        client_certificate=read("CLIENT_CERTIFICATE") or None,
        client_key=read("CLIENT_KEY") or None,
        token_file=token_file,
        temporality=_one_of(temporality_variable, temporality.lower(), PREFERENCES),
        histograms=_one_of(histograms_variable, histograms.lower(), HISTOGRAMS),
    )


def _with_scheme(variable: str, given: str, protocol: str, *, insecure: bool) -> str:
    """Return an endpoint with its scheme in lower case.

    With gRPC it may have none: then the connection is encrypted unless ``OTEL_EXPORTER_OTLP_INSECURE`` is true (OpenTelemetry's specification,
    "OTLP exporter"). What is not understood is an error, so that no token is sent in the clear by mistake.
    """
    scheme, separator, rest = given.partition("://")
    if separator:
        scheme = scheme.lower()
    elif protocol == "grpc":
        scheme, rest = "http" if insecure else "https", given
    if scheme not in ("http", "https") or not rest:
        forms = (
            "host:port, http://host:port or https://host:port"
            if protocol == "grpc"
            else "http://host:port or https://host:port"
        )
        raise ConfigError(f"{variable}={hide(given)!r}: use {forms}")
    return f"{scheme}://{rest}"


def sent_signals(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the signals that are sent. With endpoints of single signals only, the others are not: their default address has no receiver."""
    values = os.environ if environ is None else environ

    def is_set(name: str) -> bool:
        return bool(values.get(name, "").strip())

    own = frozenset(signal for signal in SIGNALS if is_set(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"))
    return frozenset(SIGNALS) if is_set("OTEL_EXPORTER_OTLP_ENDPOINT") or not own else own


def hide(url: str) -> str:
    """Return a URL without user, password and query: they may be secrets, and the URL is logged."""
    scheme, separator, rest = url.rpartition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _one_of(variable: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{variable}={value!r}: use one of {', '.join(allowed)}")
    return value


def _seconds(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 3600:  # noqa: PLR2004 - an hour
        raise ConfigError(f"{variable}={text!r}: use seconds, more than 0 and up to 3600")
    return value


def _parse_headers(text: str) -> dict[str, str]:
    """Read ``key=value,key2=value2`` with percent-encoded values; what has no ``=`` is left out (it is never logged)."""
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {unquote(key.strip()).lower(): unquote(value.strip()) for key, _, value in pairs if key.strip()}
