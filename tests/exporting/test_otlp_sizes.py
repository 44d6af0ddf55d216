# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The OTLP exporter with spans that are large."""

import time
from collections import Counter

from tests.builders.exporting_records import make_batch, make_span
from verl_otel.model import WeighedAttributes


def test_large_spans_share_no_request(sink, otlp, wait_for):
    """Spans that are large go in requests that a Collector takes, in their order and once each."""
    text = "x" * 200_000
    large = [make_span(number, attributes=WeighedAttributes({"key": text}, len(text))) for number in range(1, 31)]
    exporter, _ = otlp(sink.url)
    exporter.consume(make_batch(100, 101)._replace(spans=(*make_batch(100, 101).spans, *large)))
    wait_for(lambda: len(sink.span_ids()) == 32)
    exporter.close(time.monotonic() + 20)
    assert sink.span_ids() == Counter([100, 101, *range(1, 31)])
    assert max(message.ByteSize() for message in sink.messages("traces")) < 2 << 20
    assert exporter.dropped("spans") == {}
