# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Marks on every time axis: what happened to the run.

A mark is drawn where a counter changed, with the accuracy of the scrape interval. The very first checkpoint of a run
is not seen where its counter appears with it: Prometheus sees no change from nothing to one.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, prometheus

from dashboards.parts.queries import SOURCE, expand


def _mark(name: str, expression: str, color: str, text: str, *, enabled: bool = True) -> dashboard.AnnotationQuery:
    asked = prometheus.Dataquery().ref_id("Anno").expr(expand(expression)).interval("10s").datasource(SOURCE)
    made = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(enabled).icon_color(color)
    made.target(asked).expr(expand(expression)).step("10s")  # said twice: older Grafanas read it here, newer ones there
    return made.title_format(text).text_format("{{verl_run_id}}").tag_keys("verl_run_id")


def weight_sync() -> dashboard.AnnotationQuery:
    """Return the marks of weight syncs; off until they are asked for, since there is one in each step."""
    counted = "max by (verl_run_id) (changes(verl_weight_sync_duration_seconds_count{run}[rate])) > 0"
    return _mark("Weight sync", counted, "light-blue", "Weights sent to the rollout replicas", enabled=False)


def checkpoint() -> dashboard.AnnotationQuery:
    """Return the marks of checkpoints."""
    counted = "max by (verl_run_id) (changes(verl_checkpoint_last_timestamp_seconds{run}[rate])) > 0"
    return _mark("Checkpoint", counted, "green", "Checkpoint saved")


def resume() -> dashboard.AnnotationQuery:
    """Return the marks of resumptions: the count of resumptions appeared, or that of steps began anew."""
    count = "max by (verl_run_id) (verl_training_resumes_total{run})"
    appeared = f"({count} > 0 unless {count.replace('{run}', '{run} offset 1m')})"
    began_anew = "max by (verl_run_id) (resets(verl_training_steps_total{run}[rate])) > 0"
    return _mark("Resume", f"{appeared} or {began_anew}", "orange", "Training resumed")


def every() -> tuple[dashboard.AnnotationQuery, ...]:
    """Return all marks, in the order of their switches."""
    return weight_sync(), checkpoint(), resume()
