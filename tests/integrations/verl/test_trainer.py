# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Trainers of other projects: a subclass of verl's that copies ``fit`` and imports verl's timer from where it is defined."""

import asyncio
import contextlib
import gc
import json
import pickle
import sys
import warnings
import weakref
from types import ModuleType, SimpleNamespace

import pytest

import verl_otel
from tests.builders import hooks
from tests.watchdog.snapshots import make_report
from verl_otel.analysis.io import run_status
from verl_otel.integrations import patch
from verl_otel.integrations.verl import guards, timers, tracking, trainer
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.recording import run_log
from verl_otel.semconv import logs
from verl_otel.watchdog import process_reports


class RayPPOTrainer:
    """verl's trainer as far as it is patched."""

    def __init__(self, config):
        self.config = config
        self.global_steps = 0

    def init_workers(self):
        """Nothing to do here."""

    def fit(self):
        raise AssertionError("overridden")

    def _validate(self):
        return {"val": 1.0}

    def _save_checkpoint(self):
        """Nothing to do here."""


@pytest.fixture
def timer(recorded, monkeypatch):
    """Install the hooks of trainers and timers; returns the timer that a subclass imports."""
    ended = []
    monkeypatch.setattr(trainer, "end_run", lambda error=None: ended.append(error is not None))
    monkeypatch.setattr(trainer, "_last_drain", lambda: 0.0)
    monkeypatch.setattr(RayPPOTrainer, "__module__", "verl.trainer.ppo.ray_trainer")
    names = ("__init__", "init_workers", "_validate", "_save_checkpoint")
    module = SimpleNamespace(RayPPOTrainer=RayPPOTrainer)
    hooks.install(trainer.HOOKS, module, *(f"RayPPOTrainer.{name}" for name in names))
    yield SimpleNamespace(marked=hooks.marked_timer, ended=ended)
    patch.undo_all()
    run_log._reset()
    Trainer.instance, Trainer.step, Trainer.algorithm, Trainer.created = None, None, "", None
    Trainer.round_end, Trainer.found = 0.0, None


def make_trainer(marked, *, fails=False):
    class OwnTrainer(RayPPOTrainer):
        """As Agent Lightning, AgentEvolver and others have it."""

        def fit(self):
            """Train."""
            for self.global_steps in (1, 2):
                timing = {}
                with marked("step", timing), marked("gen", timing):
                    assert not fails, "own"
            return "done"

    return OwnTrainer(SimpleNamespace(algorithm=SimpleNamespace(adv_estimator="grpo")))


def test_a_copied_fit_has_numbered_steps_and_an_end(recorded, timer):
    own = make_trainer(timer.marked)
    assert own.fit() == "done"
    steps = [span.attributes for span in recorded.spans if span.name == "verl.step"]
    assert [step["verl.step.number"] for step in steps] == [1, 2]
    assert {step["verl.algorithm"] for step in steps} == {"grpo"}
    assert timer.ended == [False]


def test_records_of_a_step_that_has_ended_have_its_ids(recorded, timer):
    """Verl logs the values of a step after it; those of another step have no ids."""
    make_trainer(timer.marked).fit()
    run_log.configure(logs.INFO, 0)
    for number in (2, 3, None):
        run_log.add_step("rollout", number, {"reward_mean": 0.5})
    last = [span for span in recorded.spans if span.name == "verl.step"][-1]
    ids = [(record.step, record.trace_id, record.span_id) for record in run_log.take()]
    assert ids == [(2, last.trace_id, last.span_id), (3, 0, 0), (None, 0, 0)]


def test_a_fit_that_calls_verls_ends_once(recorded, timer, monkeypatch):
    """What it does afterwards belongs to the training, whose workers are waited for once."""
    waits = []
    monkeypatch.setattr(trainer, "_last_drain", lambda: waits.append("drain") or 0.0)
    monkeypatch.setattr(RayPPOTrainer, "fit", lambda self: "verl's")
    hooks.install(trainer.HOOKS, SimpleNamespace(RayPPOTrainer=RayPPOTrainer), "RayPPOTrainer.fit")

    class OwnTrainer(RayPPOTrainer):
        def fit(self):
            before = list(timer.ended), list(waits)
            done = super().fit()
            assert (timer.ended, waits) == before
            return done

    own = OwnTrainer(None)
    for number in (1, 2):
        assert own.fit() == "verl's"
        assert (timer.ended, waits) == ([False] * number, ["drain"] * number)


def test_a_copied_fit_that_fails_ends_as_failed_with_its_own_error(recorded, timer):
    with pytest.raises(AssertionError, match="own"):
        make_trainer(timer.marked, fails=True).fit()
    assert timer.ended == [True]


def test_a_step_outside_of_fit_knows_its_trainer(recorded, timer):
    """A trainer whose loop is in another method, or in a class that is composed of verl's parts."""
    own = make_trainer(timer.marked)
    own.global_steps = 7
    with timer.marked("step", {}):
        pass
    assert recorded.span("verl.step").attributes["verl.step.number"] == 7


def test_a_trainer_that_hides_verls_constructor_is_known_by_its_workers(recorded, timer):
    """One-step-off trainers and SPPO have a constructor of their own that does not call verl's."""

    class Hidden(RayPPOTrainer):
        def __init__(self):
            self.global_steps = 3

        def fit(self):
            with timer.marked("step", {}):
                return "done"

    own = Hidden()
    own.init_workers()
    assert own.fit() == "done"
    assert recorded.span("verl.step").attributes["verl.step.number"] == 3
    assert timer.ended == [False]


def test_a_loop_that_is_no_fit_ends_with_its_tracking(recorded, timer, monkeypatch):
    """Its workers are waited for then, once; a ``fit`` waits for them itself."""
    waits = []
    monkeypatch.setattr(trainer, "_last_drain", lambda: waits.append("drain") or 0.0)

    class Tracking:
        def finish(self, exit_code=0):
            self._finished = True

    hooks.install(tracking.HOOKS, SimpleNamespace(Tracking=Tracking), "Tracking.finish")
    own = make_trainer(timer.marked)
    with timer.marked("step", {}):
        pass
    made = Tracking()
    made.finish()
    made.finish()
    assert waits == ["drain"]
    own.fit()
    Tracking().finish()
    assert waits == ["drain", "drain"]


@pytest.mark.parametrize("asks_verl", [True, False])
def test_overridden_validations_and_checkpoints_are_recorded_once(recorded, timer, asks_verl):
    """Also where the override calls verl's own method."""

    class Careful(RayPPOTrainer):
        def _validate(self):
            return super()._validate() if asks_verl else {"val": 1.0}

        def _save_checkpoint(self):
            return super()._save_checkpoint() if asks_verl else None

    own = Careful(None)
    own.global_steps = 5
    assert own._validate() == {"val": 1.0}
    own._save_checkpoint()
    assert sorted((span.name, span.attributes["verl.step.number"]) for span in recorded.spans) == [
        ("verl.checkpoint", 5),
        ("verl.validation", 5),
    ]


def test_the_trainer_that_was_created_last_is_the_one(recorded, timer):
    make_trainer(timer.marked).fit()
    second = make_trainer(timer.marked)
    second.global_steps = 9
    with timer.marked("step", {}):
        pass
    assert recorded.spans[-1].attributes["verl.step.number"] == 9
    assert Trainer.instance is second


def test_a_trainer_that_has_ended_is_kept_by_nothing(recorded, timer, monkeypatch):
    """Verl's trackers finish when a trainer without an end of its own is deleted; `gc` only frees what a class of another project has."""
    own = make_trainer(timer.marked)
    own.fit()
    reference = weakref.ref(own)
    del own
    gc.collect()
    assert reference() is None
    assert guards._trainer is None


def test_an_asynchronous_fit_stays_one(recorded, timer):
    class OwnTrainer(RayPPOTrainer):
        async def fit(self):
            await asyncio.sleep(0)
            return "done"

    assert asyncio.run(OwnTrainer(None).fit()) == "done"
    assert timer.ended == [False]


def test_the_class_is_not_changed(recorded, timer):
    """A class of a main program is pickled by value, and a receiver may lack verl-otel."""
    own = make_trainer(timer.marked)
    assert not hasattr(vars(type(own))["fit"], patch.PATCHED)


def test_what_is_no_method_is_left_alone(recorded, timer):
    class Composed(RayPPOTrainer):
        fit = None

    assert Composed(None).fit is None


def test_a_timer_that_was_imported_before_is_ours_too(recorded, monkeypatch):
    """``verl_otel.init()`` may come after the imports of a program, and may be undone."""

    @contextlib.contextmanager
    def marked_timer(name, timing_raw):
        yield

    defined, early, other = (ModuleType(f"host_of_timers_{name}") for name in ("defined", "early", "other"))
    defined.marked_timer = early.marked_timer = marked_timer
    other.marked_timer = None
    for module in (defined, early, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    hooks.install(timers.HOOKS, defined, "marked_timer")
    with early.marked_timer("step", {}):
        pass
    assert [span.name for span in recorded.spans] == ["verl.step"]
    assert other.marked_timer is None
    patch.undo_all()
    assert early.marked_timer is defined.marked_timer is marked_timer


def test_both_timers_of_verl_are_ours_and_open_one_span(recorded):
    """The one that verl chooses, and the one where it is defined; the second may be the first."""
    pytest.importorskip("verl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import verl.utils.profiler as chosen
        from verl.utils.profiler import performance as defined
    patch.register(timers.HOOKS)
    try:
        for module in (chosen, defined):
            timing = {}
            with module.marked_timer("step", timing), module.marked_timer("gen", timing):
                pass
            assert timing.keys() == {"step", "gen"}
            assert pickle.loads(pickle.dumps(module.marked_timer)) is module.marked_timer
    finally:
        patch.undo_all()
    assert sorted(span.name for span in recorded.spans) == ["verl.phase.gen"] * 2 + ["verl.step"] * 2


def test_the_status_of_the_run_has_the_planned_steps(timer, tmp_path):
    """As verl has computed them, beside those that have ended."""
    verl_otel.init(exporters="file", run_dir=tmp_path, run_id="r1", stalls=False)
    try:
        tracking.describe_run("p", "e", {})
        own = make_trainer(timer.marked)
        own.total_training_steps = 10
        own.fit()
    finally:
        verl_otel.shutdown()
    (training,) = run_status.read(json.loads((tmp_path / "r1" / "run.json").read_text())).trainings
    assert (training.steps, training.step, training.total_steps) == (2, 2, 10)


class ActorDiedError(Exception):
    """As Ray's: it has the id of the actor."""

    __module__ = "ray.exceptions"
    actor_id = "0a1b"


class TaskCancelledError(Exception):
    """As Ray's, of a task that was cancelled because the trainer has failed."""

    __module__ = "ray.exceptions"


class TaskError(Exception):
    """As Ray's: an exception that another process has raised, with that as its cause."""

    __module__ = "ray.exceptions"
    cause = ActorDiedError()


@pytest.mark.parametrize(
    ("name", "error", "lines"),
    [
        ("generation_task", KeyError("SECRET"), 1),
        ("generation_task", TaskError(), 1),
        ("generation_task", ActorDiedError(), 1),
        ("generation_task", TaskCancelledError(), 0),
        ("generation_task", None, 0),
        ("generation_task", asyncio.CancelledError(), 0),
        ("sample", KeyError("of one sample, with which verl ends the rollouts"), 0),
    ],
)
def test_an_end_of_the_rollouts_that_verl_hides_is_an_event(
    monkeypatch, tmp_path, caplog, wait_for, name, error, lines
):
    """With an exception of its rollouts verl's fully asynchronous training ends with exit code 0, before its last step."""
    module = ModuleType("detach_utils")

    def task_exception_handler(task):
        with contextlib.suppress(KeyError, TaskError, ActorDiedError, TaskCancelledError, asyncio.CancelledError):
            task.result()

    module.task_exception_handler = task_exception_handler
    hooks.install(trainer.HOOKS, module, "task_exception_handler")

    async def roll_out():
        if error is not None:
            raise error

    async def main():
        task = asyncio.create_task(roll_out(), name=name)
        task.add_done_callback(module.task_exception_handler)
        await asyncio.wait([task])
        await asyncio.sleep(0)

    notified = tmp_path / "notified"
    folder = tmp_path / process_reports.FOLDER
    folder.mkdir()
    report = make_report("reward-vm-1", "reward")._replace(instance="reward-0", actor="0a1b")
    process_reports.write(folder, report)
    settings = SimpleNamespace(run_path=tmp_path, run_id="r1", on_stall=f"tee {notified}")
    monkeypatch.setattr(trainer, "current_session", lambda: SimpleNamespace(config=settings))
    asyncio.run(main())
    events = [json.loads(line) for path in tmp_path.rglob("events.jsonl") for line in path.read_text().splitlines()]
    assert [event["kind"] for event in events] == ["crash"] * lines
    whose = "" if isinstance(error, KeyError) else " of reward-0 (pid "
    by = "ray.exceptions.ActorDiedError" if whose else "KeyError"
    assert all(f"the rollouts ended by {by}{whose}" in event["text"] for event in events)
    assert [event["detail"]["culprit"].get("instance", "") for event in events] == ["reward-0" if whose else ""] * lines
    assert "SECRET" not in str(events)
    assert caplog.text.count("CRASH") == lines
    if lines:
        wait_for(lambda: notified.exists() and "rollouts ended by" in notified.read_text())
