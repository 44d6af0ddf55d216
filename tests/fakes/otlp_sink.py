# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A local OTLP/HTTP sink: keeps what it was sent, decoded with the official messages."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Sink:
    """Listens on a free port of the loopback while in use."""

    def __init__(self):
        self.traces, self.metrics = [], []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path.endswith("/traces"):
                    sink.traces.append(ExportTraceServiceRequest.FromString(body))
                else:
                    sink.metrics.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def span_ids(self):
        """Ids of every span received."""
        return [
            span.span_id.hex()
            for request in self.traces
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    def numbers(self):
        """The last value of every number point received: (name, labels) to value."""
        found = {}
        for request in self.metrics:
            for group in request.resource_metrics:
                instance = next(
                    pair.value.string_value for pair in group.resource.attributes if pair.key == "service.instance.id"
                )
                for scope in group.scope_metrics:
                    for metric in scope.metrics:
                        for point in getattr(metric, metric.WhichOneof("data")).data_points:
                            labels = tuple((pair.key, pair.value.string_value) for pair in point.attributes)
                            kind = point.WhichOneof("value") if hasattr(point, "as_double") else None
                            value = getattr(point, kind) if kind else point.count
                            found[(metric.name, labels, instance)] = value
        return found
