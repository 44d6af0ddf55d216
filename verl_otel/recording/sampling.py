# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which traces are kept, decided once, where a trace begins; everything below follows its root.

Step traces are always kept. Trajectories are kept whole by ``OTEL_TRACES_SAMPLER`` and up to a number per step; of the
others the root span alone goes to the files, so that no trajectory is missing from a report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from verl_otel.model import SAMPLED
from verl_otel.recording import ids
from verl_otel.recording.marks import find_step

if TYPE_CHECKING:
    from verl_otel.recording.span import Span

MAX_STEPS: Final = 16
_RANDOM_BITS: Final = (1 << 64) - 1


class Policy:
    """The settings of the sampler and what it has counted in the present step."""

    ratio = 1.0
    """Share of trajectories that ``OTEL_TRACES_SAMPLER`` keeps."""
    whole_per_step = 0
    """Trajectories of a step, in this process, that are kept whole in any case; 0: no limit."""
    share_above = 0.05
    """Share that is kept whole beyond that number."""
    leaves = True
    """Whether a few of the timed calls that may have spans get one (see `verl_otel.recording.leaves`)."""
    left_out = 0
    """Spans that a drain left out because telemetry had become too dear (see `verl_otel.session.governor`)."""
    exemplars = True
    """Whether histograms show traces (``OTEL_METRICS_EXEMPLAR_FILTER``)."""
    _counts: dict[object, int] = {}
    """Trajectories by step, of the last few steps: those of several steps may take turns, and those of a validation count for themselves."""

    @classmethod
    def decide(cls, span: Span, trace_id: int) -> int:
        """Return the trace flags of a new root span."""
        if span.site.spec.verb != "trajectory":
            return SAMPLED
        if (trace_id & _RANDOM_BITS) >= round(cls.ratio * (_RANDOM_BITS + 1)):
            return 0
        if not cls.whole_per_step:
            return SAMPLED
        step = find_step(span)
        count = cls._counts[step] = cls._counts.get(step, 0) + 1
        for old in list(cls._counts)[:-MAX_STEPS]:  # the copy is one step: other threads count, too
            cls._counts.pop(old, None)
        return SAMPLED if count <= cls.whole_per_step or ids.draw() < cls.share_above else 0

    @classmethod
    def clear(cls) -> None:
        """Forget what was counted: a session begins, whose steps and whose cost are not those of the one before."""
        cls._counts.clear()
        cls.leaves, cls.left_out = True, 0
