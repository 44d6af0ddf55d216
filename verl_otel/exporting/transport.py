# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One OTLP request over HTTP or gRPC, and what its answer means."""

from __future__ import annotations

import gzip
import time
import zlib
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from verl_otel._version import __version__
from verl_otel.errors import ConfigError

if TYPE_CHECKING:
    from verl_otel.exporting.endpoint import Endpoint

MAX_ANSWER: Final = 4096
"""Bytes of an answer that are read; it has a number and a line of text."""
_RETRYABLE_HTTP: Final = frozenset({429, 502, 503, 504})
"""OTLP/HTTP specification, "Failures"."""
_RETRYABLE_GRPC: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
_BROKEN_GRPC: Final = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE"})
"""After these the next request has a connection of its own: gRPC keeps one that the network has forgotten, and certificates, for ever."""


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

        self._endpoint = endpoint
        self._session = requests.Session()
        user = requests.utils.get_auth_from_url(endpoint.url)
        # A user in the URL counts; without one requests would look into ~/.netrc and replace our token by what it finds.
        self._session.auth = user if any(user) and "authorization" not in endpoint.headers else _as_it_is
        if endpoint.client_certificate:
            key = endpoint.client_key
            self._session.cert = (endpoint.client_certificate, key) if key else endpoint.client_certificate
        self._session.headers["User-Agent"] = f"verl-otel/{__version__}"
        self._session.headers["Content-Type"] = "application/x-protobuf"
        if endpoint.compression != "none":
            self._session.headers["Content-Encoding"] = endpoint.compression

    def send(self, body: bytes, timeout: float) -> Answer:
        seconds = min(timeout, self._endpoint.timeout)
        deadline = time.monotonic() + seconds
        try:
            with self._session.post(
                self._endpoint.url,
                data=_compress(body, self._endpoint.compression),
                headers=self._endpoint.fresh_headers(),
                timeout=seconds,
                allow_redirects=False,
                stream=True,
                verify=self._endpoint.certificate or None,  # of the session it would lose against REQUESTS_CA_BUNDLE
            ) as response:
                if 200 <= response.status_code < 300:  # noqa: PLR2004 - a redirect, to a login page perhaps, is no success
                    return Answer(ok=True, rejected=_rejected(self._endpoint.signal, _read(response.raw, deadline)))
                wait = _retry_after(response.headers.get("Retry-After", ""))
                status = response.status_code
        except (
            Exception
        ) as error:  # also what is no OSError: a header or host that cannot be encoded, a token that is no text
            return Answer(ok=False, retry=True, reason=f"cannot reach {self._endpoint.shown}: {type(error).__name__}")
        reason = f"{self._endpoint.shown} answers HTTP {status}"
        return Answer(ok=False, retry=status in _RETRYABLE_HTTP, wait=wait, reason=reason)

    def close(self) -> None:
        self._session.close()


def _as_it_is(request: Any) -> Any:
    return request


def _read(raw: Any, deadline: float) -> bytes:
    """Read an answer's body: a few bytes as a rule, never for longer than the request may take."""
    body = bytearray()
    while len(body) < MAX_ANSWER and time.monotonic() < deadline:
        piece = raw.read(1, decode_content=True)
        if not piece:
            break
        body += piece
    return bytes(body)


class _Grpc:
    def __init__(self, endpoint: Endpoint) -> None:
        try:
            import grpc
        except ImportError:
            raise ConfigError("OTEL_EXPORTER_OTLP_PROTOCOL='grpc' needs: pip install 'verl-otel[grpc]'") from None
        self._grpc: Any = grpc
        self._endpoint = endpoint
        self._channel: Any = None
        self._connect()

    def _connect(self) -> None:
        """Make a connection of our own, with the certificates of this moment: they may have been renewed."""
        grpc, endpoint = self._grpc, self._endpoint
        scheme, _, rest = endpoint.url.rpartition("://")
        target = rest.partition("/")[0].rpartition("@")[2]
        kinds = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
        compression = kinds.get(endpoint.compression, grpc.Compression.NoCompression)
        options = [("grpc.use_local_subchannel_pool", 1)]  # a shared one would outlive us, with what is wrong with it
        if scheme == "https":
            credentials = grpc.ssl_channel_credentials(
                *map(_read_file, (endpoint.certificate, endpoint.client_key, endpoint.client_certificate))
            )
            self._channel = grpc.secure_channel(target, credentials, options, compression)
        else:
            self._channel = grpc.insecure_channel(target, options, compression)
        kind = endpoint.signal.removesuffix("s")
        method = f"/opentelemetry.proto.collector.{endpoint.signal if kind == 'metric' else kind}.v1.{kind.title()}{'s' if kind == 'metric' else ''}Service/Export"
        self._call = self._channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)

    def send(self, body: bytes, timeout: float) -> Answer:
        try:
            if self._channel is None:
                self._connect()
            metadata = tuple(self._endpoint.fresh_headers().items())
            answer = self._call(body, timeout=min(timeout, self._endpoint.timeout), metadata=metadata)
        except self._grpc.RpcError as error:
            code = error.code().name
            retry = code in _RETRYABLE_GRPC or (code == "RESOURCE_EXHAUSTED" and _says_when(error))
            if code in _BROKEN_GRPC:
                self.close()
            return Answer(ok=False, retry=retry, reason=f"{self._endpoint.shown} answers gRPC {code}")
        except Exception as error:  # its text may hold a header, which is a secret
            return Answer(ok=False, retry=True, reason=f"cannot reach {self._endpoint.shown}: {type(error).__name__}")
        return Answer(ok=True, rejected=_rejected(self._endpoint.signal, answer))

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _says_when(error: Any) -> bool:
    """Return whether the server asks for a retry (``RetryInfo``); else the request is too large and always will be."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return b"google.rpc.RetryInfo" in details


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
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return 0.0
    return min(max(seconds, 0.0), 300.0) if seconds == seconds else 0.0


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
