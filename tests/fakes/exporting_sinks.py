# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Servers that stand for a Collector: they keep what they were sent and answer as they were told; and what talks to them."""

import gzip
import math
import threading
import time
import urllib.request
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from verl_otel.exporting.otlp.transport import connect, load_endpoint

DECODERS = {None: bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}
REQUESTS = {"traces": ExportTraceServiceRequest, "metrics": ExportMetricsServiceRequest}


class Request(NamedTuple):
    path: str
    headers: dict
    body: bytes
    time: float

    @property
    def signal(self):
        return self.path.rpartition("/")[2]


class Kept:
    """What arrived; only what was answered with success counts as kept."""

    def __init__(self):
        self.requests, self.kept = [], []

    def of(self, signal):
        return [request for request in list(self.requests) if request.signal == signal]

    def messages(self, signal):
        return [REQUESTS[signal].FromString(each.body) for each in list(self.kept) if each.signal == signal]

    def span_ids(self):
        """How often each span was kept, by the number of its id."""
        groups = [group for message in self.messages("traces") for group in message.resource_spans]
        spans = [span for group in groups for scope in group.scope_spans for span in scope.spans]
        return Counter(int.from_bytes(span.span_id, "big") for span in spans)

    def values(self):
        """The values of each metric in the order in which they were kept."""
        found = {}
        for message in self.messages("metrics"):
            for metric in message.resource_metrics[0].scope_metrics[0].metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    found.setdefault(metric.name, []).append(getattr(point, point.WhichOneof("value")))
        return found


class HttpSink(Kept):
    """A server on a free port of the loopback.

    ``answers`` maps a signal to ``(status, headers, body)``, or to a list of them that is used up, after which all is well.
    ``hold`` names the signals whose requests wait for `release`. ``limit``: larger bodies are answered with 413.
    """

    def __init__(self, tls=None):
        super().__init__()
        self.answers = {}
        self.hold = set()
        self.limit = math.inf
        self._released = threading.Event()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                sink.serve(self)

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = False  # so that closing waits for the handlers
            request_queue_size = 64

            def handle_error(self, request, address):
                pass  # the client went away

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_port
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def release(self):
        """Let the requests go on that are held, and all later ones."""
        self.hold.clear()
        self._released.set()

    def serve(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        headers = {key.lower(): value for key, value in handler.headers.items()}
        decoded = DECODERS[headers.get("content-encoding")](body)
        request = Request(handler.path, headers, decoded, time.monotonic())
        self.requests.append(request)
        if request.signal in self.hold:
            self._released.wait(30)
        answer = self.answers.get(request.signal, (200, {}, b""))
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else (200, {}, b"")
        status, extra, content = answer if len(decoded) <= self.limit else (413, {}, b"")
        if status < 300:
            self.kept.append(request)
        handler.send_response(status)
        for key, value in extra.items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


class GrpcSink(Kept):
    """A gRPC server on a free port of the loopback; ``failures`` are status codes that are used up, ``peers`` who has called."""

    def __init__(self, grpc, credentials=None, host="127.0.0.1"):
        super().__init__()
        self.failures, self.rejected, self.peers = [], 0, []
        self._server = grpc.server(ThreadPoolExecutor(2))
        add = self._server.add_secure_port if credentials else self._server.add_insecure_port
        self.port = add(f"{host}:0", *([credentials] if credentials else []))
        self.url = f"{'https' if credentials else 'http'}://{host}:{self.port}"
        for signal, word, field in (("traces", "trace", "spans"), ("metrics", "metrics", "data_points")):
            service = f"opentelemetry.proto.collector.{word}.v1.{word.title()}Service"
            export = grpc.unary_unary_rpc_method_handler(
                lambda body, context, signal=signal, field=field: self._export(signal, field, body, context)
            )
            handler = grpc.method_handlers_generic_handler(service, {"Export": export})
            self._server.add_generic_rpc_handlers((handler,))

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *error):
        self._server.stop(None).wait()

    def _export(self, signal, field, body, context):
        metadata = dict(context.invocation_metadata())
        request = Request(signal, metadata, body, time.monotonic())
        self.requests.append(request)
        self.peers.append(context.peer())
        if self.failures:
            context.abort(self.failures.pop(0), "as told")
        self.kept.append(request)
        response = ExportTraceServiceResponse() if signal == "traces" else ExportMetricsServiceResponse()
        setattr(response.partial_success, f"rejected_{field}", self.rejected)
        return response.SerializeToString()


@contextmanager
def transport(url, signal="traces", token_file=None, **variables):
    """Connect to a URL; further variables are given without their common prefix."""
    environ = {f"OTEL_EXPORTER_OTLP_{key}": value for key, value in variables.items()}
    made = connect(load_endpoint(signal, token_file, {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **environ}))
    try:
        yield made
    finally:
        made.close()


def send(url, signal="traces", body=b"a request", timeout=60.0, **variables):
    """Send one request and return its answer."""
    with transport(url, signal, **variables) as made:
        return made.send(body, timeout)


def scrape(url, accept="text/plain"):
    """Return the text of a scrape."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers={"Accept": accept}), timeout=60) as answer:
        assert answer.status == 200
        return answer.read().decode()
