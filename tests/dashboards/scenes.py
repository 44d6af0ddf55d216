# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Scenes: series over time and the alerts that fire then, written as promtool's test files and judged by it.

A scene says which alerts fire at a minute, all of them: another one that fires as well makes it fail.
"""

import json
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")

TOP = Path(__file__).resolve().parents[2]
RULES = TOP / "dashboards" / "rules"
INTERVAL = 30
"""Seconds between two evaluations, as in the rules, and between two samples. Long scenes take more, to be quick."""
STALE = "stale"
"""The end of a series, as Prometheus writes it when a target is gone."""
Values = Sequence[float | str | None]


class Says(NamedTuple):
    """An alert with what its reader sees."""

    minute: int
    alert: str
    labels: Mapping[str, str]
    summary: str


class Scene(NamedTuple):
    """What is measured, and what fires."""

    name: str
    series: Mapping[str, Values]
    firing: Mapping[int, set[str]]
    """Names of all alerts that fire, by minute."""
    says: tuple[Says, ...] = ()
    thresholds: Mapping[str, float] = {}
    """Thresholds that are off by default, switched on."""
    values: Mapping[tuple[int, str], Mapping[str, float]] = {}
    """By minute and expression: the value of each series, written as labels in braces."""
    interval: int = INTERVAL


@cache
def read_rules():
    """Return every rule: a list of (file, group, rule)."""
    found = []
    for path in sorted(RULES.glob("*.rules.yml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            found += [(path.name, group["name"], rule) for rule in group["rules"]]
    return tuple(found)


def alerts():
    """Return the rules that are alerts."""
    return [rule for _, _, rule in read_rules() if "alert" in rule]


def write_values(values: Values) -> str:
    """Return values in promtool's notation, equal ones in a row counted.

    Example:
        write_values([None, 1, 1, "stale"]) == "_ 1x1 stale"
    """
    written = []
    for value, group in groupby(map(_write_value, values)):
        more = sum(1 for _ in group) - 1
        if value == "_" and more:
            written.append(f"_x{more + 1}")
        elif value in (STALE, "NaN", "Inf"):  # promtool repeats no words
            written += [value] * (more + 1)
        else:
            written.append(f"{value}x{more}" if more else value)
    return " ".join(written)


def _write_value(value: float | str | None) -> str:
    if value is None:
        return "_"
    return {"nan": "NaN", "inf": "Inf"}.get(str(value), str(value))


def write_tests(scenes: Sequence[Scene], rule_files: Sequence[Path]) -> str:
    """Return promtool's test file of scenes with the same thresholds and the same interval."""
    return json.dumps(
        {
            "rule_files": [str(path) for path in rule_files],
            "evaluation_interval": f"{scenes[0].interval}s",
            "group_eval_order": order_groups([path.name for path in rule_files]),
            "fuzzy_compare": True,
            "tests": [_write_test(scene, RULES / "thresholds.rules.yml" in rule_files) for scene in scenes],
        }
    )


def order_groups(used: Collection[str]) -> list[str]:
    """Return the groups so that what is recorded comes before who reads it; Prometheus itself evaluates them side by side."""
    names = dict.fromkeys(group for file, group, _ in read_rules() if file in used)
    return sorted(
        names, key=lambda name: (name != "verl:thresholds", name != "verl:run", not name.endswith("conditions"))
    )


def _write_test(scene, with_rules):
    count = max(map(len, scene.series.values()))
    thresholds = {} if with_rules else {**read_thresholds(), **scene.thresholds}
    series = {
        **scene.series,
        **{f'verl:threshold{{name="{name}"}}': [value] * count for name, value in thresholds.items() if value == value},
    }
    asked = [
        {
            "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }
        for minute, names in scene.firing.items()
    ]
    asked += [
        {
            "expr": expression,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in found.items()],
        }
        for (minute, expression), found in scene.values.items()
    ]
    return {
        "name": scene.name,
        "interval": f"{scene.interval}s",
        "input_series": [{"series": name, "values": write_values(values)} for name, values in series.items()],
        "promql_expr_test": asked,
        "alert_rule_test": [_write_says(says) for says in scene.says],
    }


def _write_says(says):
    """Return what an alert says; labels that its rule fixes, and its link, are taken from the rule that fits."""
    fitting = [
        rule
        for rule in alerts()
        if rule["alert"] == says.alert
        and all(rule["labels"].get(name, value) == value for name, value in says.labels.items())
    ]
    rule = fitting[0]
    return {
        "alertname": says.alert,
        "eval_time": f"{says.minute}m",
        "exp_alerts": [
            {
                "exp_labels": {**rule["labels"], **says.labels},
                "exp_annotations": {**rule["annotations"], "summary": says.summary},
            }
        ],
    }


@cache
def read_thresholds() -> dict[str, float]:
    """Return the committed thresholds by name, NaN for those that are off."""
    return {
        rule["labels"]["name"]: float(re.fullmatch(r"vector\((.+)\)", rule["expr"]).group(1))
        for _, group, rule in read_rules()
        if group == "verl:thresholds"
    }


def judge(binary: Path, scenes: Sequence[Scene], parts: Sequence[str], folder: Path) -> dict[str, str]:
    """Have promtool judge scenes; return what is wrong by name of the scene, nothing where all is right.

    The thresholds are given as series, as which they cost nothing, unless their file is among the parts; one that is off has none.

    Args:
        binary: promtool: the fixture ``promtool``, which puts a test into the step of programs.
        scenes: What is judged.
        parts: Names of the files of rules that are evaluated.
        folder: Where promtool's files are written.
    """
    wrong = {scene.name: "promtool did not run it" for scene in scenes}
    files = [RULES / f"{part}.rules.yml" for part in parts]
    for interval in sorted({scene.interval for scene in scenes}):
        tests, report = folder / f"{interval}.yml", folder / f"{interval}.xml"
        tests.write_text(write_tests([scene for scene in scenes if scene.interval == interval], files), "utf-8")
        done = subprocess.run(
            [binary, "test", "rules", f"--junit={report}", tests], capture_output=True, text=True, check=False
        )
        if not report.exists():
            pytest.fail(done.stdout + done.stderr)
        for case in ET.parse(report).iter("testcase"):
            failures = [each.text or each.get("message", "") for each in case if each.tag in ("failure", "error")]
            wrong[case.get("name")] = "\n".join(failures)
    return wrong
