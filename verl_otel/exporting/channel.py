# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One signal's way to the server, and when it may be tried again."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from verl_otel import _guard
from verl_otel.exporting.exporter import remaining
from verl_otel.exporting.transport import Answer

if TYPE_CHECKING:
    from verl_otel.exporting.transport import Transport

FIRST_RETRY: Final = 1.0
"""Seconds before the first retry; doubled with each, up to `LAST_RETRY`."""
LAST_RETRY: Final = 30.0
MAX_DOUBLINGS: Final = 20
"""After more the pause would be beyond any float: 1,024 failures are a night's outage."""
_jitter = random.SystemRandom()  # the user's seeds must not bring a thousand ranks into step


class Channel:
    """One signal: its transport, and when it may be tried again."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.failures = 0
        self.not_before = 0.0

    def send(self, body: bytes, deadline: float | None) -> Answer:
        """Send one request, for as long as there is until ``deadline`` (`time.monotonic`), and put off the next if this one fails."""
        timeout = 3600.0 if deadline is None else max(0.05, remaining(deadline))
        try:
            answer = self.transport.send(body, timeout)
        except Exception as error:
            _guard.say("otlp transport", "verl-otel: OTLP: %s", type(error).__name__)
            answer = Answer(ok=False, retry=True, reason=f"cannot send: {type(error).__name__}")
        if answer.ok or not answer.retry:
            self.failures, self.not_before = 0, 0.0
        else:
            backoff = min(LAST_RETRY, FIRST_RETRY * 2 ** min(self.failures, MAX_DOUBLINGS)) * _jitter.uniform(0.8, 1.2)
            pause = max(answer.wait * _jitter.uniform(1.0, 1.2), backoff)  # never before the server says
            self.failures += 1
            self.not_before = time.monotonic() + pause
        return answer
