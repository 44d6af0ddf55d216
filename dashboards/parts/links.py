# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Links between boards, which keep the time range and the run."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

from dashboards.parts.names import label

TAG: Final = "verl-otel"
UIDS: Final = {
    "overview": "verl-run-overview",
    "steps": "verl-step-anatomy",
    "rollouts": "verl-rollouts",
    "engines": "verl-engines",
    "training": "verl-training",
    "gpus": "verl-gpus",
    "pipeline": "verl-pipeline",
    "monitor": "verl-rl-training-monitor",
}
"""The uid of each board, which is a part of addresses that people keep: it never changes."""


def boards() -> dashboard.DashboardLink:
    """Return the list of all boards, at the top of each."""
    link = dashboard.DashboardLink("verl boards").type(DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(True)
    return link.keep_time(True).include_vars(True).icon("external link").tooltip("The other boards, of the same runs")


def to_board(board: str, title: str) -> dashboard.DashboardLink:
    """Return a link from a series or a row of a table to another board, at the same time and of its run.

    Args:
        board: A key of `UIDS`.
        title: What the link says.
    """
    address = (
        f"/d/{UIDS[board]}?${{__url_time_range}}&${{datasource:queryparam}}&var-run=${{__field.labels.{label.RUN_ID}}}"
    )
    return dashboard.DashboardLink(title).url(address)


def from_row(board: str, title: str) -> dict[str, object]:
    """Return a link from a cell of a table, whose row has a column ``Run``."""
    address = f'/d/{UIDS[board]}?${{__url_time_range}}&${{datasource:queryparam}}&var-run=${{__data.fields["Run"]}}'
    return {"title": title, "url": address, "targetBlank": False}
