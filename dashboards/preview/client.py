# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a board asks of Prometheus, over its HTTP API."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

TIMEOUT: Final = 30.0
OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A Prometheus of ours is on this machine: ``http_proxy`` of the environment does not lead there."""


class QueryError(Exception):
    """Prometheus did not take a query; its own words."""


@dataclass(frozen=True)
class Series:
    """One series of an answer."""

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
        found = self._get("query_range", query=expression, start=start, end=end, step=step)
        return [_series(each["metric"], each["values"]) for each in found["result"]]

    def ask(self, expression: str, time: float) -> list[Series]:
        """Return the series of a query at one time. Raises `QueryError`."""
        found = self._get("query", query=expression, time=time)
        if found["resultType"] == "scalar":
            return [_series({}, [found["result"]])]
        return [_series(each["metric"], [each["value"]]) for each in found["result"]]

    def label_values(self, selector: str, label: str, start: float, end: float) -> list[str]:
        """Return the values of a label of the series that a selector finds. Raises `QueryError`."""
        found = self._get(f"label/{label}/values", **{"match[]": selector, "start": start, "end": end})
        return [str(value) for value in found]

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
