# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel runbook``: every command, option and key of it exists."""

import argparse
import json
import re
from importlib import import_module

import pytest
import yaml

from tests.builders import stories
from verl_otel.cli import COMMANDS
from verl_otel.cli.runbook import PAGE

TEXT = PAGE.read_text("utf-8")
CALLS = sorted(set(re.findall(r"`verl-otel ([a-z]+)([^`]*)`", TEXT)))


def test_it_is_printed(call):
    result = call("runbook")
    assert (result.code, result.out) == (0, TEXT)


@pytest.mark.parametrize(("command", "rest"), CALLS)
def test_commands_and_options_exist(command, rest):
    parser = argparse.ArgumentParser()
    import_module(COMMANDS[command]).add_arguments(parser)
    known = parser.format_help()
    for option in re.findall(r"--[a-z-]+", rest):
        assert option in known


def test_the_keys_that_it_names_are_in_the_json(call, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    explained = json.loads(call("explain", "--json", folder).out)
    assert {"verdicts", "path", "savings", "path_summed"} <= set(explained["steps"][0])
    assert {"gpu", "stragglers"} <= set(explained["run"])
    assert {"missing", "clocks"} <= set(explained)
    reported = json.loads(call("report", "--json", folder).out)
    assert {"uid", "index", "parts"} <= set(reported["trajectories"][0])
    compared = json.loads(call("compare", "--json", folder, folder).out)
    assert {"rows", "explanation"} <= set(compared)


def test_it_is_a_skill(call):
    """With a front matter that a YAML parser reads: a name, and when to use it; below it the same page."""
    _, front, page = call("skill").out.split("---\n", 2)
    assert yaml.safe_load(front).keys() == {"name", "description"}
    assert page.lstrip() == call("runbook").out
