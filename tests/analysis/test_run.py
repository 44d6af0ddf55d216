# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The public interface of the analysis: what a notebook gets of a run."""

import pytest

import verl_otel.analysis
from tests.builders import stories
from verl_otel.analysis import TABLES, Run
from verl_otel.analysis.run import COLUMNS
from verl_otel.errors import VerlOtelError


@pytest.fixture
def folder(tmp_path):
    """A small training of two steps."""
    return stories.training(tmp_path / "r1", "r1").write()


def test_a_run_has_steps_verdicts_scalars_and_trajectories(folder):
    run = Run.open(folder)
    assert (run.id, run.state) == ("r1", "finished")
    assert [step.number for step in run.steps()] == [1, 2]
    assert [verdict.step for verdict in run.verdicts()] == [2]
    assert [list(series.values) for series in run.scalars("verl.average_reward")] == [[0.25, 0.75]]
    assert repr(run) == "<Run r1: finished, 2 steps>"
    assert run.manifest["run_id"] == "r1"


def test_levers_say_why_they_are_unknown(folder):
    """Nothing links these trajectories to what submitted them."""
    levers = Run.open(folder).levers()
    assert levers.levers == ()
    assert "submitted" in levers.unknown[0]


def test_all_trajectories_and_spans_are_read_from_the_files(folder):
    run = Run.open(folder)
    lines = [line for path in folder.glob("traces-*.jsonl") for line in path.read_text().splitlines()]
    spans = list(run.spans())
    assert len(spans) == len(lines)  # the builder writes one span a line
    roots = [span for _, span in spans if span.name == "verl.trajectory"]
    assert sorted(one.trace_id for one in run.trajectories()) == sorted(span.trace_id for span in roots)


def test_times_are_on_the_clock_of_the_trainer(tmp_path):
    story = stories.Story(tmp_path / "r1", "r1")
    trainer, worker = story.process(), story.process("actor", host="node-2")
    ahead = 100
    for number in range(20):
        step = trainer.span("verl.step", number, number + 0.9, state=stories.STEP, verl__step__number=number)
        call = trainer.span("verl.call update", number + 0.1, number + 0.8, step, kind=3)
        worker.span("verl.worker A.update", number + 0.2 + ahead, number + 0.7 + ahead, call, kind=2)
    spans = [span for _, span in Run.open(story.write()).spans()]
    calls = {span.span_id: span.start_ns for span in spans if span.name == "verl.call update"}
    workers = [span for span in spans if span.name == "verl.worker A.update"]
    assert len(workers) == 20
    for span in workers:
        assert 0 <= span.start_ns - calls[span.parent_id] <= 0.7e9


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_a_table_have_one_value_for_each_row(folder, name):
    table = Run.open(folder).table(name)
    assert tuple(table) == COLUMNS[name]
    assert len({len(column) for column in table.values()}) == 1
    assert len(next(iter(table.values()))) > 0


@pytest.mark.full
def test_data_frames(folder):
    run = Run.open(folder)
    for package, make, count in (
        ("pandas", run.to_pandas, len),
        ("pyarrow", run.to_arrow, lambda table: table.num_rows),
        ("polars", run.to_polars, len),
    ):
        pytest.importorskip(package, reason=f"{package} is not in this environment")
        for name in TABLES:
            assert count(make(name)) == len(run.table(name)[COLUMNS[name][0]])


def test_what_is_no_table_or_no_run_is_named(folder, tmp_path):
    with pytest.raises(ValueError, match="'stepz' is no table: use steps, phases"):
        Run.open(folder).table("stepz")
    with pytest.raises(FileNotFoundError):
        Run.open(tmp_path / "absent")
    with pytest.raises(TypeError, match="give the folder of a run"):
        Run.open()
    other = stories.training(tmp_path / "r2", "r2").write()
    with pytest.raises(VerlOtelError, match="different runs"):
        Run.open(folder, other)


def test_the_package_has_no_other_public_name():
    assert set(verl_otel.analysis.__all__) == {"Run", "TABLES"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(verl_otel.analysis, "nothing")  # noqa: B009 - as a script would


def test_the_step_of_a_trajectory_is_the_one_that_trained_on_it(tmp_path):
    """Generated ahead for step 1, trained on in step 2; what no step trained on keeps the step that it was generated for."""
    story = stories.Story(tmp_path / "r1")
    trainer, agent = story.process(), story.process("agent_loop")
    first, late, filtered, left = (stories.trajectory(agent, 0, 3 + index, index=index) for index in range(4))
    stories.step(trainer, 1, 0, 10, [("gen", 0, 5)], [first])
    second = stories.step(trainer, 2, 10, 20, [("gen", 10, 15)], [late, filtered])
    stories.evict(trainer, second, 19, [filtered])
    run = Run.open(story.write())
    steps = {first.trace_id: 1, late.trace_id: 2, filtered.trace_id: 1, left.trace_id: 1}
    assert {one.trace_id: one.step for one in run.trajectories()} == steps
    assert {one.trace_id: one.step for one in run.explanation.slowest} == steps
    assert dict(zip(run.table("trajectories")["trace_id"], run.table("trajectories")["step"], strict=True)) == {
        f"{trace_id:032x}": step for trace_id, step in steps.items()
    }
