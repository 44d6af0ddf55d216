# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What counters and gauges of all processes say about a whole run: ends of trajectories, weight syncs, spilled objects, and memory."""

import pytest

from tests.builders import explanations
from verl_otel.analysis import whole_run
from verl_otel.analysis.model import Series, Verdict
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
    assert ends == whole_run.TrajectoryEnds({"finished": 15, "timeout": 4}, {"stale": 2})
    assert list(wording.describe_ends(ends)) == [
        "     15   79%  finished by the model",
        "      4   21%  ended by a time-out",
        "      2   11%  never trained on: older than the limit of staleness",
    ]
    assert list(wording.describe_ends(whole_run.count_ends(series[:2]))) == [], "all finished is no news"


def test_spans_that_are_in_no_file_are_counted():
    """Those that an endpoint did not take are in the files all the same."""
    series = [
        make("otel.spans.dropped", (3, 5, 5), reason="file: cannot write /data/r1"),
        make("otel.spans.dropped", (2,), reason="memory", instance="agent_loop-1"),
        make("otel.spans.dropped", (7,), reason="otlp: queue full"),
    ]
    text = "spans: 7 spans could not be written (file: cannot write /data/r1, memory): steps and parts of steps may be missing"
    assert whole_run.describe_lost(series) == text
    assert whole_run.describe_lost(series[2:]) == ""


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
    """The name of a process is the same in each attempt; one value proves no growth, and equal ones are none."""

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
    ]


def test_a_sleeping_engine_keeps_what_is_a_notable_share_of_a_gpu():
    """Where the size of the GPU is not known, whatever it is."""
    series = [
        make("engine.memory.asleep", (4096, 3072), hw__id="GPU-a", instance="llm_server-0"),
        make("engine.memory.asleep", (512,), hw__id="GPU-b", instance="llm_server-1"),
        make("engine.memory.asleep", (1024,), hw__id="GPU-c", instance="llm_server-2"),
        *(
            Series("hw.gpu.memory.limit", (("hw.id", name), ("instance", "rank-0")), (0,), (20480.0,))
            for name in ("GPU-a", "GPU-b")
        ),
    ]
    assert list(wording.describe_kept(whole_run.find_kept(series))) == [
        "   3.0 KiB of 20.0 KiB (15%)  llm_server-0 on GPU-a, at most 4.0 KiB",
        "   1.0 KiB  llm_server-2 on GPU-c",
    ]


def make_spilled(*points, kind="time", direction="read", instance="rank-0"):
    times, values = zip(*points, strict=True)
    labels = (("disk.io.direction", direction), ("instance", instance))
    return Series(f"verl.ray.spill.{kind}", labels, tuple(round(second * 1e9) for second in times), values)


def test_what_was_spilled_is_added_up_over_nodes_and_processes_that_were_started_again():
    series = [
        make_spilled((1, 2048.0), (2, 4096.0), (3, 1024.0), kind="io", direction="write"),
        make_spilled((1, 2.0), (2, 4.0), (3, 1.0), direction="write"),
        make_spilled((1, 1024.0), kind="io", instance="rank-8"),
    ]
    assert list(wording.describe_spilled(whole_run.find_spilled(series))) == [
        "   5.0 KiB  written to disk, because it was full: 5.00 s, 1.0 KiB a second",
        "   1.0 KiB  read back: 0 ms",
    ]
    assert whole_run.find_spilled(series[1:2]) == []
    resumed = [make_spilled((1, 1024.0), (3, 3072.0), kind="io")]
    assert [whole_run.find_spilled(resumed, restarts)[0].bytes for restarts in ((), (2 * 10**9,))] == [3072, 4096]


@pytest.mark.parametrize(
    ("points", "direction", "cause"),
    [
        pytest.param([(105, 9.0)], "read", "spill", id="read meanwhile"),
        pytest.param([(120, 9.0)], "read", "spill", id="recorded a little later"),
        pytest.param([(130, 9.0)], "read", "call", id="read by another step"),
        pytest.param([(95, 9.0), (105, 10.0)], "read", "call", id="too little to explain it"),
        pytest.param([(105, 9.0)], "write", "call", id="written: the time of that is not known"),
    ],
)
def test_a_long_transport_is_named_after_what_was_read_from_disk_meanwhile(points, direction, cause):
    """Other causes keep their names."""
    verdicts = tuple(
        Verdict(1, 10.0, "phase", "update_actor", kind, "update_actor", 6.0, 6.0) for kind in ("call", "worker")
    )
    bare = explanations.step(1, explanations.HEALTHY, begin=100 * 10**9)
    step = bare._replace(end_ns=110 * 10**9, verdicts=verdicts)
    (named,) = whole_run.name_reads([step], [make_spilled(*points, direction=direction)])
    assert [verdict.cause for verdict in named.verdicts] == [cause, "worker"]
    if cause == "spill":
        assert wording.describe_verdict(named.verdicts[0]) == (
            "Phase update_actor delayed it: 6.00 s longer than in other steps, most of it in transport, while Ray read spilled objects "
            "back from disk. Without that the step would have been 6.00 s shorter."
        )
