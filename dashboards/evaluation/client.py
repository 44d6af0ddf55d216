# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A client of Prometheus's HTTP API for the queries of a board."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

TIMEOUT: Final = 30.0
OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without proxies: the Prometheus runs on this machine."""


class QueryError(Exception):
    """Prometheus rejected a query; the message is its own."""


@dataclass(frozen=True)
class Series:
    """One series of a result."""

    labels: dict[str, str]
    times: tuple[float, ...]
    """Unix times, in seconds."""
    values: tuple[float, ...]


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus, by its address."""

    url: str

    def ask_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Return the series of a query over time. Raises `QueryError`."""
        answer = self._get("query_range", query=expression, start=start, end=end, step=step)
        return [_series(result["metric"], result["values"]) for result in answer["result"]]

    def ask(self, expression: str, time: float) -> list[Series]:
        """Return the series of a query at one time. Raises `QueryError`."""
        answer = self._get("query", query=expression, time=time)
        if answer["resultType"] == "scalar":
            return [_series({}, [answer["result"]])]
        return [_series(result["metric"], [result["value"]]) for result in answer["result"]]

    def label_values(self, selector: str, label: str, start: float, end: float) -> list[str]:
        """Return the values of a label of the series that a selector matches. Raises `QueryError`."""
        answer = self._get(f"label/{label}/values", **{"match[]": selector, "start": start, "end": end})
        return [str(value) for value in answer]

    def _get(self, path: str, **parameters: object) -> Any:
        address = f"{self.url.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with OPENER.open(address, timeout=TIMEOUT) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryError(json.load(error).get("error", str(error))) from error
        except OSError as error:
            raise QueryError(f"{self.url}: {error}") from error


def _series(labels: dict[str, str], pairs: list[list[Any]]) -> Series:
    return Series(labels, tuple(float(pair[0]) for pair in pairs), tuple(float(pair[1]) for pair in pairs))
