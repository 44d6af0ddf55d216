# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A client of Grafana's HTTP API: whether the boards are provisioned, and whether they are complete.

The endpoints are those that Grafana 10 to 13 document at grafana.com/docs/grafana/latest/developer-resources/api-reference/http-api, pages
``folder_dashboard_search`` and ``dashboard``. Grafana 13 calls them legacy and keeps them.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dashboards.loader import walk

TIMEOUT: Final = 30.0
WAIT: Final = 60.0
"""Seconds in which provisioning has to finish; Grafana answers requests before it has read the folder."""
OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GrafanaError(Exception):
    """A request to Grafana failed; the message is Grafana's."""


@dataclass(frozen=True)
class Grafana:
    """A Grafana, by its address."""

    url: str

    def read_version(self) -> str:
        """Return the version of Grafana. Raises `GrafanaError`."""
        return str(self._get("/api/health").get("version", "of an unknown version"))

    def wait_for(self, uids: Collection[str], seconds: float = WAIT) -> set[str]:
        """Wait until boards are listed; return the uids that are missing at the end. Raises `GrafanaError`."""
        deadline = time.monotonic() + seconds
        while True:
            listed = {result["uid"] for result in self._get("/api/search?type=dash-db&limit=5000")}
            missing = set(uids) - listed
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.5)

    def check(self, board: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a board as Grafana has it. Raises `GrafanaError`.

        Args:
            board: Grafana's classic JSON, as committed. Grafana brings it up to date with its own schema: titles stay.
        """
        response = self._get(f"/api/dashboards/uid/{urllib.parse.quote(board['uid'])}")
        imported = response["dashboard"]
        wrong = []
        if imported["title"] != board["title"]:
            wrong.append(f"its title is {imported['title']!r} instead of {board['title']!r}")
        if not response["meta"].get("provisioned"):
            wrong.append("it does not come from provisioning")
        expected, actual = (
            sorted(panel.get("title", "") for panel in walk(model["panels"])) for model in (board, imported)
        )
        if expected != actual:
            wrong.append(f"its panels are {actual} instead of {expected}")
        return wrong

    def _get(self, path: str) -> Any:
        try:
            with OPENER.open(f"{self.url}{path}", timeout=TIMEOUT) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise GrafanaError(f"{path}: {error.code} {read_message(error.read())}") from error
        except (OSError, ValueError) as error:
            raise GrafanaError(f"{path}: {error}") from error


def read_message(body: bytes) -> str:
    """Return the message of an error response: ``{"message": ...}``, or ``error`` of each failed query of ``results``."""
    try:
        content = json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")[:200]
    if not isinstance(content, dict):
        return ""
    failed = [result["error"] for result in (content.get("results") or {}).values() if result.get("error")]
    return "; ".join(dict.fromkeys(failed)) or str(content.get("message", ""))
