# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A load of a given rate on an agent and its gateway, and what both of them did with it."""

import http.client
import threading
import time
from dataclasses import asdict, dataclass

import psutil
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.collector.flood import ATTRIBUTES, RESOURCE, make_request, put

TRACES, SPANS = 16, 30
"""Trajectories in a request, and spans of each."""
PER_REQUEST = TRACES * SPANS
POINTS = PER_REQUEST // 4
MARK = 0x7665726C2D6F74
"""Seven bytes of every trace id, for which each request has others: of its second half, which is what the sampler remembers of a trace."""
FAILURES = [
    f"otelcol_exporter_{kind}_failed_{what}" for kind in ("enqueue", "send") for what in ("spans", "metric_points")
]


@dataclass(frozen=True)
class Outcome:
    """What came of a load."""

    asked: float
    """Spans per second."""
    seconds: float
    """How long it was sent."""
    accepted: int
    """Spans that the agent took."""
    refused: int
    """Requests that it refused; an SDK would send them again."""
    points: int
    """Points that the agent took."""
    drained: float
    """Seconds after the end until the gateway had all that the agent took."""
    lost: int
    """Spans and points that one of the two counts as failed."""
    agent_us: float
    """CPU time of the agent for a span and its share of points, in microseconds."""
    gateway_us: float
    agent_mib: float
    """The most memory it had."""
    gateway_mib: float
    queue: float
    """Spans that waited in the agent when the load ended."""

    @property
    def rate(self):
        """Spans per second that were really taken."""
        return self.accepted / self.seconds

    def describe(self):
        """Return a line for people."""
        return " ".join(f"{name}={value:.6g}" for name, value in {"rate": self.rate, **asdict(self)}.items())


def make_traces(numbers=range(SPANS, 0, -1), attributes=ATTRIBUTES):
    """Return a request with spans of some trajectories, by their numbers; 1 is the root, which comes last."""
    whole = ExportTraceServiceRequest()
    for number in numbers:
        ids = [1 << 120 | MARK << 8 | each for each in range(TRACES)]
        part = ExportTraceServiceRequest.FromString(make_request(ids, number, root=number == 1, attributes=attributes))
        if whole.resource_spans:
            whole.resource_spans[0].scope_spans[0].spans.extend(part.resource_spans[0].scope_spans[0].spans)
        else:
            whole.MergeFrom(part)
    return whole.SerializeToString()


def with_mark(body, number):
    """Return a request with trace ids of its own."""
    return body.replace(MARK.to_bytes(7, "big"), (MARK + number).to_bytes(7, "big"))


def make_points():
    """Return a request with a point of each of some series."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    put(group.resource.attributes, RESOURCE)
    metric = group.scope_metrics.add().metrics.add(name="user.things")
    metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
    for number in range(POINTS):
        point = metric.sum.data_points.add(
            as_int=number, start_time_unix_nano=time.time_ns(), time_unix_nano=time.time_ns()
        )
        put(point.attributes, {"color": f"c{number}"})
    return request.SerializeToString()


class Senders:
    """Threads that send requests at a rate, each over a connection of its own, as trainings do."""

    def __init__(self, url, rate, seconds, count=4):
        self._address, self._seconds = url.removeprefix("http://"), seconds
        self._period = PER_REQUEST * count / rate
        self._traces, self._points = make_traces(), make_points()
        self._lock, self._number = threading.Lock(), 0
        self.accepted = self.points = self.refused = 0
        self._threads = [threading.Thread(target=self._run, args=(n / count,)) for n in range(count)]

    def __enter__(self):
        self._end = time.monotonic() + self._seconds
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *error):
        for each in self._threads:
            each.join()

    def is_over(self):
        return not any(each.is_alive() for each in self._threads)

    def _run(self, offset):
        connection = http.client.HTTPConnection(self._address, timeout=30)
        due = time.monotonic() + offset * self._period
        while due < self._end:
            time.sleep(max(0.0, due - time.monotonic()))
            due += self._period
            if due < time.monotonic() - 1:  # what it cannot send in time it does not send later
                due = time.monotonic()
            with self._lock:
                self._number += 1
                number = self._number
            body = with_mark(self._traces, number)
            spans, points = (
                self._send(connection, "/v1/traces", body),
                self._send(connection, "/v1/metrics", self._points),
            )
            with self._lock:
                self.accepted += PER_REQUEST * spans
                self.points += POINTS * points
                self.refused += 2 - spans - points
        connection.close()

    def _send(self, connection, path, body):
        connection.request("POST", path, body, {"Content-Type": "application/x-protobuf"})
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200


def has_all(gateway, senders):
    """Whether the gateway has what the agent took."""
    names = "otelcol_receiver_accepted_spans", "otelcol_receiver_accepted_metric_points"
    return [gateway.own(name) for name in names] == [senders.accepted, senders.points]


def put_under_load(tiers, rate, seconds):
    """Send spans, and a quarter as many points, at a rate; return what came of it.

    Args:
        tiers: With an ``agent`` and a ``gateway``, fresh ones.
        rate: Spans per second.
        seconds: For how long.
    """
    both = {name: psutil.Process(getattr(tiers, name).process.pid) for name in ("agent", "gateway")}
    used = {name: sum(each.cpu_times()[:2]) for name, each in both.items()}
    most = dict.fromkeys(both, 0.0)

    def look():
        for name, each in both.items():
            most[name] = max(most[name], each.memory_info().rss / 2**20)

    begin = time.monotonic()
    with Senders(tiers.agent.http_url, rate, seconds) as senders:
        while not senders.is_over():
            look()
            time.sleep(0.5)
    ended = time.monotonic()
    queue = tiers.agent.own("otelcol_exporter_queue_size", exporter="loadbalancing/traces")
    while not has_all(tiers.gateway, senders) and time.monotonic() < ended + 300:
        look()
        time.sleep(0.2)
    drained = time.monotonic() - ended
    some = f"of {senders.accepted} accepted spans some have not arrived {drained:.0f} s after the end"
    assert has_all(tiers.gateway, senders), some
    cost = {name: 1e6 * (sum(each.cpu_times()[:2]) - used[name]) / senders.accepted for name, each in both.items()}
    return Outcome(
        asked=rate,
        seconds=ended - begin,
        accepted=senders.accepted,
        refused=senders.refused,
        points=senders.points,
        drained=drained,
        lost=int(sum(tier.own(name) for tier in (tiers.agent, tiers.gateway) for name in FAILURES)),
        agent_us=cost["agent"],
        gateway_us=cost["gateway"],
        agent_mib=most["agent"],
        gateway_mib=most["gateway"],
        queue=queue,
    )
