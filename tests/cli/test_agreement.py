# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""All commands and pages give the same causes, seconds and shares for a recorded run; `tests.recount` asks for real trainings of each mode."""

import pytest

from tests.analysis.test_process_pauses import add_causes
from tests.builders import agreement, stories
from verl_otel.cli.demo.command import RECORDED, RECORDINGS

EACH_TIME = ("slow-tool", "stall")
"""The recorded runs that `make test` asks; it asks its own trainings besides, in `tests.recount`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EACH_TIME else pytest.mark.full) for name in RECORDINGS]
)
def test_commands_and_pages_agree_on_a_recorded_run(name, call):
    """Recorded with real verl, each with another fault."""
    agreement.check(RECORDED / name, lambda *words: call(*words).out)


def test_commands_and_pages_agree_on_several_causes_of_a_step(runs, call):
    """A slow tool and a pause."""
    folder = add_causes(stories.Story(runs / "two", "two"), ("search", 1.9), pause=1.5).write()
    agreement.check(folder, lambda *words: call(*words).out)
