# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Limits of the number and length of labels. The labels of every series and point pass here.

Prometheus rejects the whole scrape of a process for one label that is too long, and for one series with too many labels. The limits here
are below those of the scrape jobs that verl-otel ships (``label_value_length_limit: 512``, ``label_limit: 40``; see ``collector/prometheus.yml``).
"""

from __future__ import annotations

import re
import string
from typing import Any, Final

from verl_otel.model import Labels, Point, cut
from verl_otel.recording.attribute_values import to_name
from verl_otel.semconv.metric_names import MAX_LABEL_BYTES, MAX_LABEL_NAME_BYTES, MAX_LABELS

_LETTERS: Final = string.ascii_letters
_RESERVED: Final = re.compile("[^A-Za-z0-9]{2}")
"""Begin of a name that Prometheus reserves: each of the two characters becomes an underscore."""
_SHORT: Final = MAX_LABEL_NAME_BYTES // 4
"""Characters up to which a text is within all limits: a character has four bytes at most."""


def bound_labels(labels: Labels) -> Labels:
    """Return labels within the limits, the same object if they are. Long texts are truncated, labels beyond the limit left out."""
    if len(labels) <= MAX_LABELS:
        for name, value in labels:
            if len(name) > _SHORT or len(value) > _SHORT or name[:1] not in _LETTERS:
                break
        else:
            return labels
    bounded = tuple((_bound_name(name), cut(value, MAX_LABEL_BYTES)) for name, value in labels[:MAX_LABELS])
    return labels if bounded == labels else bounded


def make_labels(given: dict[str, Any]) -> Labels:
    """Return labels from keyword arguments, as text and sorted by name. Never raises."""
    pairs = [(to_name(name), to_name(value)) for name, value in given.items()]
    if len(pairs) > 1:
        pairs.sort()
    return tuple(pairs)


def bound_point(point: Point) -> Point:
    """Return a point with labels within the limits, the same object if they are."""
    labels = bound_labels(point.labels)
    return point if labels is point.labels else point._replace(labels=labels)


def _bound_name(name: str) -> str:
    """Return the name of a label. Names that begin with two underscores are reserved by Prometheus."""
    return cut(f"label{name}" if _RESERVED.match(name) else name, MAX_LABEL_NAME_BYTES)
