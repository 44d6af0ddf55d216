# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print the runbook: which command answers which question, and what an answer does not prove.

It is Markdown, meant for people on call and for programs that operate a training, such as agents. It names commands only and contains no data of
a run.

Examples:
  verl-otel runbook
  verl-otel runbook > RUNBOOK.md
  verl-otel runbook --skill > SKILL.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

FRONT_MATTER: Final = """---
name: verl-otel
description: Find out why a reinforcement-learning training with verl is slow, hangs or died, from the files of its run. Use it when a training was recorded
  by verl-otel (VERL_OTEL_ENABLED=1), or wrote the log of verl's file logger.
---

"""
"""What programs that load skills read first (agentskills.io)."""
PAGE: Final = Path(__file__).resolve().parent / "runbook.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--skill", action="store_true", help="print it with the front matter of a SKILL.md, for agents")


def run(arguments: argparse.Namespace) -> int:
    """Print the page. Returns 0."""
    print((FRONT_MATTER if arguments.skill else "") + PAGE.read_text("utf-8"), end="")
    return 0
