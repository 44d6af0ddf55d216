# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Head sampling: the decision is made at the root span of a trace, and all spans below follow it.

Step traces are always sampled. Trajectories are sampled by the ratio of ``OTEL_TRACES_SAMPLER`` and by a number per step; of the others
only the root span is written to files, so that a report misses no trajectory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from verl_otel.model import RANDOM, SAMPLED
from verl_otel.recording import id_generator
from verl_otel.recording.retention import find_step

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

MAX_STEPS: Final = 16
_RANDOM_BITS: Final = (1 << 64) - 1


class SamplingPolicy:
    """The settings of the sampler and its counts in the last few steps."""

    def __init__(self) -> None:
        self.ratio = 1.0
        """Share of trajectories that ``OTEL_TRACES_SAMPLER`` keeps."""
        self.whole_per_step = 0
        """Trajectories of a step, in this process, that are kept whole in any case; 0: no limit."""
        self.share_above = 0.05
        """Share that is kept whole beyond that number."""
        self.exemplars = True
        """Whether histograms have exemplars (``OTEL_METRICS_EXEMPLAR_FILTER``)."""
        self._counts: dict[object, int] = {}
        """Trajectories by step, of the last few steps: trajectories of several steps may alternate, and a validation counts by itself."""
        self.clear()

    def clear(self) -> None:
        """Discard the counts: a session begins, whose steps and whose cost are not those of the one before."""
        self._counts.clear()
        self.leaf_spans = True
        """Whether leaf spans are kept: those of sampled timers, and of the user's own spans those without content of their own."""
        self.left_out = 0
        """Spans that a drain left out because telemetry cost too much (see `verl_otel.session.overhead_limiter`)."""

    def decide(self, span: Span, trace_id: int) -> int:
        """Return the trace flags of a new root span, whose trace id is random."""
        return RANDOM | SAMPLED if self._samples(span, trace_id) else RANDOM

    def _samples(self, span: Span, trace_id: int) -> bool:
        if span.site.spec.verb != "trajectory":
            return True
        if (trace_id & _RANDOM_BITS) >= round(self.ratio * (_RANDOM_BITS + 1)):
            return False
        if not self.whole_per_step:
            return True
        step = find_step(span)
        count = self._counts[step] = self._counts.get(step, 0) + 1
        for old in list(self._counts)[:-MAX_STEPS]:  # the copy is atomic: other threads count, too
            self._counts.pop(old, None)
        return count <= self.whole_per_step or id_generator.draw() < self.share_above
