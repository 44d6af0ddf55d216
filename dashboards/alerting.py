# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the alerts of Prometheus as alert rules that Grafana manages: the same expressions, times, labels and words.

They query the same Prometheus, and the series that its rules record: Prometheus must have loaded them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

FILE: Final = Path(__file__).resolve().parent / "provisioning" / "alerting" / "alerts.yaml"
_RULES: Final = Path(__file__).resolve().parent / "rules"
_SOURCE: Final = "prometheus"
"""Uid of the data source in ``provisioning/datasources``."""
_QUERY, _CONDITION = "A", "C"
_FIRES: Final = f"is_nan(${_QUERY}) || ${_QUERY} == ${_QUERY}"
"""1 for each series that the expression returns, whatever its value: as in Prometheus."""
_HEAD: Final = """\
# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
#
# Generated from the alerts in rules/*.rules.yml, for notifications by Grafana. Prometheus must have loaded these files, too: the
# expressions read what they record. Delete this file if Alertmanager notifies: each alert would be sent twice.
"""


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, which make a file harder to read and to compare."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def render() -> str:
    """Return the file."""
    groups = []
    for path in sorted(_RULES.glob("*.rules.yml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            rules = list(_convert(rule for rule in group["rules"] if "alert" in rule))
            if rules:
                name = group["name"].replace(":", " ")
                groups.append(
                    {"orgId": 1, "name": name, "folder": "verl", "interval": group["interval"], "rules": rules}
                )
    document = yaml.dump({"apiVersion": 1, "groups": groups}, Dumper=_Dumper, sort_keys=False, width=200)
    return _HEAD + document


def _convert(rules: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for rule in rules:
        title = _make_title(rule)
        query = {"refId": _QUERY, "expr": _escape(rule["expr"]), "instant": True, "range": False}
        condition = {"refId": _CONDITION, "type": "math", "expression": _escape(_FIRES)}
        yield {
            "uid": f"verl-{re.sub('[^a-z0-9]+', '-', title.lower())}"[:40].rstrip("-"),
            "title": title,
            "condition": _CONDITION,
            "data": [_make_part(query, _SOURCE), _make_part(condition, "__expr__")],
            "for": rule["for"],
            "noDataState": "OK",
            "execErrState": "OK",
            "labels": dict(rule["labels"]),
            "annotations": {key: _convert_words(text) for key, text in rule["annotations"].items()},
        }


def _make_part(model: dict[str, Any], source: str) -> dict[str, Any]:
    return {
        "refId": model["refId"],
        "relativeTimeRange": {"from": 600, "to": 0},
        "datasourceUid": source,
        "model": model,
    }


def _make_title(rule: Mapping[str, Any]) -> str:
    """Return a title that no other rule has: the name of the alert, and the labels by which rules of one name differ."""
    labels = [text for key, text in rule["labels"].items() if key != "area"]
    return f"{rule['alert']} ({', '.join(labels)})"


def _escape(text: str) -> str:
    """Return text of which Grafana replaces no part by a variable of its environment."""
    return text.replace("$", "$$")


def _convert_words(text: str) -> str:
    """Return an annotation in Grafana's words, where ``$value`` is a text with all values. Annotations are not replaced by variables."""
    return re.sub(r"\$value\b", f"$values.{_QUERY}.Value", text)
