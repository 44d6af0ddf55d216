# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""logfire without its server and its console: spans are made, processed and dropped. A lower bound of what it costs."""

from __future__ import annotations

import time
from functools import wraps
from typing import Any, Final

from benchmarks.backend import ATTRIBUTES, Backend, Function, Region

_attributes: Final = {name.replace(".", "_"): value for name, value in ATTRIBUTES.items()}


class Logfire(Backend):
    """logfire, configured to send nothing."""

    def __init__(self) -> None:
        import logfire

        logfire.configure(send_to_logfire=False, console=False, inspect_arguments=False)
        self._logfire = logfire
        self._histogram = logfire.metric_histogram("bench.work", unit="s")

    def timed(self, function: Function) -> Function:
        """Wrap around ``metric_histogram.record``."""
        record, clock, attributes = self._histogram.record, time.perf_counter, dict(ATTRIBUTES)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return function(*args, **kwargs)
            finally:
                record(clock() - begin, attributes)

        return timed

    def traced(self, function: Function) -> Function:
        """Decorate with ``instrument``, which takes no attributes: less than the others are asked for."""
        traced: Function = self._logfire.instrument("bench.work", extract_args=False)(self.timed(function))
        return traced

    def traced_region(self) -> Region:
        """Return ``logfire.span`` with four attributes; no histogram."""
        return lambda: self._logfire.span("bench.work", **_attributes)

    def close(self) -> None:
        """Stop its threads."""
        self._logfire.shutdown()
