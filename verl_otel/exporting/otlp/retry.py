# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Retries with exponential backoff for one signal."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING, Final

from verl_otel._internal import error_boundary
from verl_otel._internal.deadline import remaining
from verl_otel.exporting.otlp.transport import Answer

if TYPE_CHECKING:
    from verl_otel.exporting.otlp.transport import Transport

FIRST_RETRY: Final = 1.0
"""Seconds before the first retry; doubled with each, up to `LAST_RETRY`."""
LAST_RETRY: Final = 30.0
MAX_DOUBLINGS: Final = 20
"""Limit of doublings: 2 to the power of 1,024 failures, an outage of a night, exceeds a float."""
_jitter = random.SystemRandom()  # independent of the user's seeds, which would synchronise a thousand ranks


class RetryingSender:
    """Transport of one signal with the time of its next retry."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.failures = 0
        self.not_before = 0.0
        self.limit = math.inf
        """Bytes of the smallest request that was too large, until a larger one is accepted."""

    def send(self, body: bytes, deadline: float | None) -> Answer:
        """Send one request until ``deadline`` (`time.monotonic`). A failure that can be retried delays the next request."""
        timeout = 3600.0 if deadline is None else max(0.05, remaining(deadline))
        try:
            answer = self.transport.send(body, timeout)
        except Exception as error:
            error_boundary.warn_once("otlp transport", "verl-otel: OTLP: %s", type(error).__name__)
            answer = Answer(ok=False, retry=True, reason=f"cannot send: {type(error).__name__}")
        if answer.too_large:
            self.limit = min(self.limit, len(body))
        elif answer.ok and len(body) >= self.limit:
            self.limit = math.inf
        if answer.ok or not answer.retry:
            self.failures, self.not_before = 0, 0.0
        else:
            backoff = min(LAST_RETRY, FIRST_RETRY * 2 ** min(self.failures, MAX_DOUBLINGS)) * _jitter.uniform(0.8, 1.2)
            pause = max(
                answer.wait * _jitter.uniform(1.0, 1.2), backoff
            )  # never before the time that the server asked for
            self.failures += 1
            self.not_before = time.monotonic() + pause
        return answer
