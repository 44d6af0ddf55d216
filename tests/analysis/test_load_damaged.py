# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Files that were cut off, mixed up or written by somebody else: the rest is used, and the damage is said."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_otel.analysis import gaps, tail, timeline
from verl_otel.analysis.load import read_run
from verl_otel.cli import report_json, report_text

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)


@pytest.fixture
def folder(stories, tmp_path):
    """The written files of a small training."""
    return stories.training(tmp_path / "r1").write()


@pytest.fixture(scope="module")
def lines(stories, tmp_path_factory):
    """One line of each kind of file, as a training writes them."""
    story = stories.training(tmp_path_factory.mktemp("lines") / "r1")
    story.processes[0].still_open("verl.step", 25, 40, verl__step__number=3)
    folder = story.write()
    return {
        kind: [line for path in sorted(folder.glob(f"{kind}-*")) for line in path.read_bytes().splitlines()]
        for kind in ("traces", "metrics", "open")
    }


def explain(folder):
    """Do with a folder all that the report does; returns the run."""
    run = read_run([folder])
    built, found = timeline.build(run), gaps.find(run)
    verdicts = tail.judge(built)
    assert report_text.render(run, built, found, verdicts).startswith("Run ")
    assert json.dumps(report_json.to_json(run, built, found, verdicts), allow_nan=False)
    return run


def test_a_file_that_was_cut_off_is_read_up_to_there(folder):
    """A last line without its end is said and left out; every line before it is used."""
    (path,) = folder.glob("traces-trainer-*")
    whole = len(read_run([folder]).spans)
    data = path.read_bytes()
    path.write_bytes(data[:-40])
    run = explain(folder)
    assert len(run.spans) == whole - 1
    (problem,) = run.problems
    assert problem.startswith(f"{path.name} ends in the middle of a line")


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"{}",
        b"[]",
        b"null",
        b"3",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"resourceSpans": 3}',
        b'{"resourceSpans": [3]}',
    ],
)
def test_a_line_that_cannot_be_read_costs_that_line(folder, line):
    """A damaged line in the middle is named with its number; the lines around it are used."""
    (path,) = folder.glob("traces-trainer-*")
    whole = len(read_run([folder]).spans)
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + b"\n" + rest)
    run = explain(folder)
    assert len(run.spans) == whole
    (problem,) = run.problems
    assert problem.startswith(f"{path.name} line 2 cannot be read")


def test_empty_files_and_empty_lines_are_no_problem(folder):
    """An empty file and blank lines hold nothing, and nothing is wrong with them."""
    (folder / "traces-empty-x-1.jsonl").write_bytes(b"")
    (folder / "open-empty-x-1.jsonl").write_bytes(b"\n\n  \n")
    assert not explain(folder).problems


def test_a_damaged_record_of_the_run_is_done_without(folder):
    """Without a readable run.json the run is named by its files."""
    for text in ("{", "[1]", ""):
        (folder / "run.json").write_text(text)
        run = explain(folder)
        assert (run.run_id, run.manifest) == ("r1", {})


@given(data=st.data())
@FUZZ
def test_random_bytes_never_stop_the_report(tmp_path_factory, data):
    """Whatever bytes stand in the files, the report is written."""
    folder = tmp_path_factory.mktemp("run")
    for kind in ("traces", "metrics", "open"):
        (folder / f"{kind}-x-y-1.jsonl").write_bytes(data.draw(st.binary(max_size=200)))
    explain(folder)


@given(data=st.data())
@FUZZ
def test_damaged_bytes_never_stop_the_report(tmp_path_factory, lines, data):
    """Whatever bytes of real files were changed, the report is written."""
    folder = tmp_path_factory.mktemp("run")
    for kind, real in lines.items():
        content = bytearray(b"\n".join(data.draw(st.lists(st.sampled_from(real), max_size=3))))
        for _ in range(data.draw(st.integers(0, 3)) if content else 0):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        (folder / f"{kind}-x-y-1.jsonl").write_bytes(content)
    explain(folder)


def places(thing, path=()):
    """The paths of all values in a JSON document."""
    yield path
    children = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


OTHER_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 10**30),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([{}]),
)


@given(data=st.data())
@FUZZ
def test_values_of_another_kind_never_stop_the_report(tmp_path_factory, lines, data):
    """Whatever value of a line is of another kind than it should be, the report is written."""
    kind = data.draw(st.sampled_from(sorted(lines)))
    document = json.loads(data.draw(st.sampled_from(lines[kind])))
    *above, last = data.draw(st.sampled_from([path for path in places(document) if path]))
    target = document
    for key in above:
        target = target[key]
    target[last] = data.draw(OTHER_VALUES)
    folder = tmp_path_factory.mktemp("run")
    (folder / f"{kind}-x-y-1.jsonl").write_text(json.dumps(document) + "\n")
    explain(folder)


SPAN = '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"1","spanId":"1","name":"verl.step",%s}]}]}]}'
METRIC = (
    '{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"verl.training.step","gauge":{"dataPoints":['
    '{"timeUnixNano":"1","asDouble":%s}]}},{"name":"verl.average_reward","gauge":{"dataPoints":['
    '{"timeUnixNano":"1","asDouble":1.0}]}}]}]}]}'
)
NUMBER = '"startTimeUnixNano":"1","attributes":[{"key":"verl.step.number","value":{"doubleValue":"%s"}}]'


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("traces", SPAN % '"startTimeUnixNano":Infinity'),
        ("traces", SPAN % '"startTimeUnixNano":"1","kind":1e999'),
        ("traces", "[" * 100_000),
        ("traces", SPAN % NUMBER % "NaN"),
        ("traces", SPAN % NUMBER % "Infinity"),
        ("metrics", METRIC % '"NaN"'),
    ],
    ids=["infinite time", "infinite kind", "deep nesting", "step NaN", "step infinite", "training step NaN"],
)
def test_numbers_that_are_none_never_stop_the_report(tmp_path, name, line):
    """Infinite and missing numbers, and endless nesting, cost their line or their value and not the report."""
    (tmp_path / f"{name}-x-y-1.jsonl").write_text(line + "\n")
    explain(tmp_path)
