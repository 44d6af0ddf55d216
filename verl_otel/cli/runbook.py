# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print the runbook: which command answers which question, and what an answer does not prove.

It is Markdown, meant for people on call and for programs that operate a training; `verl-otel skill` prints it for agents. It names commands only
and contains no data of a run.

Examples:
  verl-otel runbook
  verl-otel runbook > RUNBOOK.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parent / "runbook.md"


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: none."""


def run(_arguments: argparse.Namespace) -> int:
    """Print the page. Returns 0."""
    print(PAGE.read_text("utf-8"), end="")
    return 0
