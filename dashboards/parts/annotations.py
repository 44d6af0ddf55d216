# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Annotations on every time axis: weight syncs, checkpoints and resumptions of a run.

An annotation is drawn where a counter changed, with the resolution of the scrape interval. The first checkpoint of a run is not
annotated if its series appears with it: Prometheus sees no change.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, prometheus

from dashboards.parts.names import label, legend, metric
from dashboards.parts.queries import SOURCE, expand


def _annotation(
    name: str, expression: str, color: str, text: str, *, enabled: bool = True
) -> dashboard.AnnotationQuery:
    target = prometheus.Dataquery().ref_id("Anno").expr(expand(expression)).interval("10s").datasource(SOURCE)
    annotation = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(enabled).icon_color(color)
    # The expression is set twice: older Grafanas read it here, newer ones in the target.
    annotation.target(target).expr(expand(expression)).step("10s")
    return annotation.title_format(text).text_format(legend.RUN_ID).tag_keys(label.RUN_ID)


def weight_sync() -> dashboard.AnnotationQuery:
    """Return the annotations of weight syncs; disabled by default, because there is one in each step."""
    counted = f"max by ({label.RUN_ID}) (changes({metric.WEIGHT_SYNC_DURATION}_count{{run}}[rate])) > 0"
    return _annotation("Weight sync", counted, "light-blue", "Weights sent to the rollout replicas", enabled=False)


def checkpoint() -> dashboard.AnnotationQuery:
    """Return the annotations of checkpoints."""
    counted = f"max by ({label.RUN_ID}) (changes({metric.CHECKPOINT_LAST_TIMESTAMP}{{run}}[rate])) > 0"
    return _annotation("Checkpoint", counted, "green", "Checkpoint saved")


def resume() -> dashboard.AnnotationQuery:
    """Return the annotations of resumptions: the counter of resumptions appeared, or that of steps was reset."""
    count = f"max by ({label.RUN_ID}) ({metric.TRAINING_RESUMES}{{run}})"
    appeared = f"({count} > 0 unless {count.replace('{run}', '{run} offset 1m')})"
    restarted = f"max by ({label.RUN_ID}) (resets({metric.TRAINING_STEPS}{{run}}[rate])) > 0"
    return _annotation("Resume", f"{appeared} or {restarted}", "orange", "Training resumed")


def make_all() -> tuple[dashboard.AnnotationQuery, ...]:
    """Return all annotations, in the order of their switches."""
    return weight_sync(), checkpoint(), resume()
