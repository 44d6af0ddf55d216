# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Agent and gateway under a steady load: what they hold without a drop, and what more of it does. `make test-pipeline LOAD=1` prints the figures."""

import itertools

import pytest

from tests.collector.load import put_under_load

LIMIT = {"agent": 512, "gateway": 4096}
"""Mebibytes, as shipped."""
STEP = 10_000
"""Spans per second by which the search goes up."""


def has_held(outcome):
    """Whether a load was taken as it came: nothing refused, nothing lost, nothing that piled up."""
    return not outcome.refused and not outcome.lost and outcome.rate > 0.95 * outcome.asked and outcome.drained < 3


def test_a_load_of_two_thousand_spans_a_second(start_pipeline):
    """2,000 spans and 500 points a second for 5 s: all of it arrives, nothing is refused or lost, and memory stays far below the limits."""
    tiers = start_pipeline("traces-to-file.yaml")
    outcome = put_under_load(tiers, 2000, 5)
    assert (outcome.refused, outcome.lost) == (0, 0)
    assert outcome.accepted >= 5000
    assert outcome.points == outcome.accepted / 4
    assert tiers.gateway.own("otelcol_receiver_accepted_spans") == outcome.accepted
    assert tiers.gateway.own("otelcol_receiver_accepted_metric_points") == outcome.points
    assert outcome.agent_mib < LIMIT["agent"]
    assert outcome.gateway_mib < LIMIT["gateway"]


@pytest.mark.pipeline
def test_the_highest_load_that_holds_and_twice_that(start_pipeline, capsys):
    """The highest rate that holds for a minute, on this machine, with bounded memory and no drop; at twice that nothing that was taken is lost."""
    numbers = itertools.count()

    def load(rate, seconds):
        tiers = start_pipeline("traces-to-file.yaml")
        outcome = put_under_load(tiers, rate, seconds)
        for each in (tiers.agent, tiers.gateway):
            each.kill()
            each.folder.rename(each.folder.with_name(f"{each.name}-{next(numbers)}"))
        with capsys.disabled():
            print(outcome.describe(), flush=True)
        return outcome

    held = 0
    for rate in itertools.count(STEP, STEP):
        if not any(has_held(load(rate, 10)) for _ in range(2)):  # a busy moment of the machine is not the end
            break
        held = rate
    while held and not has_held(outcome := load(held, 60)):
        held -= STEP // 2
    assert held, "no rate holds"
    assert outcome.agent_mib < LIMIT["agent"]
    assert outcome.gateway_mib < LIMIT["gateway"]
    twice = load(2 * held, 60)
    assert twice.lost == 0
    assert twice.agent_mib < LIMIT["agent"]
    assert twice.gateway_mib < LIMIT["gateway"]
