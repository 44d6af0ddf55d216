# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A local OTLP/HTTP sink: keeps what it was sent, decoded with the official messages."""

import gzip

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.http_server import HttpServer


class Sink:
    """Listens on a free port of the loopback while in use."""

    def __init__(self):
        self.traces, self.metrics, self.logs = [], [], []
        kept = {
            "traces": (self.traces, ExportTraceServiceRequest),
            "metrics": (self.metrics, ExportMetricsServiceRequest),
            "logs": (self.logs, ExportLogsServiceRequest),
        }

        def keep(call):
            body = gzip.decompress(call.body) if call.headers.get("content-encoding") == "gzip" else call.body
            requests, message = kept[call.path.rpartition("/")[2]]
            requests.append(message.FromString(body))
            return 200

        self._server = HttpServer(keep)
        self.endpoint = self._server.url

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *error):
        self._server.close()

    def spans(self):
        """Every span received."""
        groups = [group for request in self.traces for group in request.resource_spans]
        return [span for group in groups for scope in group.scope_spans for span in scope.spans]

    def span_ids(self):
        """Ids of every span received."""
        return [span.span_id.hex() for span in self.spans()]

    def named(self, name):
        """Every metric received under a name."""
        scopes = [
            scope for request in self.metrics for group in request.resource_metrics for scope in group.scope_metrics
        ]
        return [metric for scope in scopes for metric in scope.metrics if metric.name == name]

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


def read_sums(sink, name="my.things"):
    """Return temporality and value of every point of a sum that a sink has received."""
    sums = [metric.sum for metric in sink.named(name)]
    return [(each.aggregation_temporality, point.as_int) for each in sums for point in each.data_points]
