# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page for readers of other guides: what it sends them to is there, and each name that is kept for them is on it."""

import re
from pathlib import Path

import pytest

from verl_otel.config import SETTINGS
from verl_otel.exporting.tensorboard import tags
from verl_otel.health.thresholds import DEFAULTS

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "reference" / "other-guides.md").read_text("utf-8")
RULES = [
    rule
    for path in sorted((TOP / "dashboards" / "rules").glob("*.rules.yml"))
    for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
    for rule in [{**rule, "file": path.name} for rule in group["rules"]]
]
pytestmark = pytest.mark.sources


def test_its_settings_and_thresholds_are_there():
    assert {*re.findall(r"VERL_OTEL_\w+", PAGE)} <= {setting.variable for setting in SETTINGS}
    assert {*re.findall(r"threshold `(\w+)`", PAGE)} <= {*DEFAULTS}


def test_its_alerts_are_there():
    """Names in capitals without a code mark are those of alerts."""
    plain = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", PAGE)
    named = {*re.findall(r"\b(?:[A-Z]+[a-z]+){2,}\b|\bGPU[A-Z][a-z]+\w*", plain)} - {"TensorBoard", "PyTorch"}
    assert {"RewardStagnation", "GPUMemoryHigh"} <= named
    assert named - {"AgentLoopManager"} <= {rule["alert"] for rule in RULES if "alert" in rule}


def test_it_has_each_name_that_rules_record_for_other_guides():
    recorded = {rule["record"] for rule in RULES if rule["file"] == "older_names.rules.yml" and "record" in rule}
    named = {*re.findall(r"[\w/]+", PAGE)}
    named |= {name.replace("/", "_") for name in named} | {
        f"{name}_{end}" for name in named for end in ("bucket", "sum", "count")
    }
    assert recorded - {"system_memory_utilization"} <= named


def test_it_has_each_tag_with_a_name_of_guides():
    assert {name for name in tags.SHORT if name != "ppo/kl_reference"} <= {*re.findall(r"`([\w/]+)`", PAGE)}
