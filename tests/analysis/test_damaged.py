# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files that were cut off, mixed up or written by somebody else: the rest is used, and the damage is said."""

import json
import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.builders import stories, texts
from tests.builders.damage import replace_value
from verl_otel.analysis import reader
from verl_otel.cli import page
from verl_otel.cli.documents.base import to_plain
from verl_otel.cli.documents.explain import make_explain
from verl_otel.cli.documents.report import make_report

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)


@pytest.fixture
def folder(tmp_path):
    """The written files of a small training."""
    return stories.training(tmp_path / "r1").write()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """One line of each kind of file, as a training writes them."""
    story = stories.training(tmp_path_factory.mktemp("lines") / "r1")
    story.processes[0].still_open("verl.step", 25, 40, verl__step__number=3)
    folder = story.write()
    event = {"kind": "stall", "time_ns": stories.at(3), "text": "it hangs", "detail": {"stacks": {"1": "a"}}}
    written = {
        kind: [line for path in sorted(folder.glob(f"{kind}-*")) for line in path.read_bytes().splitlines()]
        for kind in ("traces", "metrics", "open")
    }
    return {**written, "events": [json.dumps(event).encode()]}


def name(kind):
    """The file of a kind."""
    return "events.jsonl" if kind == "events" else f"{kind}-x-y-1.jsonl"


def read(folder):
    """Do with a folder all that the commands do; returns what is known of it."""
    run = reader.read([folder])[0]
    assert texts.report(run).startswith("Run ")
    assert json.dumps(to_plain(make_report(run)), allow_nan=False)
    assert texts.explain(run).startswith("Run ")
    assert json.dumps(to_plain(make_explain(run, run.steps)), allow_nan=False)
    assert page.render(run)
    window = run.end_ns - run.start_ns
    assert {sum(device.nanoseconds.values()) for device in run.devices} <= {window}
    return run


def test_a_file_that_was_cut_off_is_read_up_to_there(folder):
    """A last line without its end is said and left out; every line before it is used."""
    (path,) = folder.glob("traces-trainer-*")
    whole = read(folder).counts.spans
    path.write_bytes(path.read_bytes()[:-40])
    run = read(folder)
    assert run.counts.spans == whole - 1
    (problem,) = run.problems
    assert problem.startswith(f"{path.name} ends in the middle of a line")


@pytest.mark.parametrize("line", [b"garbage", b"{}", b"[]", b"null", b"3", b'"text"', b"\xff\xfe\x00"])
def test_a_line_that_cannot_be_read_costs_that_line(folder, line):
    """A damaged line in the middle is named with its number; the lines around it are used."""
    (path,) = folder.glob("traces-trainer-*")
    whole = read(folder).counts.spans
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + b"\n" + rest)
    run = read(folder)
    assert run.counts.spans == whole
    (problem,) = run.problems
    assert problem.startswith(f"{path.name} line 2 cannot be read")


def test_empty_files_and_empty_lines_are_no_problem(folder):
    """An empty file and blank lines hold nothing, and nothing is wrong with them."""
    for kind in ("traces", "metrics"):
        (folder / f"{kind}-empty-x-1.jsonl").write_bytes(b"")
    (folder / "open-empty-x-1.jsonl").write_bytes(b"\n\n  \n")
    (folder / "events.jsonl").write_bytes(b"\n")
    assert not read(folder).problems


def test_a_damaged_record_of_the_run_is_done_without(folder):
    """Without a readable run.json the run is named by its files."""
    for text in ("{", "[1]", ""):
        (folder / "run.json").write_text(text)
        run = read(folder)
        assert (run.run_id, run.manifest) == ("r1", {})


@pytest.mark.full
@given(data=st.data())
@FUZZ
def test_random_bytes_never_stop_the_report(tmp_path_factory, data):
    """Whatever bytes stand in the files, the report is written."""
    folder = tmp_path_factory.mktemp("run")
    for kind in ("traces", "metrics", "open", "events"):
        (folder / name(kind)).write_bytes(data.draw(st.binary(max_size=200)))
    read(folder)


@pytest.mark.full
@given(data=st.data())
@FUZZ
def test_damaged_bytes_never_stop_the_report(tmp_path_factory, lines, data):
    """Whatever bytes of real files were changed, the report is written."""
    folder = tmp_path_factory.mktemp("run")
    for kind, real in lines.items():
        content = bytearray(b"\n".join(data.draw(st.lists(st.sampled_from(real), max_size=3))))
        for _ in range(data.draw(st.integers(0, 3)) if content else 0):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        (folder / name(kind)).write_bytes(content)
    read(folder)


OTHER_VALUES = [None, True, -1, 0, 3, 10**30, 0.5, -2.5e30, "", "x", "-1", "1e999", "\u20ac\u0000"]
OTHER_VALUES += ["NaN", "Infinity", "-Infinity", [], {}, [{}]]


@pytest.mark.full
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=836)  # a span that began at 0
@settings(FUZZ, max_examples=200)
def test_values_of_another_kind_never_stop_the_report(tmp_path_factory, lines, seed):
    """Whatever value of a line is of another kind than it should be, the report is written."""
    folder = tmp_path_factory.mktemp("run")
    draw = random.Random(seed)
    kind = draw.choice(sorted(lines))
    damaged = draw.randrange(len(lines[kind]))
    for other, real in lines.items():
        (folder / name(other)).write_bytes(b"\n".join(real))
    changed = [*lines[kind]]
    changed[damaged] = replace_value(draw, json.loads(changed[damaged]), OTHER_VALUES)
    (folder / name(kind)).write_bytes(b"\n".join(changed))
    read(folder)


NUMBER = (
    '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"1","spanId":"1","name":"verl.step","startTimeUnixNano":"1",'
    '"attributes":[{"key":"verl.step.number","value":{"doubleValue":"%s"}}]}]}]}]}'
)
METRIC = (
    '{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"verl.training.step","gauge":{"dataPoints":['
    '{"timeUnixNano":"1","asDouble":%s}]}},{"name":"verl.average_reward","gauge":{"dataPoints":['
    '{"timeUnixNano":"1","asDouble":1.0}]}}]}]}]}'
)


@pytest.mark.parametrize(
    ("kind", "line"), [("traces", NUMBER % "NaN"), ("traces", NUMBER % "Infinity"), ("metrics", METRIC % '"NaN"')]
)
def test_numbers_that_are_none_never_stop_the_report(tmp_path, kind, line):
    """A step or a value that is no number costs that number and not the report."""
    (tmp_path / name(kind)).write_text(line + "\n")
    read(tmp_path)


def test_contradictory_times_never_stop_the_report(story):
    """Spans that end before they begin, children outside of their parents, steps inside of each other: all is told somehow."""
    trainer, agent = story.process(), story.process("agent_loop")
    member = stories.trajectory(agent, 50, 3, calls=[("tool", "a", 900, 2)])
    stories.step(trainer, 1, 10, 5, [("gen", 100, -7)], [member, member])
    stories.step(trainer, 2, 0, 1000, [("gen", 500, 600)], [member])
    stories.step(trainer, 2, 100, 200, [("gen", 500, 600)])
    run = read(story.write())
    assert [step.number for step in run.steps] == [2, 1, 2]
