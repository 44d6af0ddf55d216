# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One OTLP request over HTTP or gRPC, and what its answer means."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from verl_otel._version import __version__
from verl_otel.errors import ConfigError

if TYPE_CHECKING:
    from verl_otel.exporting.endpoint import Endpoint

_RETRYABLE_HTTP: Final = frozenset({429, 502, 503, 504})
"""OTLP/HTTP specification, "Failures"."""
_RETRYABLE_GRPC: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS", "RESOURCE_EXHAUSTED"}
)


class Answer(NamedTuple):
    """What came of one request."""

    ok: bool
    retry: bool = False
    """Whether the same request may succeed later."""
    wait: float = 0.0
    """Seconds that the server asked us to wait (``Retry-After``)."""
    reason: str = ""
    rejected: int = 0
    """Items that the server says it did not take although it accepted the request."""


class Transport(Protocol):
    """Sends encoded requests of one signal."""

    def send(self, body: bytes, timeout: float) -> Answer:
        """Send one request; never raises."""

    def close(self) -> None:
        """Give up the connection."""


def connect(endpoint: Endpoint) -> Transport:
    """Return the transport of an endpoint.

    Raises:
        ConfigError: gRPC is asked for and not installed.
    """
    return _Grpc(endpoint) if endpoint.protocol == "grpc" else _Http(endpoint)


class _Http:
    def __init__(self, endpoint: Endpoint) -> None:
        import requests

        self._errors = requests.exceptions.RequestException
        self._endpoint = endpoint
        self._session = requests.Session()
        self._session.verify = endpoint.certificate or True
        if endpoint.client_certificate:
            key = endpoint.client_key
            self._session.cert = (endpoint.client_certificate, key) if key else endpoint.client_certificate
        self._session.headers["User-Agent"] = f"verl-otel/{__version__}"
        self._session.headers["Content-Type"] = "application/x-protobuf"
        if endpoint.compression != "none":
            self._session.headers["Content-Encoding"] = endpoint.compression

    def send(self, body: bytes, timeout: float) -> Answer:
        try:
            headers = self._endpoint.fresh_headers()
            data = _compress(body, self._endpoint.compression)
            response = self._session.post(
                self._endpoint.url,
                data=data,
                headers=headers,
                timeout=min(timeout, self._endpoint.timeout),
                allow_redirects=False,
            )
        except OSError as error:  # RequestException is one, an unreadable token or certificate another
            return Answer(ok=False, retry=True, reason=f"cannot reach {self._endpoint.url}: {type(error).__name__}")
        if response.ok:
            return Answer(ok=True, rejected=_rejected(self._endpoint.signal, response.content))
        retry = response.status_code in _RETRYABLE_HTTP
        wait = _retry_after(response.headers.get("Retry-After", ""))
        return Answer(
            ok=False, retry=retry, wait=wait, reason=f"{self._endpoint.url} answers HTTP {response.status_code}"
        )

    def close(self) -> None:
        self._session.close()


class _Grpc:
    def __init__(self, endpoint: Endpoint) -> None:
        try:
            import grpc
        except ImportError:
            raise ConfigError("OTEL_EXPORTER_OTLP_PROTOCOL='grpc' needs: pip install 'verl-otel[grpc]'") from None
        self._grpc: Any = grpc
        self._endpoint = endpoint
        scheme, _, rest = endpoint.url.rpartition("://")
        target = rest.rstrip("/")
        compression = grpc.Compression.Gzip if endpoint.compression == "gzip" else grpc.Compression.NoCompression
        if scheme == "https":
            credentials = grpc.ssl_channel_credentials(
                *map(_read_file, (endpoint.certificate, endpoint.client_key, endpoint.client_certificate))
            )
            self._channel = grpc.secure_channel(target, credentials, compression=compression)
        else:
            self._channel = grpc.insecure_channel(target, compression=compression)
        kind = endpoint.signal.removesuffix("s")
        method = f"/opentelemetry.proto.collector.{endpoint.signal if kind == 'metric' else kind}.v1.{kind.title()}{'s' if kind == 'metric' else ''}Service/Export"
        self._call = self._channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)

    def send(self, body: bytes, timeout: float) -> Answer:
        try:
            metadata = tuple(self._endpoint.fresh_headers().items())
            answer = self._call(body, timeout=min(timeout, self._endpoint.timeout), metadata=metadata)
        except OSError as error:
            return Answer(ok=False, retry=True, reason=f"cannot read {error.filename}")
        except self._grpc.RpcError as error:
            code = error.code().name
            return Answer(ok=False, retry=code in _RETRYABLE_GRPC, reason=f"{self._endpoint.url} answers gRPC {code}")
        return Answer(ok=True, rejected=_rejected(self._endpoint.signal, answer))

    def close(self) -> None:
        self._channel.close()


def _compress(body: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(body, compresslevel=1)  # level 9 costs ten times as much for a tenth fewer bytes
    if compression == "deflate":
        return zlib.compress(body, 1)
    return body


def _read_file(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _retry_after(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 300.0)
    except ValueError:
        return 0.0


def _rejected(signal: str, body: bytes) -> int:
    """Return the number of items in the answer's ``partial_success``."""
    if not body:
        return 0
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    try:
        if signal == "traces":
            return int(trace_service_pb2.ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
        return int(
            metrics_service_pb2.ExportMetricsServiceResponse.FromString(body).partial_success.rejected_data_points
        )
    except DecodeError:
        return 0
