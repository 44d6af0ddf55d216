# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What ``verl-otel explain`` says can be done: one sentence for each kind of cause, a row of a page for each, and settings that verl has."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.builders import explanations
from verl_otel.analysis.model import KINDS, Verdict
from verl_otel.cli import explain

PAGE = Path(__file__).resolve().parents[2] / explain.PAGE


def test_settings_that_the_advice_names_are_settings_of_verl():
    """Each setting in the page exists in the configurations of the installed verl."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("verl is not installed")
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed in this environment")
    verl = Path(spec.submodule_search_locations[0])
    paths = (
        "trainer/config/_generated_ppo_trainer.yaml",
        "experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml",
    )
    settings = [yaml.safe_load((verl / path).read_text("utf-8")) for path in paths]
    names = set(
        re.findall(r"`((?:rollout|actor|trainer|data|reward|async_training)\.[\w.]*\w)", PAGE.read_text("utf-8"))
    )
    assert len(names) > 15
    for name in names:
        path = f"actor_rollout_ref.{name}" if name.startswith(("rollout.", "actor.")) else name
        assert any(_has_setting(each, path.split(".")) for each in settings), name
    sentences = " ".join(explain.ADVICE.values())
    assert set(re.findall(r"\b(?:rollout|trainer|data|reward)\.\w[\w.]*\w", sentences)) <= names


def _has_setting(values, path):
    """Whether nested values have a key."""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def test_what_can_be_done_is_said_once_for_each_kind_of_cause(call, explained):
    """Each kind of cause has one sentence, however many steps it delayed; the page that it names has a row for it."""
    steps = [
        explanations.step(
            n, explanations.HEALTHY, verdicts=(Verdict(n, 4.4, "trajectory", "u/1", "tool", "python", n, n / 10),)
        )
        for n in range(1, 4)
    ]
    explained(explanations.explanation(steps))
    out = call("explain", "r1").out
    assert out.count("  slow tool: ") == 1
    assert f"What to do (table in {explain.PAGE})" in out
    explained(explanations.explanation(explanations.steps(explanations.HEALTHY, 5)))
    assert "What to do" not in call("explain", "r1").out


@pytest.mark.parametrize(
    ("verdict", "key"),
    [
        (Verdict(1, 9, "rank", "rank 3", "worker", "update_actor", 3, 2), "late rank"),
        (Verdict(1, 9, "replica", "llm_server-1", "server", "", 3, 2), "slow replica"),
        (Verdict(1, 9, "tool", "python", "tool", "python", 3, 2), "slow tool"),
        (Verdict(1, 9, "trajectory", "u/1", "trajectory", "", 3, 2), "agent loop"),
        (Verdict(1, 9, "phase", "update_weights", "weight_sync", "", 3, 2), "weight sync"),
        (Verdict(1, 9, "phase", "adv", "phase", "adv", 3, 2), "slow phase"),
        (Verdict(1, 9, "comet", "x", "comet", "", 3, 2), "unknown"),
    ],
)
def test_each_verdict_has_its_advice(verdict, key):
    """What to do follows from who delayed the step, or from the work that took the time."""
    assert explain.find_key(verdict) == key
    assert key in explain.ADVICE


def test_every_kind_of_work_has_advice_and_a_row_in_the_documents():
    """Each kind of segment leads to a sentence, and the table of the page has exactly the rows of the sentences."""
    for kind in KINDS:
        assert explain.find_key(Verdict(1, 9, "phase", "gen", kind, "", 3, 2)) in explain.ADVICE
    assert re.findall(r"^\| `([^`]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE) == list(explain.ADVICE)
