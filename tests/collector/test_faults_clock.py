# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A clock that jumps while a training runs: durations stay true, counts arrive, and nobody crashes."""

import pytest

from tests.collector.steady import await_equal, find_units

HOUR = 3600


@pytest.mark.parametrize(("path", "seconds"), [("scrape", HOUR), ("push", HOUR), ("push", -HOUR)])
def test_a_clock_jumps_and_is_set_right(start_watched, start_training, hasty, path, seconds):
    """The clock of a training jumps by an hour, and back: every step arrives and lasts as long as it did, and the count is right afterwards."""
    tiers = start_watched(path, "traces-to-file.yaml", hasty.gateway, below=[hasty.agent])
    prometheus = tiers.prometheus
    training = start_training(tiers.agent.http_url)
    training.await_units(200)
    training.jump(seconds)
    training.await_units(300)
    training.jump(0)
    training.await_units(300)
    said = training.end()
    assert said["dropped"] == {"spans": {}, "points": {}}
    await_equal(lambda: [value for _, value in prometheus.query("user_things_total")], [said["recorded"]])
    await_equal(lambda: find_units(tiers.gateway.spans()), set(range(1, said["recorded"] + 1)))
    spans = [span for _, _, span in tiers.gateway.spans()]
    starts = [int(each["startTimeUnixNano"]) for each in spans]
    assert max(starts) - min(starts) >= HOUR * 1e9, "the clock has not jumped: this tests nothing"
    lasted = [(int(each["endTimeUnixNano"]) - int(each["startTimeUnixNano"])) / 1e9 for each in spans]
    assert min(lasted) >= 0
    assert max(lasted) < HOUR / 2
