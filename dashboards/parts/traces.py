# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Every TraceQL query of the boards. They need a Tempo; all other panels work without a trace store."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import tempo
from grafana_foundation_sdk.models.common import DataSourceRef

from verl_otel.semconv import attributes as attr
from verl_otel.semconv.spans import SPANS

SOURCE: Final = DataSourceRef(type_val="tempo", uid="${traces}")
RUN: Final = f'resource.{attr.RUN_ID} =~ "${{run:pipe}}"'
SELECTED: Final = ", ".join(
    f"span.{name}"
    for name in (
        attr.STEP_NUMBER,
        attr.SAMPLE_UID,
        attr.ROLLOUT_INDEX,
        attr.TURNS,
        attr.RESPONSE_TOKENS,
        attr.REWARD_SCORE,
        attr.OUTCOME,
    )
)
_TRAJECTORY: Final = SPANS["trajectory"].name
_STEP: Final = SPANS["step"].name
_TOOL: Final = SPANS["tool"].name.strip()
QUERIES: Final = {
    "slow": f'{{ name = "{_TRAJECTORY}" && {RUN} && duration > $slow }} | select({SELECTED})',
    "failed": f'{{ name = "{_TRAJECTORY}" && {RUN} && status = error }} | select({SELECTED})',
    "tools": f'{{ name =~ "{_TOOL}.*" && {RUN} && duration > $slow }} | select(span.{attr.GEN_AI_TOOL})',
    "steps": f'{{ name = "{_STEP}" && {RUN} }} | select(span.{attr.STEP_NUMBER}, span.{attr.SLOWEST_SECONDS})',
}
LIMIT: Final = 50
"""Rows of a table; Tempo is asked for no more, and does not promise that these are the longest of all."""


def find(name: str) -> tempo.Dataquery:
    """Return one of the queries, as a table of spans."""
    query = tempo.Dataquery().query(QUERIES[name]).query_type("traceql").limit(LIMIT).spss(1)
    return query.table_type("spans").datasource(SOURCE)
