# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP endpoints from the variables of OpenTelemetry (``OTEL_EXPORTER_OTLP_*``, specification "OTLP exporter"), and requests to them over HTTP or gRPC."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote

from verl_otel._internal.masking import hide_url
from verl_otel._internal.printable import show
from verl_otel._version import __version__
from verl_otel.config import note_ignored
from verl_otel.errors import ConfigError
from verl_otel.model import SIGNALS

_PROTOCOLS: Final = ("http/protobuf", "grpc")
_COMPRESSIONS: Final = ("none", "gzip", "deflate")
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds; the specification has it as 10,000 milliseconds."""
MILLISECONDS: Final = 1000
"""Value of a time-out from which on it is in milliseconds."""
EXPLICIT: Final = "explicit_bucket_histogram"
EXPONENTIAL: Final = "base2_exponential_bucket_histogram"
PREFERENCES: Final = ("cumulative", "delta", "lowmemory")
"""Words of ``OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE``. Source: OpenTelemetry's specification, "OTLP exporter"."""
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
    """Seconds for one request."""
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
        return hide_url(self.url)

    def fresh_headers(self) -> dict[str, str]:
        """Return the headers with the current token, which may have been renewed."""
        headers = dict(self.headers)
        if self.token_file is not None:
            headers["authorization"] = f"Bearer {self.token_file.read_text('utf-8').strip()}"
        return headers


def load_endpoint(signal: str, token_file: Path | None = None, environ: Mapping[str, str] | None = None) -> Endpoint:
    """Return the endpoint of a signal of `SIGNALS`.

    Raises:
        ConfigError: The address cannot be used. Of the other variables such values are ignored, with one line in the log.
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

    protocol = _one_of(*find("PROTOCOL"), _PROTOCOLS)
    variable, given = find("ENDPOINT", "http://localhost:4317" if protocol == "grpc" else "http://localhost:4318")
    own = variable.startswith(own_prefix)
    url = _with_scheme(variable, given, protocol, insecure=read("INSECURE").lower() == "true")
    if not own and protocol != "grpc":
        url = f"{url.rstrip('/')}/v1/{signal}"
    compression_variable, compression = find("COMPRESSION")
    temporality_variable = f"{prefix}METRICS_TEMPORALITY_PREFERENCE"
    temporality = values.get(temporality_variable, "").strip()
    histograms_variable = f"{prefix}METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
    histograms = values.get(histograms_variable, "").strip()
    return Endpoint(
        signal=signal,
        url=url,
        protocol=protocol,
        headers=_parse_headers(*find("HEADERS")),
        timeout=_seconds(*find("TIMEOUT")),
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
        raise ConfigError(f"{variable}={hide_url(given)!r}: use {forms}")
    return f"{scheme}://{rest}"


def sent_signals(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the signals that are sent. With endpoints of single signals only, the others are not: their default address has no receiver."""
    values = os.environ if environ is None else environ

    def is_set(name: str) -> bool:
        return bool(values.get(name, "").strip())

    own = frozenset(signal for signal in SIGNALS if is_set(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"))
    return frozenset(SIGNALS) if is_set("OTEL_EXPORTER_OTLP_ENDPOINT") or not own else own


def _one_of(variable: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return one of the allowed values, the first of which is the default."""
    if value and value not in allowed:
        note_ignored(variable, f"{variable}={value!r}: use one of {', '.join(allowed)}")
    return value if value in allowed else allowed[0]


def _seconds(variable: str, text: str) -> float:
    """Return a time-out in seconds.

    From `MILLISECONDS` on it is in milliseconds, as in OpenTelemetry's specification; below in seconds, as in OpenTelemetry's SDK for Python.

    Example:
        _seconds("OTEL_EXPORTER_OTLP_TIMEOUT", "10000") == _seconds("OTEL_EXPORTER_OTLP_TIMEOUT", "10") == 10.0
    """
    try:
        value = float(text or DEFAULT_TIMEOUT)
    except ValueError:
        value = 0
    seconds = value / 1000 if value >= MILLISECONDS else value
    if not 0 < seconds <= 3600:  # noqa: PLR2004 - an hour
        note_ignored(variable, f"{variable}={text!r}: use seconds below {MILLISECONDS}, or milliseconds up to an hour")
        return DEFAULT_TIMEOUT
    return seconds


def _parse_headers(variable: str, text: str) -> dict[str, str]:
    """Read ``key=value,key2=value2`` with percent-encoded values.

    What is no such pair is left out, and its text is never logged: it may be a secret.
    """
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    found = {
        unquote(key.strip()).lower(): unquote(value.strip()) for key, equals, value in pairs if equals and key.strip()
    }
    broken = [str(place) for place, (key, equals, _) in enumerate(pairs, 1) if not (equals and key.strip())]
    if broken:
        note_ignored(variable, f"{variable}: part {', '.join(broken)} is no key=value", "it is left out")
    return found


MAX_ANSWER: Final = 4096
"""Bytes of a response that are read; it has a number and a line of text."""
_RETRYABLE_HTTP: Final = frozenset({429, 502, 503, 504})
"""OTLP/HTTP specification, "Failures"."""
_UNSUPPORTED_HTTP: Final = frozenset({404, 405, 501})
_RETRYABLE_GRPC: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
_BROKEN_GRPC: Final = frozenset({"DEADLINE_EXCEEDED", "UNAVAILABLE"})
"""After these the next request has a new connection: gRPC never replaces broken connections and old certificates."""


class Answer(NamedTuple):
    """Result of one request."""

    ok: bool
    retry: bool = False
    """Whether the same request may succeed later."""
    wait: float = 0.0
    """Seconds to wait that the server asked for (``Retry-After``)."""
    reason: str = ""
    rejected: int = 0
    """Items that the server rejected although it accepted the request (``partial_success``)."""
    unsupported: bool = False
    """Whether the server does not accept this signal at all."""
    doubt: str = ""
    """Why the server may be no receiver of OTLP although it accepted the request; empty: it answers as one does."""
    cut_short: bool = False
    """Whether it ended by a deadline of the caller before the time-out of the endpoint, so that the state of the endpoint is unknown."""


class Transport(Protocol):
    """Sends encoded requests of one signal."""

    def send(self, body: bytes, timeout: float) -> Answer:
        """Send one request; never raises."""

    def expire(self) -> None:
        """End a request that has taken longer than its time-out. Called by another thread than `send`."""

    def close(self) -> None:
        """Close the connection."""


def connect(endpoint: Endpoint) -> Transport:
    """Return the transport of an endpoint.

    Raises:
        ConfigError: gRPC is asked for and not installed.
    """
    return _Grpc(endpoint) if endpoint.protocol == "grpc" else _Http(endpoint)


_LOGGERS_OF_REQUESTS: Final = tuple(
    f"urllib3.{name}" for name in ("connection", "connectionpool", "response", "util.retry")
)


def _is_not_ours(record: logging.LogRecord) -> bool:  # noqa: ARG001 - the signature of a filter
    """Return whether the thread that logs is none of a sender.

    What a request logs, at level DEBUG a line each, would hold the lock of a handler while a full pipe is waited for, see
    `verl_otel._internal.log_lines`.
    """
    return not threading.current_thread().name.startswith("verl-otel-")


class _Http:
    def __init__(self, endpoint: Endpoint) -> None:
        import requests

        for name in _LOGGERS_OF_REQUESTS:
            logging.getLogger(name).addFilter(_is_not_ours)  # once: a filter that is there is not added again
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._connection: Any = None
        """The connection that was opened last."""
        self._until = float("inf")
        """When the request under way has to be answered (`time.monotonic`)."""
        self._session = requests.Session()
        adapter = _make_adapter(self._note_connection)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        user = requests.utils.get_auth_from_url(endpoint.url)
        # Credentials in the URL are used; without them requests would read ~/.netrc and replace the token.
        self._session.auth = user if any(user) and "authorization" not in endpoint.headers else _keep_unchanged
        if endpoint.client_certificate:
            key = endpoint.client_key
            self._session.cert = (endpoint.client_certificate, key) if key else endpoint.client_certificate
        self._session.headers["User-Agent"] = f"verl-otel/{__version__}"
        self._session.headers["Content-Type"] = "application/x-protobuf"
        self._session.headers["Accept-Encoding"] = (
            "identity"  # a response has a few bytes; a compressed one could expand in memory
        )
        if endpoint.compression != "none":
            self._session.headers["Content-Encoding"] = endpoint.compression

    def send(self, body: bytes, timeout: float) -> Answer:
        seconds = min(timeout, self._endpoint.timeout)
        until = time.monotonic() + seconds
        self._set_deadline(until)
        try:
            with self._session.post(
                self._endpoint.url,
                data=_compress(body, self._endpoint.compression),
                headers=self._endpoint.fresh_headers(),
                timeout=seconds,
                allow_redirects=False,
                stream=True,
                verify=self._endpoint.certificate
                or None,  # as attribute of the session, REQUESTS_CA_BUNDLE would override it
            ) as response:
                if 200 <= response.status_code < 300:  # noqa: PLR2004 - a redirect, to a login page perhaps, is no success
                    return _judge_success(self._endpoint, response)
                wait = _retry_after(response.headers.get("Retry-After", ""))
                status = response.status_code
        except (
            Exception
        ) as error:  # not only OSError: a header or host that cannot be encoded, a token that is not text
            is_late = time.monotonic() >= until
            shown = self._endpoint.shown
            return Answer(
                ok=False,
                retry=True,
                reason=f"{shown} gives no answer in time"
                if is_late
                else f"cannot reach {shown}: {type(error).__name__}",
                cut_short=seconds < self._endpoint.timeout and (is_late or _is_timeout(error)),
            )
        finally:
            self._set_deadline(float("inf"))
        reason = f"{self._endpoint.shown} answers HTTP {status}"
        return Answer(
            ok=False,
            retry=status in _RETRYABLE_HTTP,
            wait=wait,
            reason=reason,
            unsupported=status in _UNSUPPORTED_HTTP,
        )

    def _note_connection(self, connection: Any) -> None:
        self._connection = connection

    def _set_deadline(self, until: float) -> None:
        with self._lock:
            self._until = until

    def expire(self) -> None:
        # The time-out of `requests` is that of one read: an endpoint that sends a byte now and then would hold the thread for hours.
        with self._lock:
            if time.monotonic() > self._until and self._connection is not None:
                with contextlib.suppress(OSError, AttributeError, TypeError):  # it is not open yet, or not any more
                    # Not `SSLSocket.shutdown`, which changes what the other thread reads from.
                    socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._session.close()


def _make_adapter(note: Callable[[Any], None]) -> Any:
    """Return an adapter of ``requests`` that reports each connection before it is opened."""
    import requests
    from urllib3 import connection, connectionpool

    class Plain(connection.HTTPConnection):
        def connect(self) -> None:
            note(self)
            super().connect()

    class Secure(connection.HTTPSConnection):
        def connect(self) -> None:
            note(self)
            super().connect()

    class PlainPool(connectionpool.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(connectionpool.HTTPSConnectionPool):
        ConnectionCls = Secure

    pools = {"http": PlainPool, "https": SecurePool}

    class Adapter(requests.adapters.HTTPAdapter):
        def init_poolmanager(self, *args: Any, **keywords: Any) -> None:
            super().init_poolmanager(*args, **keywords)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, proxy: str, **keywords: Any) -> Any:
            manager = super().proxy_manager_for(proxy, **keywords)
            if proxy.lower().startswith("http"):  # pools of SOCKS have connections of their own
                manager.pool_classes_by_scheme = pools
            return manager

    return Adapter()


def _is_timeout(error: BaseException | None) -> bool:
    """Return whether an exception is a time-out, or was raised because of one; ``requests`` wraps some in a `ConnectionError`."""
    while error is not None:
        if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
            return True
        error = error.__cause__ or error.__context__
    return False


def _keep_unchanged(request: Any) -> Any:
    return request


_PAGES: Final = ("text/html", "application/xhtml+xml")


def _judge_success(endpoint: Endpoint, response: Any) -> Answer:
    """Return what a response says whose status is a success. A web application may answer every path with its page and 200.

    OTLP answers with an encoded message, which is empty where nothing was rejected. Some receivers answer in JSON, whatever was sent.
    """
    encoded = response.headers.get("Content-Encoding", "identity").lower() != "identity"
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    head = b"" if encoded else _read(response)
    if (kind in _PAGES and (head or encoded)) or head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        return Answer(ok=False, reason=f"{endpoint.shown} answers with a web page: it is no receiver of OTLP")
    body = head if len(head) < MAX_ANSWER else b""
    rejected = _rejected(endpoint.signal, body)
    if rejected is None and not _is_json_answer(body):
        doubt = f"{endpoint.shown} does not answer as a receiver of OTLP ({show(kind, 100) or 'no content type'})"
        return Answer(ok=True, doubt=doubt)
    return Answer(ok=True, rejected=rejected or 0)


def _is_json_answer(body: bytes) -> bool:
    """Return whether a body is OTLP's answer in JSON, which a receiver sends by mistake."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and not answer.keys() - {"partialSuccess", "partial_success"}


def _read(response: Any) -> bytes:
    """Return the beginning of the body of a response, empty if it is not usable: the status has shown that the request was accepted."""
    try:
        return bytes(response.raw.read(MAX_ANSWER, decode_content=False))
    except Exception:  # cut off, too late, or no valid chunk
        return b""


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
        """Open a connection with the current certificates, which may have been renewed."""
        grpc, endpoint = self._grpc, self._endpoint
        scheme, _, rest = endpoint.url.partition("://")
        target = rest.partition("/")[0].rpartition("@")[2]
        kinds = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
        compression = kinds.get(endpoint.compression, grpc.Compression.NoCompression)
        # a shared connection would outlive this channel, with its errors
        options = [("grpc.use_local_subchannel_pool", 1)]
        if scheme == "https":
            credentials = grpc.ssl_channel_credentials(
                *map(_read_file, (endpoint.certificate, endpoint.client_key, endpoint.client_certificate))
            )
            self._channel = grpc.secure_channel(target, credentials, options, compression)
        else:
            self._channel = grpc.insecure_channel(target, options, compression)
        kind = "trace" if endpoint.signal == "traces" else endpoint.signal
        method = f"/opentelemetry.proto.collector.{kind}.v1.{kind.title()}Service/Export"
        self._call = self._channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)

    def send(self, body: bytes, timeout: float) -> Answer:
        try:
            if self._channel is None:
                self._connect()
            metadata = tuple(self._endpoint.fresh_headers().items())
            answer = self._call(body, timeout=min(timeout, self._endpoint.timeout), metadata=metadata)
        except self._grpc.RpcError as error:
            code = error.code().name
            retry = code in _RETRYABLE_GRPC or (code == "RESOURCE_EXHAUSTED" and _has_retry_info(error))
            if code in _BROKEN_GRPC:
                self.close()
            reason = f"{self._endpoint.shown} answers gRPC {code}"
            return Answer(
                ok=False,
                retry=retry,
                reason=reason,
                unsupported=code == "UNIMPLEMENTED",
            )
        except Exception as error:  # its text may hold a header, which is a secret
            return Answer(ok=False, retry=True, reason=f"cannot reach {self._endpoint.shown}: {type(error).__name__}")
        return Answer(ok=True, rejected=_rejected(self._endpoint.signal, answer) or 0)

    def expire(self) -> None:
        """Do nothing: the deadline of gRPC is that of the whole call."""

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


def _has_retry_info(error: Any) -> bool:
    """Return whether the server asks for a retry (``RetryInfo``). Without it the request is too large, permanently."""
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


def _rejected(signal: str, body: bytes) -> int | None:
    """Return the number of items in the answer's ``partial_success``; None if it is no such message."""
    if not body:
        return 0
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    try:
        if signal == "traces":
            return int(trace_service_pb2.ExportTraceServiceResponse.FromString(body).partial_success.rejected_spans)
        if signal == "logs":
            return int(logs_service_pb2.ExportLogsServiceResponse.FromString(body).partial_success.rejected_log_records)
        return int(
            metrics_service_pb2.ExportMetricsServiceResponse.FromString(body).partial_success.rejected_data_points
        )
    except DecodeError:
        return None
