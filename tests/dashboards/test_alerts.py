# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The alerts, judged by promtool: each fires when it should, nearly fires, is over afterwards, and nothing else fires meanwhile."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.dashboards import (
    scenes_of_engines,
    scenes_of_hardware,
    scenes_of_learning,
    scenes_of_older_names,
    scenes_of_pipeline,
    scenes_of_running,
    scenes_of_stagnation,
    scenes_of_stalls,
)
from tests.dashboards.scenes import RULES, Scene, alerts, judge, read_rules, read_thresholds
from tests.dashboards.trainings import MINUTE, Training, watch
from verl_otel.health import profiles, rules_file

SAMPLES = Path(__file__).with_name("samples")

PARTS = {
    scenes_of_stalls: ("run", "running", "pipeline"),
    scenes_of_running: ("run", "running"),
    scenes_of_stagnation: ("run", "learning"),
    scenes_of_learning: ("run", "learning"),
    scenes_of_hardware: ("run", "hardware"),
    scenes_of_engines: ("engines",),
    scenes_of_pipeline: ("run", "running", "pipeline"),
    scenes_of_older_names: ("run", "older_names"),
}
"""Scenes and the files of rules that are evaluated for them."""
SCENES = [scene for part in PARTS for scene in part.SCENES]


HEALTHY = {
    "verl_actor_ppo_kl": 0.02,
    "verl_actor_kl_loss": 0.1,
    "verl_actor_entropy": 0.6,
    "verl_actor_pg_loss": -0.1,
    "verl_actor_grad_norm": 0.3,
    "verl_critic_vf_loss": 0.4,
    'verl_reward_score_mean{verl_data_source="math"': 0.5,
    'verl_reward_score_stddev{verl_data_source="math"': 0.5,
    "verl_response_length_mean": 300,
    "verl_response_length_clip_ratio": 1,
    "verl_rollout_tail_share_ratio": 0.3,
    "verl_training_off_policy_trajectory_staleness_worst_max": 0,
}
"""Scalars of a run with which nothing is wrong: rewards of 0 and 1, and a model that does not know yet how to end."""
_verdicts: dict[str, dict[str, str]] = {}


@pytest.mark.parametrize(
    ("part", "scene"), [pytest.param(part, scene, id=scene.name) for part in PARTS for scene in part.SCENES]
)
def test_scene(part, scene, tmp_path, promtool):
    """At each minute exactly these alerts fire, with these words; recorded series have these values."""
    if part.__name__ not in _verdicts:
        _verdicts[part.__name__] = judge(promtool, part.SCENES, PARTS[part], tmp_path)
    wrong = _verdicts[part.__name__][scene.name]
    assert not wrong, wrong


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in alerts()}))
def test_every_alert_has_its_scenes(name):
    """It is seen not to fire yet, to fire, to say what its reader sees, and to be over."""
    fires = [scene for scene in SCENES if any(name in names for names in scene.firing.values())]
    assert fires
    assert any(_is_over(scene.firing, name) for scene in fires)
    assert any(says.alert == name for scene in SCENES for says in scene.says)


def _is_over(firing, name):
    seen = [name in names for _, names in sorted(firing.items())]
    first = seen.index(True) if True in seen else len(seen)
    return first > 0 and False in seen[first:]


def test_scenes_have_names_of_their_own():
    """A name that is there twice would hide a verdict."""
    names = [scene.name for scene in SCENES]
    assert len(names) == len(set(names))


def test_every_rule_evaluates_on_recorded_samples(tmp_path, promtool):
    """All rules together, thresholds too, on what real programs exported: no error, no alert, and what the file says."""
    series = {}
    for stem in ("scalars", "vllm", "sglang", "dcgm", "collector", "prometheus", "hardware"):
        for line in (SAMPLES / f"{stem}.prom").read_text("utf-8").splitlines():
            found = re.fullmatch(r"([\w:]+\{.*\}|[\w:]+) (\S+)(?: # .*)?", line)
            if found and not line.startswith(("#", "ALERTS")):
                growth = 1 if "_sent_" in line else 0  # what stands still is an exporter that is down
                series[found[1]] = [float(found[2]) + n * growth for n in range(21)]
    assert len(series) > 300
    series |= watch([Training(MINUTE, scalars=lambda step: {**HEALTHY, "verl_average_reward": step / 10})], 10)
    scene = Scene(
        "recorded",
        series,
        {5: set(), 10: set()},
        values={
            (10, f'verl:threshold{{name="{name}"}}'): {f'verl:threshold{{name="{name}"}}': value}
            for name, value in read_thresholds().items()
            if value == value
        },
    )
    parts = [path.name.removesuffix(".rules.yml") for path in RULES.glob("*.rules.yml")]
    assert len(parts) > 5
    wrong = judge(promtool, [scene], parts, tmp_path)["recorded"]
    assert not wrong, wrong


@pytest.mark.parametrize("name", profiles.PROFILES)
def test_promtool_finds_no_fault_in_a_profile(name, promtool, tmp_path):
    """The file that ``boards export --profile`` writes."""
    path = tmp_path / rules_file.FILE
    path.write_text(rules_file.render(profiles.load(name)), "utf-8")
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_fault_in_the_rules(promtool):
    """``promtool check rules`` with every lint on, as fatal."""
    files = sorted(RULES.glob("*.rules.yml"))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", *files],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(files) > 5
    assert len(read_rules()) > 100
