# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The Perfetto trace of a run: parsed with Perfetto's schema, and replayed by the rules of its trace processor."""

import itertools
from collections import defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.test_reader import long_training
from tests.builders import stories
from verl_otel.analysis import Run, reader
from verl_otel.analysis.io import followed_files
from verl_otel.analysis.model import Process
from verl_otel.cli.export.perfetto import Lanes, Selection, split_rows, walk
from verl_otel.model import Resource, SpanRecord

schema = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
    reason="perfetto needs protobuf 6, not that of the lowest versions",
)


class Slice(NamedTuple):
    """A slice as the trace processor makes it of a begin and an end."""

    track: str
    name: str
    start: int
    end: int
    arguments: dict


class Replay:
    """What the trace processor makes of a file: sorted by time, stable in the order of the file, one stack a track."""

    def __init__(self, data):
        trace = schema.Trace.FromString(data)
        self.parents, self.names = {}, {}
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                descriptor = packet.track_descriptor
                assert descriptor.uuid not in self.names, "a track is declared once"
                self.names[descriptor.uuid] = descriptor.name
                self.parents[descriptor.uuid] = descriptor.parent_uuid
        self.slices, self.instants, self.counters = [], [], defaultdict(list)
        self.begins, self.ends = defaultdict(list), defaultdict(list)
        stacks = defaultdict(list)
        events = [packet for packet in trace.packet if packet.HasField("track_event")]
        for packet in sorted(events, key=lambda packet: packet.timestamp):
            event = packet.track_event
            assert event.track_uuid in self.names
            stack = stacks[event.track_uuid]
            if event.type == schema.TrackEvent.TYPE_SLICE_BEGIN:
                stack.append((packet.timestamp, event))
                for number in event.flow_ids:
                    self.begins[number].append(event.name)
                for number in event.terminating_flow_ids:
                    self.ends[number].append(event.name)
            elif event.type == schema.TrackEvent.TYPE_SLICE_END:
                start, begun = stack.pop()
                arguments = {one.name: _value(one) for one in begun.debug_annotations}
                self.slices.append(Slice(self.path(event.track_uuid), begun.name, start, packet.timestamp, arguments))
            elif event.type == schema.TrackEvent.TYPE_INSTANT:
                self.instants.append((self.path(event.track_uuid), event.name))
            else:
                self.counters[self.path(event.track_uuid)].append(event.double_counter_value)
        assert not any(stacks.values()), "every slice ends"

    def path(self, track):
        above = self.parents[track]
        return f"{self.path(above)}/{self.names[track]}" if above else self.names[track]


def _value(annotation):
    kind = next(field.name for field, _ in annotation.ListFields() if field.name != "name")
    return getattr(annotation, kind)


@pytest.fixture
def export(call, tmp_path):
    """Export a folder; returns the replayed trace and what was printed."""

    def run(folder, *options):
        path = tmp_path / "out.pftrace"
        result = call("export", "perfetto", folder, "--output", path, *options)
        assert result.code == 0, result.err
        return Replay(path.read_bytes()), result

    return run


def test_every_span_of_the_files_is_a_slice(export, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    replay, result = export(folder)
    drawn = sorted(
        (one.arguments["span_id"], one.name, one.start, one.end) for one in replay.slices if "span_id" in one.arguments
    )
    recorded = sorted(
        (f"{span.span_id:016x}", span.name, span.start_ns, span.end_ns) for _, span in Run.open(folder).spans()
    )
    assert drawn == recorded
    assert f"{len(recorded)} spans" in result.out
    assert "left out" not in result.err


@pytest.mark.full
def test_steps_have_their_verdict_path_and_gpu_time(export, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    replay, _ = export(folder)
    run = Run.open(folder)
    steps = {one.name: one for one in replay.slices if one.track == "Steps"}
    assert set(steps) == {"step 1", "step 2"}
    assert (
        "rank 1" in steps["step 2"].arguments["verdict 1"] or "update_actor" in steps["step 2"].arguments["verdict 1"]
    )
    path = [one for one in replay.slices if one.track == "Steps/critical path"]
    assert sum(one.end - one.start for one in path) == sum(step.end_ns - step.start_ns for step in run.steps())
    device = min(one.track for one in replay.slices if "GPU time" in one.track)
    causes = next(one.arguments for one in replay.slices if one.track == device)
    expected = {cause: length / 1e9 for cause, length in run.steps()[0].devices[0].nanoseconds.items() if length}
    assert causes == pytest.approx(expected)


def test_arrows_join_trajectories_with_the_step_that_trained_on_them(export, tmp_path):
    replay, _ = export(stories.training(tmp_path / "r1", "r1").write())
    pairs = {(replay.begins[number][0], replay.ends[number][0]) for number in replay.begins}
    assert ("verl.trajectory", "verl.consume") in pairs
    assert all(len(names) == 1 for names in (*replay.begins.values(), *replay.ends.values()))
    assert replay.begins.keys() == replay.ends.keys()


def test_scalars_are_counters(export, tmp_path):
    replay, _ = export(stories.training(tmp_path / "r1", "r1").write())
    assert replay.counters["Metrics/verl.average_reward"] == [0.25, 0.75]


def test_some_steps_only(export, tmp_path):
    replay, _ = export(stories.training(tmp_path / "r1", "r1").write(), "--step", "2")
    assert {one.name for one in replay.slices if one.track == "Steps"} == {"step 2"}
    begin = next(one.start for one in replay.slices if one.track == "Steps")
    assert all(one.end >= begin for one in replay.slices)


def test_the_file_is_the_same_however_the_run_was_read(call, tmp_path, monkeypatch):
    """At once, line by line, and from what was kept of that."""
    folder = long_training(tmp_path / "r1").write()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = [tmp_path / name for name in ("at-once", "by-line", "kept")]
    for path in paths:
        assert call("export", "perfetto", folder, "--steps", "4-6", "--output", path).code == 0
        monkeypatch.setattr(followed_files, "CHUNK_BYTES", 1)
        monkeypatch.setattr(reader, "PIECE_BYTES", 1)
        monkeypatch.setitem(reader.read.__kwdefaults__, "keep_after", 0)
    assert len({path.read_bytes() for path in paths}) == 1


def test_beyond_the_limit_the_slowest_trajectories_are_kept_and_the_rest_is_counted(export, tmp_path):
    story = stories.Story(tmp_path / "r1", "r1")
    trainer, agent = story.process(), story.process("agent_loop")
    step = trainer.span("verl.step", 0, 100, state=stories.STEP, verl__step__number=1)
    for number in range(10):
        calls = [("tool", "python", 0, number), ("tool", "search", number, number + 1)]
        stories.trajectory(agent, 0, number + 1, uid=f"u{number}", calls=calls)
    trainer.span("verl.phase.gen", 0, 50, step)
    replay, result = export(story.write(), "--spans", "20")
    spans = [one for one in replay.slices if "span_id" in one.arguments]
    assert len(spans) <= 20
    whole = {one.arguments["trace_id"] for one in spans if one.name == "verl.turn"}
    roots = {
        one.arguments["verl.sample.uid"]: one.arguments["trace_id"] for one in spans if one.name == "verl.trajectory"
    }
    assert roots["u9"] in whole
    assert {one.name for one in spans} >= {"verl.step", "verl.phase.gen"}
    assert "left out: of " in result.err
    assert "all but the root span" in result.err


def test_a_run_of_other_numbers_says_which_steps_it_has(call, tmp_path):
    folder = stories.training(tmp_path / "r1", "r1").write()
    result = call("export", "perfetto", folder, "--steps", "7-9", "--output", tmp_path / "x")
    assert result.code == 2
    assert "it has 2 steps, 1 to 2" in result.err
    assert not (tmp_path / "x").exists()


def test_processes_with_the_same_pid_on_two_nodes_have_tracks_of_their_own(export, tmp_path):
    story = stories.Story(tmp_path / "r1", "r1")
    for host in ("node-1", "node-2"):
        worker = story.process("agent_loop", 0 if host == "node-1" else 1, host=host, pid=7)
        stories.trajectory(worker, 0, 5)
    replay, _ = export(story.write())
    tracks = {one.track for one in replay.slices if one.name == "verl.trajectory"}
    assert {track.split("/")[0] for track in tracks} == {"node-1", "node-2"}


# -- laws of the placement --

spans_of_a_trace = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=25).map(
    lambda times: [
        SpanRecord(1, number, 0 if number == 1 else 1, f"s{number}", 1, start, start + length, {}, (), (), 0, "", 1, "")
        for number, (start, length) in enumerate(times, 1)
    ]
)


@pytest.mark.full
@given(spans_of_a_trace)
def test_rows_hold_every_span_once_and_nest(spans):
    rows = split_rows(spans)
    assert sorted(span.span_id for row in rows for span in row) == sorted(span.span_id for span in spans)
    for row in rows:
        stack, ended = [], {}
        events = list(walk(row))
        times = [span.start_ns if begins else span.end_ns for span, begins in events]
        assert times == sorted(times)
        for span, begins in events:
            if begins:
                stack.append(span)
            else:
                assert stack.pop() is span
                ended[span.span_id] = span
        assert len(ended) == len(row)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=40))
def test_intervals_of_a_lane_never_touch(intervals):
    lanes, placed = Lanes(), defaultdict(list)
    for begin, length in intervals:
        placed[lanes.place(begin, begin + length)].append((begin, begin + length))
    for members in placed.values():
        ordered = sorted(members)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ordered))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 100)), max_size=60), st.integers(1, 40))
def test_a_selection_stays_within_its_limit_and_keeps_the_slowest(trajectories, limit):
    process = Process(Resource({}), 0, ended=True)
    selection = Selection(limit)
    number, recorded = 0, {}
    for trace_id, (children, duration) in enumerate(trajectories, 1):
        spans = []
        for child in range(children + 1):
            number += 1
            parent = 0 if child == children else 99
            name = "verl.trajectory" if child == children else "verl.turn"
            spans.append(SpanRecord(trace_id, number, parent, name, 1, 0, duration, {}, (), (), 0, "", 1, "verl=t"))
        recorded[trace_id] = (duration, len(spans))
        selection.add_all((process, span) for span in spans)
    kept = {trace_id: len(members) for trace_id, members in selection.traces.items()}
    assert sum(kept.values()) <= limit
    assert selection.removed == len(recorded) - len(kept)
    whole = {trace_id for trace_id, count in kept.items() if count == recorded[trace_id][1]}
    shortest_whole = min((recorded[trace_id][0] for trace_id in whole), default=0)
    assert selection.thinned == len(kept) - len(whole)
    removed = [duration for trace_id, (duration, _) in recorded.items() if trace_id not in kept]
    assert not whole or all(duration <= shortest_whole for duration in removed)
