# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The example for Alertmanager: it is valid, knows the alerts by their names, and hides symptoms behind causes, never the other way."""

import re
import shutil
import subprocess
from itertools import product

import pytest

from tests.dashboards.scenes import RULES, alerts, yaml
from verl_otel.cli.stack import cache_folder

FILE = RULES / "alertmanager.example.yml"
URGENCY = {"info": 0, "warning": 1, "critical": 2}
BARE = {"verl_run_id": "r1", "instance": "r1/x-0", "exporter": "otlp"}


@pytest.fixture(scope="module")
def config():
    return yaml.safe_load(FILE.read_text("utf-8"))


def read_matcher(text):
    """Return label, operator and value of a matcher."""
    return re.fullmatch(r'(\w+)(=~|!~|!=|=)"([^"]*)"', text).groups()


def matches(matchers, labels):
    """Return whether labels match all, as Alertmanager has it: anchored, a missing label is empty."""
    for label, operator, value in map(read_matcher, matchers):
        own = labels.get(label, "")
        same = bool(re.fullmatch(value, own)) if "~" in operator else own == value
        if same == operator.startswith("!"):
            return False
    return True


def instances():
    """Every alert as it would arrive, of one run and process."""
    return [{**BARE, **rule["labels"], "alertname": rule["alert"]} for rule in alerts()]


def hides(rule, source, target):
    return (
        source["alertname"] != target["alertname"]
        and matches(rule["source_matchers"], source)
        and matches(rule["target_matchers"], target)
        and all(source.get(label) == target.get(label) for label in rule.get("equal", ()))
    )


def pairs(config):
    """Return who hides whom."""
    return {
        (source["alertname"], target["alertname"])
        for source, target in product(instances(), instances())
        if any(hides(rule, source, target) for rule in config["inhibit_rules"])
    }


def test_names_are_those_of_alerts(config):
    """A misspelt name in a matcher would never match, and nobody would notice."""
    names = {rule["alert"] for rule in alerts()}
    for rule in config["inhibit_rules"]:
        for label, _, value in map(read_matcher, rule["source_matchers"] + rule["target_matchers"]):
            if label == "alertname":
                assert set(value.split("|")) <= names


def test_routes_lead_to_receivers(config):
    """Every route has a receiver that is there, and every alert finds one by its severity."""
    receivers = {each["name"] for each in config["receivers"]}
    routes = config["route"]["routes"]
    assert {config["route"]["receiver"], *(each["receiver"] for each in routes)} == receivers
    for labels in instances():
        first = next(route for route in routes if matches(route["matchers"], labels))
        assert (first["receiver"] == "on-call") == (labels["severity"] == "critical")


def test_causes_hide_symptoms(config):
    """What people would otherwise be told twice."""
    assert {
        ("RunVanished", "TrainingStalled"),
        ("GPUErrors", "TrainingStalled"),
        ("TrainingStalled", "GPUUnderused"),
        ("TrainingStalled", "CheckpointLate"),
        ("LossNaN", "EntropyCollapse"),
        ("KLExplosion", "RewardCliff"),
        ("KVCacheFull", "PreemptionStorm"),
        ("CollectorDown", "ExporterDown"),
        ("ExporterDown", "CollectorQueueFilling"),
    } <= pairs(config)


def test_nothing_hides_its_own_cause(config):
    """Two alerts that hid each other would both be hidden."""
    found = pairs(config)
    assert not {(one, other) for one, other in found if (other, one) in found}


def test_nothing_urgent_is_hidden_by_what_is_less(config):
    """A page is never lost to a warning."""
    for source, target in product(instances(), instances()):
        if any(hides(rule, source, target) for rule in config["inhibit_rules"]):
            assert URGENCY[source["severity"]] >= URGENCY[target["severity"]], (
                source["alertname"],
                target["alertname"],
            )


def test_another_run_is_not_hidden(config):
    """A run that vanished says nothing of its neighbour."""
    gone = {**BARE, "alertname": "RunVanished", "severity": "critical", "area": "running"}
    for target in instances():
        other = {**target, "verl_run_id": "r2", "instance": "r2/x-0"}
        assert not any(hides(rule, gone, other) for rule in config["inhibit_rules"])


@pytest.mark.full
def test_alertmanager_takes_it():
    """``amtool check-config``, where it is installed or built."""
    amtool = shutil.which("amtool") or shutil.which(cache_folder() / "amtool")
    if amtool is None:
        pytest.skip("amtool is not here: sh collector/build.sh alertmanager")
    done = subprocess.run([amtool, "check-config", FILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
