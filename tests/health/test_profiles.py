# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles of thresholds: by name, in a file, in the manifest of a run, and as rules for Prometheus."""

import json
import math
import re

import pytest

from verl_otel.health import profiles, rules_file
from verl_otel.health.thresholds import AREAS, DEFAULTS


def same(a, b):
    """Whether two thresholds are equal; NaN equals NaN."""
    return a == b or (math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("name", profiles.PROFILES)
def test_a_profile_has_every_threshold(name):
    """It changes thresholds that are there, and has the defaults for all others."""
    profile = profiles.load(name)
    assert profile.name == name
    assert profile.values.keys() == DEFAULTS.keys()
    assert profiles.PROFILES[name].keys() <= DEFAULTS.keys()
    for threshold, value in profile.values.items():
        assert same(value, profiles.PROFILES[name].get(threshold, DEFAULTS[threshold]))


@pytest.mark.parametrize("name", profiles.PROFILES)
def test_ends_of_a_band_are_in_order(name):
    """A band has its low end below its high end, and an alert does not fire inside of its band."""
    values = profiles.load(name).values
    for stem in ("reward_band", "policy_kl_band", "policy_loss_band", "response_band"):
        low, high = values[f"{stem}_low"], values[f"{stem}_high"]
        assert math.isnan(low) or math.isnan(high) or low < high, stem
    assert not values["reward_low"] > values["reward_band_low"]
    assert not values["policy_kl_high"] < values["policy_kl_band_high"]
    assert not values["response_near"] < values["response_band_high"]


def test_every_threshold_that_is_off_says_what_to_try():
    """The text before goes for those that have none."""
    for rows in AREAS.values():
        text = ""
        for row in rows:
            text = row.text or text
            if math.isnan(row.value) and not row.name.endswith(("_low", "_high")):
                assert "off" in text.lower(), row.name
                assert "Try " in text, row.name


def test_a_file_changes_a_profile(tmp_path):
    """It begins with another profile; comments and empty lines are allowed, nan is off."""
    path = tmp_path / "mine.toml"
    path.write_text('base = "math"\n\n# ours\npolicy_kl_high = 0.3  # several updates\nentropy = nan\n')
    profile = profiles.load(str(path))
    assert profile.name == "mine.toml"
    assert profile.values["policy_kl_high"] == 0.3
    assert math.isnan(profile.values["entropy"])
    assert profile.values["reward_low"] == profiles.PROFILES["math"]["reward_low"]
    assert profile.values["stall_factor"] == DEFAULTS["stall_factor"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy_kl_hihg = 0.3", "line 1: there is no threshold 'policy_kl_hihg'"),
        ("\nentropy = low", "line 2: 'low' is no number; nan is off"),
        ("entropy = inf", "line 1: entropy must be finite; nan is off"),
        ("entropy 0.1", "line 1: write NAME = NUMBER, as policy_kl_high = 0.1"),
        ('base = "maths"', "line 1: there is no profile 'maths': use default, rlhf, math, agent"),
    ],
)
def test_a_line_that_is_no_threshold_is_named(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        profiles.parse(text)


def test_a_file_that_is_missing_or_too_large_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        profiles.load(str(tmp_path / "none.toml"))
    large = tmp_path / "large.toml"
    large.write_text("#" * (profiles.MAX_BYTES + 1))
    with pytest.raises(ValueError, match="at most"):
        profiles.load(str(large))


@pytest.mark.parametrize("name", profiles.PROFILES)
def test_the_manifest_of_a_run_has_its_profile(name, tmp_path):
    """It is read back as it was, own files included: the live page may run on another machine."""
    path = tmp_path / "own.toml"
    path.write_text(f'base = "{name}"\nentropy = nan\npolicy_kl_stop = 0.4\n')
    for profile in (profiles.load(name), profiles.load(str(path))):
        read = profiles.from_manifest(json.loads(json.dumps(profiles.to_manifest(profile))))
        assert read.name == profile.name
        assert all(same(read.values[each], profile.values[each]) for each in DEFAULTS)


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"health_profile": "x"},
        {"health_profile": 3, "health_thresholds": "{"},
        {"health_thresholds": '{"entropy": "x"}'},
        {"health_thresholds": '{"entropy": Infinity}'},
        {"health_thresholds": "[]"},
    ],
)
def test_a_damaged_manifest_has_the_default(manifest):
    read = profiles.from_manifest(manifest)
    assert all(same(read.values[each], DEFAULTS[each]) for each in DEFAULTS)


def test_rules_have_the_thresholds_of_the_profile():
    """Each is recorded once, with its value, below the text that explains it."""
    yaml = pytest.importorskip("yaml")
    profile = profiles.load("agent")
    (group,) = yaml.safe_load(rules_file.render(profile))["groups"]
    recorded = {rule["labels"]["name"]: float(rule["expr"][7:-1]) for rule in group["rules"]}
    assert len(group["rules"]) == len(recorded) == len(DEFAULTS)
    assert all(same(recorded[name], value) for name, value in profile.values.items())
    assert "profile agent" in rules_file.render(profile)
