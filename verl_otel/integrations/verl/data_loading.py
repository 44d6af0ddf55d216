# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl.data_loading``: how long a trainer waits for the next batch of its data loader."""

from __future__ import annotations

import functools
from typing import Any, Final

from verl_otel.integrations.patch import Hook, close_span, open_span
from verl_otel.integrations.verl import gpu_time
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.span import Span

STATE: Final = "data_loading"
"""Name of the time in the account of GPU time."""
_DATA_LOADING: Final = CallSite("data_loading", hook=True)


def _wrap(original: Any) -> Any:
    """Open a span around a call that makes an iterator or returns the next batch; none for the end of the data."""

    @functools.wraps(original)
    def wrapper(self: Any) -> Any:
        span = open_span("data loading", lambda *_: Span(_DATA_LOADING), self, (), {})
        try:
            result = original(self)
        except StopIteration:
            if span is not None:
                span.discard()
                close_span(span)
            raise
        except BaseException as error:
            close_span(span, error)
            raise
        close_span(span)
        if span is not None and span.start:
            gpu_time.note_phase(STATE, span.start, span.stop)
        return result

    return wrapper


_MODULE: Final = "torchdata.stateful_dataloader.stateful_dataloader"
HOOKS: Final = (
    Hook.wrapping(_MODULE, "_StatefulBaseDataLoaderIter.__next__", _wrap, "no time that is spent on loading data"),
    Hook.wrapping(_MODULE, "StatefulDataLoader.__iter__", _wrap, "no time in which the workers of a data loader start"),
)
