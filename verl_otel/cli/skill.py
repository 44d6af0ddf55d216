# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print the runbook as a SKILL.md, for agents.

It is the page of `verl-otel runbook` below the front matter that programs read first which load skills (agentskills.io).

Examples:
  mkdir -p ~/.agents/skills/verl-otel && verl-otel skill > ~/.agents/skills/verl-otel/SKILL.md
"""

from __future__ import annotations

import argparse
from typing import Final

from verl_otel.cli.runbook import PAGE

FRONT_MATTER: Final = """---
name: verl-otel
description: Find out why a reinforcement-learning training with verl is slow, hangs or died, from the files of its run. Use it when a training was recorded
  by verl-otel (VERL_OTEL_ENABLED=1), or wrote the log of verl's file logger.
---

"""


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: none."""


def run(_arguments: argparse.Namespace) -> int:
    """Print the page. Returns 0."""
    print(FRONT_MATTER + PAGE.read_text("utf-8"), end="")
    return 0
