# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked of Grafana over its HTTP API: whether it has the boards, and whether they are whole.

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

from dashboards.shelf import walk

TIMEOUT: Final = 30.0
WAIT: Final = 60.0
"""Seconds in which provisioning has to be done; Grafana reads the folder while it starts already to answer."""
OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GrafanaError(Exception):
    """Grafana did not answer a question; its own words."""


@dataclass(frozen=True)
class Grafana:
    """A Grafana, by its address."""

    url: str

    def read_version(self) -> str:
        """Return the version that it says. Raises `GrafanaError`."""
        return str(self._get("/api/health").get("version", "of an unknown version"))

    def wait_for(self, uids: Collection[str], seconds: float = WAIT) -> set[str]:
        """Wait until it lists boards; return those that it does not list in time. Raises `GrafanaError`."""
        deadline = time.monotonic() + seconds
        while True:
            listed = {each["uid"] for each in self._get("/api/search?type=dash-db&limit=5000")}
            missing = set(uids) - listed
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.5)

    def check(self, board: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with a board as Grafana has it. Raises `GrafanaError`.

        Args:
            board: Grafana's classic JSON, as committed. Grafana brings it up to date with its own schema: titles stay.
        """
        answer = self._get(f"/api/dashboards/uid/{urllib.parse.quote(board['uid'])}")
        has = answer["dashboard"]
        wrong = []
        if has["title"] != board["title"]:
            wrong.append(f"its title is {has['title']!r} instead of {board['title']!r}")
        if not answer["meta"].get("provisioned"):
            wrong.append("it does not come from provisioning")
        wanted, found = (sorted(panel.get("title", "") for panel in walk(each["panels"])) for each in (board, has))
        if wanted != found:
            wrong.append(f"its panels are {found} instead of {wanted}")
        return wrong

    def _get(self, path: str) -> Any:
        try:
            with OPENER.open(f"{self.url}{path}", timeout=TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise GrafanaError(f"{path}: {error.code} {read_message(error.read())}") from error
        except (OSError, ValueError) as error:
            raise GrafanaError(f"{path}: {error}") from error


def read_message(body: bytes) -> str:
    """Return the words of an answer that is an error: ``{"message": ...}``, or ``error`` of each refused query of ``results``."""
    try:
        said = json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")[:200]
    if not isinstance(said, dict):
        return ""
    refused = [each["error"] for each in (said.get("results") or {}).values() if each.get("error")]
    return "; ".join(dict.fromkeys(refused)) or str(said.get("message", ""))
