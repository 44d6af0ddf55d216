# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What was written is read back, from one folder or several, with the processes that wrote it and what was still open."""

import gc
import json
import warnings

import pytest

from tests.builders import stories
from verl_otel.analysis import reader
from verl_otel.analysis.io import run_files
from verl_otel.analysis.io.run_files import Extent, Writers
from verl_otel.analysis.model import Process
from verl_otel.errors import VerlOtelError
from verl_otel.model import Resource


def whole(folder, kind="traces"):
    """All of the files of a kind."""
    return [Extent(path, 0, path.stat().st_size) for path in run_files.find_files([folder], kind)]


def spans_of(folder):
    """The spans of a folder with the processes, and what was wrong."""
    writers, problems = Writers(), []
    found = [span for _, spans in run_files.read_spans(whole(folder), writers, problems) for span in spans]
    return found, writers, problems


def test_processes_are_told_apart_by_host_pid_and_instance(story):
    """The same process id on two hosts is two processes; the files of one process are one."""
    for host in ("a", "b"):
        process = story.process("actor_rollout_ref", host=host, pid=1)
        stories.step(process, 1, 0, 1)
        process.scalar("x", 5, 1.0)
    folder = story.write()
    writers = Writers()
    for kind, read in (("traces", run_files.read_spans), ("metrics", run_files.read_points)):
        list(read(whole(folder, kind), writers, []))
    assert [values["host.name"] for values in writers.resources] == ["a", "b"]


def test_what_a_process_says_later_of_itself_is_added(tmp_path):
    """A process whose first lines do not say yet what the run is, is one process, which says it."""
    story = stories.Story(tmp_path / "r1")
    for more in ({}, {"verl__project": "bed"}, {}):
        stories.step(story.process(pid=7, **more), 1, 0, 1)
    lines = [json.dumps(each) + "\n" for process in story.processes for each in process.lines()["traces"]]
    (tmp_path / "traces-trainer-node-1-7.jsonl").write_text("".join(lines))
    found, writers, _ = spans_of(tmp_path)
    assert len(found) == 3
    (values,) = writers.resources
    assert values["verl.project"] == "bed"


def test_a_process_is_shown_by_instance_pid_and_host():
    """People see who it was and where."""
    values = {"service.instance.id": "run/with/slashes/agent_loop-3", "process.pid": 77, "host.name": "node-1"}
    process = Process(Resource(values), 0, ended=True)
    assert (process.instance, process.label) == ("agent_loop-3", "agent_loop-3 (pid 77 on node-1)")


def test_an_extent_holds_the_lines_that_begin_in_it(story):
    """Cut anywhere, two parts of a file hold each line once."""
    trainer = story.process()
    for number in range(5):
        stories.step(trainer, number, number, number + 1)
    (path,) = run_files.find_files([story.write()], "traces")
    data = path.read_bytes()
    starts = [0, *(place + 1 for place, byte in enumerate(data) if byte == ord("\n"))][:-1]
    for cut in (0, 1, starts[2] - 1, starts[2], starts[2] + 1, len(data)):
        parts = [
            [place for _, place, _ in run_files.read_lines([Extent(path, *each)], [])]
            for each in ((0, cut), (cut, len(data)))
        ]
        assert parts[0] == [place for place in starts if place < cut]
        if cut in starts:
            assert parts[0] + parts[1] == starts


def test_open_work_is_read_with_its_age(story):
    """A row of what was open says for how long, its last child, and when that was written."""
    story.process().still_open("verl.phase.gen", 5, 8, last_child="verl.consume")
    writers = Writers()
    (row,) = run_files.read_open([story.write()], writers, [])
    assert (row.span.name, row.age, row.last_child, row.written_ns) == (
        "verl.phase.gen",
        3.0,
        "verl.consume",
        stories.at(8),
    )
    assert writers.newest == [stories.at(8)]


@pytest.mark.parametrize("values", [{"verl.open.age": "old"}, {"verl.open.written": 0.5}, {}])
def test_open_work_that_does_not_say_its_age_is_read(story, values):
    """Values of another kind do not stop the reading."""
    story.process().span("verl.step", 0, None, **{key.replace(".", "__"): value for key, value in values.items()})
    (row,) = run_files.read_open([story.write()], Writers(), [])
    assert (row.age, row.written_ns) == (0.0, 0)


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
        run_files.check_folders([folder])


def test_a_folder_that_is_named_twice_is_read_once(story, tmp_path):
    """The same folder under two names is one folder."""
    folder = tmp_path / "r1"
    story.manifest()
    assert run_files.check_folders([folder, folder / ".." / "r1"]) == (folder,)


@pytest.mark.parametrize("kind", ["traces", "open", "metrics", "record"])
def test_folders_of_different_runs_are_refused(tmp_path, kind):
    """Whatever there is of a run says which one it is; folders of one run, and those that do not say, are taken."""
    folders = []
    for place, run_id in (("a", "r1"), ("b", "r2"), ("c", "r1")):
        story = stories.Story(tmp_path / place, run_id)
        process = story.process(host=place)
        if kind == "traces":
            stories.step(process, 1, 0, 1)
        elif kind == "open":
            process.still_open("verl.step", 0, 1)
        elif kind == "metrics":
            process.scalar("x", 0, 1.0)
        else:
            story.manifest()
        folders.append(story.write())
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "traces-x-y-1.jsonl").write_text("")
    assert len(run_files.check_folders([folders[0], folders[2], tmp_path / "d"])) == 3
    with pytest.raises(VerlOtelError, match=r"different runs: .*a \(r1\), .*b \(r2\); compare them with verl-otel"):
        run_files.check_folders(folders)


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    """A file that vanished, or may not be read, costs itself and is named."""
    problems = []
    assert not list(run_files.read_lines([Extent(tmp_path / "traces-x.jsonl", 0, 9)], problems))
    assert problems == ["traces-x.jsonl cannot be read (No such file or directory)"]


def test_many_damaged_lines_are_named_by_a_few(tmp_path):
    """Twenty lines on what is damaged are enough."""
    (tmp_path / "traces-x-y-1.jsonl").write_text("garbage\n" * 100)
    _, _, problems = spans_of(tmp_path)
    assert len(problems) == 20
    assert problems[0].startswith("traces-x-y-1.jsonl line 1 cannot be read")
    assert problems[18].startswith("traces-x-y-1.jsonl line 19 cannot be read")
    assert problems[19] == "traces-x-y-1.jsonl: more lines cannot be read"


@pytest.mark.full
def test_files_are_closed_after_reading(story):
    """Reading a run leaves no file open."""
    stories.step(story.process(), 1, 0, 1)
    folder = story.write()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        spans_of(folder)
        gc.collect()
    assert not [
        warning for warning in caught if str(folder) in str(warning.message)
    ]  # others' garbage is collected here, too


# -- What the black box has written down of a run --


def explain(folder):
    return reader.read([folder])[0]


def test_events_of_the_run_are_read(story):
    """Stalls and crashes that were found while it ran are there in the order of time; damaged lines are named."""
    stories.step(story.process(), 1, 0, 10)
    folder = story.write()
    lines = [
        json.dumps({"kind": kind, "time_ns": stories.at(when), "text": f"{kind}!", "detail": {"pid": 7}})
        for kind, when in (("crash", 9), ("stall", 5))
    ]
    (folder / "events.jsonl").write_text("\n".join([*lines, "garbage", '{"kind": "stall"}', ""]))
    run = explain(folder)
    assert [(event.kind, event.text, event.detail) for event in run.events] == [
        ("stall", "stall!", {"pid": 7}),
        ("crash", "crash!", {"pid": 7}),
    ]
    assert [problem.partition(" (")[0] for problem in run.problems if ".jsonl" in problem] == [
        "events.jsonl line 3 cannot be read",
        "events.jsonl line 4 cannot be read",
    ]


def test_what_went_on_says_so(tmp_path):
    """A stall that was over is one event; if the same hangs again, that is another; what began before the file is left out."""
    lines = [
        {"kind": "resolved", "time_ns": 0, "text": "resolved: x", "detail": {"key": ["stall", "other"]}},
        {"kind": "stall", "time_ns": 10**9, "text": "STALL in tool", "detail": {"key": ["stall", "a"]}},
        {"kind": "crash", "time_ns": 2 * 10**9, "text": "CRASH worker died", "detail": {"key": ["crash", "b"]}},
        {"kind": "resolved", "time_ns": 35 * 10**9, "text": "resolved: goes on", "detail": {"key": ["stall", "a"]}},
        {"kind": "stall", "time_ns": 60 * 10**9, "text": "STALL in tool", "detail": {"key": ["stall", "a"]}},
        {"kind": "resolved", "time_ns": 70 * 10**9, "text": "superseded", "detail": {"key": ["stall", "a"]}},
    ]
    (tmp_path / run_files.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    problems = []
    assert [event.text for event in run_files.read_events([tmp_path], problems)] == [
        "in tool; it went on 34 s later",
        "worker died",
        "in tool",
    ]
    assert not problems


def stall(second, process, place="n1", kind="stall", group="overdue process verl.step", **detail):
    """A line of a monitor."""
    key = {"key": [kind, process, "verl.step"], "place": place, "group": group, **detail}
    return {"kind": kind, "time_ns": second * 10**9, "text": f"{kind.upper()} in {process}", "detail": key}


def test_what_several_ranks_report_is_one_event(tmp_path):
    """With their number and all stacks; it is over when it is over in all of them. The same again later, or of no ranks, is another event."""
    lines = [
        stall(10, "p-1", stacks={"1": "a"}),
        stall(11, "p-2", stacks={"2": "b"}),
        stall(12, "p-1", place="n2"),
        {
            "kind": "resolved",
            "time_ns": 20 * 10**9,
            "text": "resolved",
            "detail": {"key": ["stall", "p-1", "verl.step"]},
        },
        stall(200, "p-1"),
        stall(201, "p-2"),
        stall(203, "p-1"),
        stall(300, "q-1", group=""),
        stall(300, "q-2", group=""),
        stall(310, "p-2", kind="crash", group="died process "),
        *({"kind": "alert", "time_ns": 400 * 10**9 + n, "text": "step 3: low", "detail": {}} for n in range(2)),
    ]
    (tmp_path / run_files.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = run_files.read_events([tmp_path], [])
    assert [event.text for event in found] == [
        "in p-1 (one of 3 processes that report it)",
        "in p-1 (one of 2 processes that report it)",
        "in p-1",
        "in q-1",
        "in q-2",
        "in p-2",
        *["step 3: low"] * 2,  # two callbacks of one trainer
    ]
    assert found[0].time_ns == 10 * 10**9
    assert found[0].detail["stacks"] == {"1": "a", "2": "b"}
    assert "resolved" not in found[0].detail


@pytest.mark.parametrize(
    ("content", "first", "last"),
    [
        (b"", [], []),
        (b"one\n", [b"one\n"], []),
        (b"one\ntwo\n", [b"one\n"], [b"two\n"]),
        (b"one\n" * 50_000 + b"last", [b"one\n"], [b"last"]),
        (b"one\n" + b"x" * 500_000 + b"\n", [b"one\n"], [b"x" * 500_000 + b"\n"]),
    ],
)
def test_the_first_and_the_last_line_of_a_file_are_found(tmp_path, content, first, last):
    """What a process says of itself stands in any line; its first and last one tell all of it."""
    path = tmp_path / "traces-x.jsonl"
    path.write_bytes(content)
    assert [text for _, _, text in run_files.read_lines(run_files.find_ends(path), [])] == first + last
