# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What counters and gauges of all processes say about a whole run: ends of trajectories, weight syncs, and memory."""

from verl_otel.analysis import whole_run
from verl_otel.analysis.model import Series
from verl_otel.cli import wording


def make(name, values, **labels):
    pairs = tuple((key.replace("__", "."), value) for key, value in labels.items())
    return Series(f"verl.{name}", pairs, tuple(range(len(values))), tuple(map(float, values)))


def test_ends_are_those_of_all_processes_and_attempts():
    """A process that is started again counts from 0; validations are no training."""
    series = [
        make("rollout.trajectories", (3, 8, 2), verl__trajectory__end="finished", verl__validate="false", instance="a"),
        make("rollout.trajectories", (5,), verl__trajectory__end="finished", verl__validate="false", instance="b"),
        make("rollout.trajectories", (1, 4), verl__trajectory__end="timeout", verl__validate="false", instance="b"),
        make("rollout.trajectories", (9,), verl__trajectory__end="finished", verl__validate="true", instance="a"),
        make("rollout.dropped", (2,), reason="stale"),
    ]
    ends = whole_run.count_ends(series)
    assert ends == ({"finished": 15, "timeout": 4}, {"stale": 2})
    assert list(wording.describe_ends(ends)) == [
        "     15   79%  finished by the model",
        "      4   21%  ended by a time-out",
        "      2   11%  never trained on: older than the limit of staleness",
    ]
    assert list(wording.describe_ends(whole_run.count_ends(series[:2]))) == [], "all finished is no news"


def test_a_few_of_many_are_not_rounded_away():
    """Neither are all that they are missing from."""
    ends = whole_run.TrajectoryEnds({"finished": 999, "timeout": 1}, {})
    assert list(wording.describe_ends(ends)) == [
        "    999  >99%  finished by the model",
        "      1   <1%  ended by a time-out",
    ]


def test_a_counter_that_reaches_its_last_value_again_in_another_attempt_counts_twice():
    """The number of a process is the same in each attempt; when these began is known."""
    series = [make("rollout.trajectories", (1, 1), verl__trajectory__end="finished", instance="a")]
    assert whole_run.count_ends(series).ended == {"finished": 1}
    assert whole_run.count_ends(series, [1]).ended == {"finished": 2}


def test_a_sync_is_that_of_the_slowest_process_of_each_kind():
    """Ranks make the weights and load or send them, which are two kinds, and replicas receive and load them; values are medians over the syncs."""
    series = [
        make("weight_sync.size", (2048, 2048), instance="rank-0"),
        make("weight_sync.part.duration", (0.5, 1.5, 0.7), verl__part="gather", instance="rank-0"),
        make("weight_sync.part.duration", (0.1, 0.3, 0.2), verl__part="send", instance="rank-0"),
        make("weight_sync.part.duration", (0.3,), verl__part="load", instance="rank-0"),
        make("weight_sync.size", (2048,), instance="rank-1"),
        make("weight_sync.part.duration", (0.1,), verl__part="gather", instance="rank-1"),
        make("weight_sync.size", (2048,), instance="rollout-0"),
        make("weight_sync.part.duration", (0.25,), verl__part="load", instance="rollout-0"),
        make("weight_sync.part.duration", (0.75,), verl__part="receive", instance="rollout-0"),
    ]
    assert list(wording.describe_syncs(whole_run.find_weight_syncs(series))) == [
        "2.0 KiB in 1.00 s, 2.0 KiB a second: gather 700 ms, load 300 ms (medians of rank-0)",
        "2.0 KiB in 900 ms, 2.2 KiB a second: gather 700 ms, send 200 ms (medians of rank-0)",
        "2.0 KiB in 1.00 s, 2.0 KiB a second: receive 750 ms, load 250 ms (medians of rollout-0)",
    ]
    assert whole_run.find_weight_syncs(series[1:2]) == [], "without a size there is no rate"


def test_memory_is_that_of_the_processes_that_grew_most_since_the_newest_attempt_began():
    """The name of a process is the same in each attempt; one value proves no growth."""

    def resident(*values, **labels):
        return Series(
            "process.memory.usage", tuple(labels.items()), tuple(range(len(values))), tuple(map(float, values))
        )

    series = [
        resident(8192, 1024, 3072, 2048),
        resident(1024, 1024, 5120, instance="agent_loop-0"),
        resident(9216, instance="reward-0"),
        resident(1024, 2048, 2048, instance="rank-0"),
        resident(1024, 2048, 1024, instance="rank-1"),
    ]
    assert list(wording.describe_memory(whole_run.find_memory(series, [1]))) == [
        "   5.0 KiB  agent_loop-0: 1.0 KiB at its first record",
        "   2.0 KiB  trainer: 1.0 KiB at its first record, at most 3.0 KiB",
        "   2.0 KiB  rank-0: 2.0 KiB at its first record",
    ]
