# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the OTLP exporter have in common."""

import time

from tests.builders.exporting_records import NOW
from verl_otel.model import Batch

NO = (503, {}, b"")
"""An answer after which a request is sent again."""


def soon(seconds=60.0):
    """Return a deadline."""
    return time.monotonic() + seconds


def without_times(messages):
    """Return requests with metrics without the times of their points: the exporter sets them."""
    for message in messages:
        for metric in message.resource_metrics[0].scope_metrics[0].metrics:
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                point.ClearField("time_unix_nano")
    return messages


def changed(state, *points):
    """Update the state and return the batch that tells of it, as the session does."""
    state.update(points)
    return Batch(NOW, (), tuple(points))
