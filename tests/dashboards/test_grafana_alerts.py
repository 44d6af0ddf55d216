# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The alert rules that Grafana manages: the alerts of Prometheus, in the form of Grafana's provisioning. No Grafana has loaded them here."""

import os
import re
import string

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")

from dashboards import alerting
from tests.dashboards import scenes

RULES = [rule for group in yaml.safe_load(alerting.FILE.read_text("utf-8"))["groups"] for rule in group["rules"]]
FORMATS = {"humanize", "humanizeDuration", "humanizePercentage", "printf"}
"""Functions of Prometheus' templates in use; Grafana has all of them."""


def interpolate(text):
    """Return what Grafana makes of a value: variables of its environment, and ``$$`` for a dollar."""
    return string.Template(text).substitute(os.environ)


def test_the_file_is_made_of_the_alerts():
    """``make boards`` writes it."""
    assert alerting.FILE.read_text("utf-8") == alerting.render()


def test_each_alert_is_there_once():
    """With its time, its labels, and the same expression after Grafana has looked for variables in it."""
    alerts = scenes.alerts()
    assert len(RULES) == len(alerts) > 50
    found = {
        (rule["title"].split(" ")[0], interpolate(rule["data"][0]["model"]["expr"]), rule["for"]) for rule in RULES
    }
    assert found == {(rule["alert"], rule["expr"], rule["for"]) for rule in alerts}
    by_expression = {interpolate(rule["data"][0]["model"]["expr"]): rule for rule in RULES}
    assert all(by_expression[rule["expr"]]["labels"] == rule["labels"] for rule in alerts)


def test_names_are_unique():
    """Grafana refuses a second rule of one uid, or of one title in a folder, and uids of more than 40 characters."""
    for key in ("uid", "title"):
        assert len({rule[key] for rule in RULES}) == len(RULES)
    assert all(re.fullmatch(r"[a-z0-9-]{1,40}", rule["uid"]) for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["uid"])
def test_a_rule_fires_for_each_series_of_its_expression(rule):
    """The condition depends on the query and on nothing else; the data source is the provisioned one."""
    query, condition = rule["data"]
    assert (query["refId"], rule["condition"], condition["refId"]) == ("A", "C", "C")
    assert query["datasourceUid"] == "prometheus"
    assert query["model"]["instant"]
    assert condition["datasourceUid"] == "__expr__"
    assert interpolate(condition["model"]["expression"]) == "is_nan($A) || $A == $A"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["uid"])
def test_annotations_are_in_the_words_of_grafana(rule):
    """They name labels of the series and the value of the query; functions are those that both have."""
    text = rule["annotations"]["summary"]
    for code in re.findall(r"\{\{(.+?)\}\}", text):
        value, *functions = (part.strip() for part in code.split("|"))
        assert value == "$values.A.Value" or re.fullmatch(r"\$labels\.\w+", value), code
        assert {function.split(" ")[0] for function in functions} <= FORMATS
    assert not set(re.findall(r"\$labels\.(\w+)", text)) & set(rule["labels"])
