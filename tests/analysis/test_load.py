# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What was written is read back, from one folder or several, with what was still open."""

import gc
import json
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import verl_otel
from verl_otel.analysis.load import read_run
from verl_otel.exporting.files import FileExporter
from verl_otel.exporting.fold import State
from verl_otel.model import Batch, LinkRecord, Resource, Scope, SpanRecord

PRIMITIVES = [st.text(max_size=20), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)]
VALUES = st.one_of(*PRIMITIVES, *(st.lists(each, min_size=1, max_size=3).map(tuple) for each in PRIMITIVES))
ATTRIBUTES = st.dictionaries(st.text(max_size=10), VALUES, max_size=4)
IDS, TRACE_IDS = st.integers(1, 2**64 - 1), st.integers(1, 2**128 - 1)
TIMES = st.integers(0, 2**63 - 1)
SPANS = st.builds(
    SpanRecord,
    TRACE_IDS,
    IDS,
    st.one_of(st.just(0), IDS),
    st.text(max_size=30),
    st.integers(1, 5),
    TIMES,
    TIMES,
    ATTRIBUTES,
    st.lists(st.builds(LinkRecord, TRACE_IDS, IDS, ATTRIBUTES, st.just(""), st.just(0)), max_size=3).map(tuple),
    st.just(()),
    st.integers(0, 2),
    st.text(max_size=20),
    st.sampled_from([1, 0x201]),
    st.sampled_from(["", "verl=s", "verl=t"]),
    st.none(),
)


@given(st.lists(SPANS, min_size=1, max_size=5, unique_by=lambda span: (span.trace_id, span.span_id)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_reading_is_the_inverse_of_writing(tmp_path_factory, spans):
    """Every span that the file exporter writes is read back equal, in the order of its start."""
    folder = tmp_path_factory.mktemp("run")
    exporter = FileExporter(folder)
    exporter.open(Resource({"service.instance.id": "r1/trainer-0", "process.pid": 7}), Scope("s"), State())
    exporter.put(Batch(0, tuple(spans)))
    exporter.close(0)
    loaded = read_run([folder])
    read = [each.span._replace(flags=each.span.flags & ~0x100) for each in loaded.spans]
    assert read == sorted(spans, key=lambda span: span.start_ns)
    assert not loaded.problems


def test_a_real_session_is_read(tmp_path):
    """What a session wrote has one process, its spans, its scalars, and nothing open."""
    verl_otel.init(exporters="file", run_dir=tmp_path, run_id="real")
    try:
        with verl_otel.step(1), verl_otel.phase("gen"):
            pass
        verl_otel.gauge("my.gauge").set(2.5, kind="x")
    finally:
        verl_otel.shutdown()
    run = read_run([tmp_path / "real"])
    assert (run.run_id, len(run.processes), run.problems) == ("real", 1, ())
    assert [loaded.span.name for loaded in run.spans] == ["verl.step", "verl.phase.gen"]
    (scalar,) = (each for each in run.scalars if each.name == "my.gauge")
    assert (scalar.value, scalar.labels) == (2.5, (("kind", "x"),))
    assert run.processes[0].ended
    assert run.processes[0].newest_ns >= max(loaded.span.end_ns for loaded in run.spans)


def test_several_folders_are_one_run(stories, tmp_path):
    """Folders of several nodes make one run; its record is taken from whichever has one."""
    nodes = [stories.Story(tmp_path / name / "r1") for name in ("a", "b")]
    for number, (story, host) in enumerate(zip(nodes, ("a", "b"), strict=True)):
        stories.step(story.process(host=host, pid=7), number, number, number + 1)
        story.write()
    nodes[1].manifest(verl__project="p")
    run = read_run([story.folder for story in nodes])
    assert [loaded.span.attributes["verl.step.number"] for loaded in run.spans] == [0, 1]
    assert run.manifest["verl.project"] == "p"
    assert [process.resource.text("host.name") for process in run.processes] == ["a", "b"]


def test_processes_are_told_apart_by_host_pid_and_instance(stories, story):
    """The same process id on two hosts is two processes; the files of one process are one."""
    for host in ("a", "b"):
        process = story.process("actor_rollout_ref", host=host, pid=1)
        stories.step(process, 1, 0, 1)
        process.scalar("x", 5, 1.0)
    run = read_run([story.write()])
    assert len(run.processes) == 2
    assert [process.label for process in run.processes] == [
        "actor_rollout_ref-0 (pid 1 on a)",
        "actor_rollout_ref-0 (pid 1 on b)",
    ]
    assert [process.newest_ns for process in run.processes] == [stories.at(5)] * 2


def test_what_a_process_says_later_of_itself_is_added(stories, tmp_path):
    """A process whose first lines do not say yet what the run is, is one process, which says it."""
    story = stories.Story(tmp_path / "r1")
    for more in ({}, {"verl__project": "bed"}, {}):
        stories.step(story.process(pid=7, **more), 1, 0, 1)
    lines = [json.dumps(each) + "\n" for process in story.processes for each in process.lines()["traces"]]
    (tmp_path / "traces-trainer-node-1-7.jsonl").write_text("".join(lines))
    run = read_run([tmp_path])
    assert len(run.spans) == 3
    (process,) = run.processes
    assert process.resource.text("verl.project") == "bed"


def test_rotated_files_are_read_and_others_left_alone(stories, story):
    """Files of every rotation belong to the run; files of other kinds do not."""
    process = story.process()
    stories.step(process, 1, 0, 1)
    folder = story.write()
    (path,) = folder.glob("traces-*")
    process.spans.clear()
    stories.step(process, 2, 1, 2)
    path.rename(path.with_suffix(".1.jsonl"))
    story.write()
    (folder / "notes.jsonl").write_text("not ours\n")
    (folder / "training.log").write_text("not ours either\n")
    run = read_run([folder])
    assert [loaded.span.attributes["verl.step.number"] for loaded in run.spans] == [1, 2]
    assert not run.problems


def test_open_rows_are_dropped_once_their_span_has_ended(stories, story):
    """Of what was written as open only what has not ended in any file is left."""
    trainer = story.process()
    ended = stories.step(trainer, 1, 0, 10)
    opened = trainer.still_open("verl.phase.gen", 5, 8, ended, last_child="verl.consume")
    trainer.opened.append(ended._replace(end_ns=0))
    run = read_run([story.write()])
    (left,) = run.open_spans
    assert (left.span.name, left.age, left.last_child) == ("verl.phase.gen", 3.0, "verl.consume")
    assert left.written_ns == stories.at(8)
    assert left.span.parent_id == ended.span_id
    assert opened.span_id == left.span.span_id
    assert not run.processes[0].ended


def test_scalars_keep_what_json_cannot_say(story):
    """NaN and the infinities are read back as numbers, integers too."""
    process = story.process()
    for second, value in enumerate([float("inf"), float("-inf"), 3, -1.5]):
        process.scalar("x", second, value)
    process.scalar("n", 0, float("nan"))
    run = read_run([story.write()])
    assert [scalar.value for scalar in run.scalars if scalar.name == "x"] == [float("inf"), float("-inf"), 3.0, -1.5]
    (nan,) = (scalar.value for scalar in run.scalars if scalar.name == "n")
    assert nan != nan


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a file", "other files"])
def test_a_folder_without_a_run_is_named(tmp_path, there):
    """A folder that does not exist or holds no file of ours is named in the error."""
    folder = tmp_path / "x"
    if there == "a file":
        folder.write_text("")
    elif there != "nothing":
        folder.mkdir()
        if there == "other files":
            (folder / "a.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=f"^{folder} holds no run: expected traces-"):
        read_run([folder])


def test_a_run_that_has_only_begun_can_be_read(story):
    """A folder with nothing but run.json is a run without spans."""
    story.manifest(verl__project="p")
    run = read_run([story.folder])
    assert (run.run_id, run.spans, run.processes) == ("r1", (), ())


@pytest.mark.filterwarnings("default")
def test_files_are_closed_after_reading(stories, story):
    """Reading a run leaves no file open."""
    stories.step(story.process(), 1, 0, 1)
    folder = story.write()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        read_run([Path(folder)])
        gc.collect()
    assert not caught
