# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel boards export``: the boards, their provisioning and the rules, and nothing of the code that makes them."""

import json
from pathlib import Path

from verl_otel import cli
from verl_otel.cli import boards, package_data


def test_boards_are_written_with_what_grafana_needs(tmp_path, capsys):
    """Eight boards, provisioning and rules, as they are committed; no Python."""
    assert cli.main(["boards", "export", str(tmp_path / "grafana")]) == 0
    written = {path.relative_to(tmp_path / "grafana") for path in (tmp_path / "grafana").rglob("*") if path.is_file()}
    assert {path.parts[0] for path in written} == set(boards.KINDS)
    assert not [path for path in written if path.suffix == ".py"]
    found = [json.loads((tmp_path / "grafana" / path).read_text()) for path in written if path.suffix == ".json"]
    assert len(found) == 8
    assert all(board["uid"].startswith("verl-") for board in found)
    assert "8 boards" in capsys.readouterr().out


def test_changed_boards_are_not_replaced(tmp_path, capsys):
    """Somebody's own version stays, unless they say otherwise; a second export changes nothing."""
    command = ["boards", "export", str(tmp_path)]
    assert cli.main(command) == 0
    own = tmp_path / "generated" / "overview.json"
    own.write_text("mine")
    assert cli.main(command) == 2
    assert "overview.json" in capsys.readouterr().err
    assert own.read_text() == "mine"
    assert cli.main([*command, "--force"]) == 0
    source = package_data.find_folder("dashboards")
    assert own.read_text() == (source / Path("generated") / "overview.json").read_text()
    assert cli.main(command) == 0
    assert "0 files written" in capsys.readouterr().out


def test_thresholds_are_those_of_a_profile(tmp_path):
    """By name or of a file; all other files are the same."""
    own = tmp_path / "own.toml"
    own.write_text('base = "rlhf"\npolicy_kl_high = 0.3\n')
    assert cli.main(["boards", "export", str(tmp_path / "a")]) == 0
    assert cli.main(["boards", "export", str(tmp_path / "b"), "--profile", str(own)]) == 0
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    differing = [path for path in files if (tmp_path / "a" / path).read_bytes() != (tmp_path / "b" / path).read_bytes()]
    assert differing == [boards.THRESHOLDS]
    text = (tmp_path / "b" / boards.THRESHOLDS).read_text()
    assert "thresholds of the profile own.toml" in text
    assert "name: policy_kl_high}, expr: vector(0.3)" in text
    assert "name: reward_low}, expr: vector(1)" in text


def test_a_profile_is_no_change_of_somebody(tmp_path, capsys):
    """Exporting it again changes nothing; another profile replaces the file with --force only."""
    command = ["boards", "export", str(tmp_path), "--profile"]
    assert cli.main([*command, "math"]) == 0
    assert cli.main([*command, "math"]) == 0
    assert "0 files written" in capsys.readouterr().out
    assert cli.main([*command, "agent"]) == 2
    assert cli.main([*command, "agent", "--force"]) == 0
