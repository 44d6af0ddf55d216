# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every TraceQL query of the boards. They need a Tempo; all other panels work without a trace store."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import tempo
from grafana_foundation_sdk.models.common import DataSourceRef

SOURCE: Final = DataSourceRef(type_val="tempo", uid="${traces}")
RUN: Final = 'resource.verl.run.id =~ "${run:pipe}"'
SELECTED: Final = (
    "span.verl.step.number, span.verl.sample.uid, span.verl.rollout.index, span.verl.turns, "
    "span.verl.response.tokens, span.verl.reward.score, span.verl.outcome"
)
QUERIES: Final = {
    "slow": f'{{ name = "verl.trajectory" && {RUN} && duration > $slow }} | select({SELECTED})',
    "failed": f'{{ name = "verl.trajectory" && {RUN} && status = error }} | select({SELECTED})',
    "tools": f'{{ name =~ "execute_tool.*" && {RUN} && duration > $slow }} | select(span.gen_ai.tool.name)',
    "steps": f'{{ name = "verl.step" && {RUN} }} | select(span.verl.step.number, span.verl.slowest.duration)',
}
LIMIT: Final = 50
"""Rows of a table; Tempo is asked for no more, and does not promise that these are the longest of all."""


def find(name: str) -> tempo.Dataquery:
    """Return one of the queries, as a table of spans."""
    made = tempo.Dataquery().query(QUERIES[name]).query_type("traceql").limit(LIMIT).spss(1)
    return made.table_type("spans").datasource(SOURCE)
