# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The rules ask only for what exists, and say to everybody what to do: names, labels, types, thresholds, runbook."""

import json
import re

import pytest

pytest.importorskip("promql_parser", reason="promql-parser is not in this environment")

from dashboards import loader
from tests.dashboards import promql, scenes_of_older_names, vocabulary
from tests.dashboards.scenes import RULES, alerts, read_rules, read_thresholds
from verl_otel.health import profiles, rules_file
from verl_otel.health.thresholds import AREAS

RUNBOOK = RULES / "runbook.md"
THRESHOLDS = vocabulary.SAMPLES / "thresholds.prom"
RUN = frozenset({"verl_run_id"})
SINCE_THE_START = {
    "run:verl_work:count",
    "rollout_latency_seconds_bucket",
    "rollout_latency_seconds_sum",
    "rollout_latency_seconds_count",
}
"""Rules that hand a counter on as it is: somebody else takes its rate."""


def records():
    return [rule for _, _, rule in read_rules() if "record" in rule and rule["record"] != "verl:threshold"]


def known():
    """Return every name of the vocabulary and those that the rules record, with the labels that these come to have."""
    fixed = {name for _, _, rule in read_rules() if "alert" in rule for name in rule["labels"]}
    found = {
        **vocabulary.names(),
        "ALERTS": vocabulary.Name("gauge", frozenset({"alertname", "alertstate", *RUN, *fixed})),
        "up": vocabulary.Name("gauge", vocabulary.TARGET),
        "verl:threshold": vocabulary.Name("gauge", frozenset({"name"})),
    }
    waiting = records()
    while waiting:
        left = []
        for rule in waiting:
            reads_itself = re.search(rf"{re.escape(rule['record'])}(?![\w:])", rule["expr"])
            guess = {rule["record"]: vocabulary.Name("gauge", RUN)} if reads_itself else {}
            try:
                found[rule["record"]] = describe(rule, found | guess)
            except KeyError:
                left.append(rule)
        assert len(left) < len(waiting), [promql.faults(rule["expr"], found) for rule in left]
        waiting = left
    return found


def describe(rule, names):
    """Return what a recorded series is; raises KeyError while it asks for what is not known yet."""
    tree = promql.parse(rule["expr"])
    asked = [name for use in promql.uses(tree, names) for name in use.names]
    bare = names.get(rule["expr"])
    kind = bare.kind if bare else "counter" if rule["record"].endswith(":sum") else "gauge"
    if rule["record"].endswith(":sum"):
        assert {names[name].kind for name in asked} == {"counter"}
    return vocabulary.Name(kind, promql.labels(tree, names))


NAMES = known()
RULES_READ = [
    pytest.param(rule, id=f"{rule.get('record') or rule['alert']}-{n}") for n, (_, _, rule) in enumerate(read_rules())
]


@pytest.mark.parametrize("rule", RULES_READ)
def test_rule_asks_for_what_exists(rule):
    """Every name is in the catalogue, in a recorded sample or recorded by a rule, with its labels and of the right type."""
    found = promql.faults(rule["expr"], NAMES)
    if rule.get("record") in SINCE_THE_START:
        found = [each for each in found if "since the start" not in each]
    assert not found


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_alert_says_who_and_what_to_do(rule):
    """It waits a while, has a severity and an area, names run or process in its summary, and leads to the runbook."""
    assert re.fullmatch(r"\d+[sm]", rule["for"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["labels"]["area"] in ("learning", "running", "hardware", "engine", "pipeline")
    summary = rule["annotations"]["summary"]
    used = set(re.findall(r"\$labels\.(\w+)", summary))
    assert used & {"verl_run_id", "instance"}
    assert used <= promql.labels(promql.parse(rule["expr"]), NAMES) | set(rule["labels"])
    assert rule["annotations"]["runbook_url"] == f"runbook.md#{rule['alert'].lower()}"


def test_every_alert_has_a_section_of_the_runbook_and_no_other_has():
    """What it has seen, and the first three things to look at."""
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^#|\Z)", RUNBOOK.read_text("utf-8"), re.MULTILINE | re.DOTALL))
    assert set(sections) == {rule["alert"] for rule in alerts()}
    for name, text in sections.items():
        assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == ["1", "2", "3"], name
        assert text.strip()[0].isupper(), name


def test_runbook_names_metrics_that_exist():
    """What it sends people to look at is emitted."""
    for name in re.findall(r"`(verl_\w+|process_\w+|hw_\w+)`", RUNBOOK.read_text("utf-8")):
        assert name in NAMES, name


def test_thresholds_are_used_and_there():
    """Each is read by a rule, or drawn by a board as the end of a band, and each that is read is in the one file."""
    read = {name for _, _, rule in read_rules() for name in re.findall(r'verl:threshold\{name="(\w+)"\}', rule["expr"])}
    drawn = set(re.findall(r'verl:threshold\{name=\\?"(\w+)', json.dumps(loader.read()["overview"])))
    assert drawn - read == {row.name for row in AREAS["bands"]}
    assert read | drawn == set(read_thresholds())


def test_thresholds_are_those_of_the_default_profile():
    """The committed file is what the table makes; ``make boards`` writes it."""
    assert (RULES / rules_file.FILE).read_text("utf-8") == rules_file.render(profiles.load())


def test_the_sample_of_thresholds_is_a_profile():
    """Boards are filled with the bands of a profile that has all of them."""
    recorded = dict(re.findall(r'^verl:threshold\{name="(\w+)"\} (\S+)$', THRESHOLDS.read_text("utf-8"), re.MULTILINE))
    assert {name: f"{float(value):g}" for name, value in recorded.items()} == {
        name: f"{value:g}" for name, value in profiles.load("rlhf").values.items()
    }


def test_no_threshold_stands_in_a_rule():
    """An alert compares with a threshold of the file, with what its run did itself, or with 0."""
    for rule in alerts():
        for number in re.findall(r"[<>]=? *(?:bool )?(\d[\d.]*)", rule["expr"]):
            assert number == "0", rule["alert"]


def test_every_name_of_an_older_guide_has_a_test():
    """The scenes have a row for each."""
    recorded = {rule["record"] for file, _, rule in read_rules() if file == "older_names.rules.yml"}
    assert recorded == {*scenes_of_older_names.SAME, "rollout_latency_seconds"}


def test_rules_read_thresholds_of_alerts_that_people_know():
    """Names and numbers of the older guides are kept where they hold for every run."""
    thresholds = read_thresholds()
    assert {"RewardStagnation", "KLExplosion"} <= {rule["alert"] for rule in alerts()}
    assert (thresholds["reference_kl"], thresholds["policy_kl_high"], thresholds["policy_kl_stop"]) == (15, 0.1, 0.2)
    assert next(rule["for"] for rule in alerts() if rule["alert"] == "KLExplosion") == "10m"
