# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``Tracking``: what the run is, its scalars, how it ended; the logger itself works as before."""

import contextlib
import gc
import json
import weakref
from collections import defaultdict

import pytest

import verl_otel
from verl_otel import session
from verl_otel.analysis.io import run_status
from verl_otel.integrations import patch
from verl_otel.integrations.verl import scalars, tracking
from verl_otel.recording import run_log
from verl_otel.semconv import logs

SOURCE = '''
class Tracking:
    """verl's own, as of 0.9.1, with loggers that only remember."""

    def __init__(self, project_name, experiment_name, default_backend="console", config=None):
        self._finished = False
        self.logged = []
        self.exit_codes = []
        assert default_backend == "console", f"{default_backend} is not supported"

    def log(self, data, step, backend=None):
        self.logged.append((data, step, backend))

    def finish(self, exit_code: int = 0):
        if getattr(self, "_finished", False):
            return
        self._finished = True
        self.exit_codes.append(exit_code)

    def __del__(self):
        self.finish()
'''
CONFIG = {
    "algorithm": {"adv_estimator": "grpo"},
    "actor_rollout_ref": {"model": {"path": "/models/Qwen2.5-0.5B/"}, "rollout": {"name": "vllm"}},
    "trainer": {"nnodes": 2, "n_gpus_per_node": 8, "v1": {"trainer_mode": "sync"}},
}


@pytest.fixture(autouse=True)
def fresh():
    """Begin with no key seen."""
    for each in (scalars._names, scalars._taken, scalars._seen):
        each.clear()
    yield
    run_log._reset()
    session.resource.clear()


@pytest.fixture
def tracking_class(loaded):
    """The class of a host whose hooks are installed."""
    module = loaded(SOURCE)
    for hook in tracking.HOOKS:
        patch.register([hook._replace(module=module.__name__)])
    assert set(patch.status.values()) == {"installed"}
    return module.Tracking


def info(recorded):
    """The labels of ``verl.run.info``."""
    (point,) = [point for point in recorded.points if point.instrument.name == "verl.run.info"]
    assert point.value == 1
    return dict(point.labels)


def test_what_the_run_is(recorded, tracking_class):
    """Project, experiment and configuration become the labels of verl.run.info; the run is running."""
    tracking_class("bed", "exp-1", "console", CONFIG)
    labels = info(recorded)
    labels.pop("verl.version", None)
    assert labels == {
        "verl.project": "bed",
        "verl.experiment": "exp-1",
        "verl.algorithm": "grpo",
        "verl.trainer.mode": "sync",
        "verl.model": "Qwen2.5-0.5B",
        "verl.engine": "vllm",
        "verl.nodes": "2",
        "verl.gpus": "8",
        "verl.gpus.total": "16",
    }
    recorded.refresh()


def pool(nodes, gpus, **more):
    return {"nnodes": nodes, "n_gpus_per_node": gpus, **more}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        ({"trainer": {**pool(4, 8), "v1": {"trainer_mode": "sync"}}}, 32),
        ({"trainer": {**pool(1, 8), "v1": {"trainer_mode": "sync"}}, "actor_rollout_ref": {"rollout": pool(1, 8)}}, 8),
        (
            {
                "trainer": {**pool(1, 8), "v1": {"trainer_mode": "separate_async"}},
                "actor_rollout_ref": {"rollout": pool(2, 4)},
            },
            16,
        ),
        ({"trainer": pool(1, 8), "rollout": pool(3, 8), "async_training": {}}, 32),
        ({"trainer": pool(1, 8), "rollout": pool(1, 2), "actor_rollout_ref": {"hybrid_engine": False}}, 10),
        (
            {
                "trainer": {**pool(1, 8), "v1": {"trainer_mode": "sync"}},
                "reward": {"reward_model": pool(1, 4, enable_resource_pool=True)},
                "distillation": pool(1, 2, enabled=True),
            },
            14,
        ),
    ],
    ids=["nodes", "shared", "separate", "fully asynchronous", "one step off", "reward model and teacher"],
)
def test_the_gpus_of_a_run_are_all_of_them(recorded, tracking_class, config, total):
    """Of all nodes, with those that rollouts, reward models and teachers have for themselves."""
    tracking_class("p", "e", "console", config)
    assert info(recorded)["verl.gpus.total"] == str(total)


@pytest.mark.parametrize(("engine", "written"), [(False, 75.0), (True, 100.0)], ids=["one step off", "legacy"])
def test_tokens_for_each_gpu_are_for_all_gpus(recorded, tracking_class, engine, written):
    """The one-step-off trainer divides by its own GPUs; its scalar stays as it is, the field of the run log is right."""
    config = {"trainer": pool(1, 6), "rollout": pool(1, 2), "actor_rollout_ref": {"hybrid_engine": engine}}
    run_log.configure(logs.INFO, 0)
    tracking_class("p", "e", "console", config).log({"perf/throughput": 100.0}, step=1)
    (record,) = [record for record in run_log.take() if record.scope == "training"]
    assert record.fields["tokens_per_second_per_gpu"] == written
    assert recorded.value("verl.perf.throughput") == 100.0


@pytest.mark.parametrize(("enable", "name"), [(True, "policy"), (False, "Qwen2.5-0.5B")])
def test_the_served_name_is_the_model(recorded, tracking_class, enable, name):
    """Where verl passes a served name to the engines, verl.run.info has it, as the engines' own series do."""
    prometheus = {"enable": enable, "served_model_name": "team/policy"}
    rollout = {"name": "vllm", "prometheus": prometheus}
    tracking_class("p", "e", "console", {"actor_rollout_ref": {**CONFIG["actor_rollout_ref"], "rollout": rollout}})
    assert info(recorded)["verl.model"] == name


def of_sampler(mode, threshold, **settings):
    """A configuration of verl: its defaults have the sampler in every mode."""
    sampler = {"max_off_policy_threshold": threshold, "custom_sampler": {"path": None, "name": None}}
    return {"trainer": {"v1": {"trainer_mode": mode, "sampler": {**sampler, **settings}}}}


def bound_of(recorded):
    """The bound of staleness; None: there is none."""
    limits = {
        dict(point.labels)["verl.limit.name"]: point.value
        for point in recorded.points
        if point.instrument.name == "verl.limit"
    }
    return limits.get("staleness")


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        (of_sampler("colocate_async", 8), 7),
        (of_sampler("separate_async", 2), 1),
        (of_sampler("separate_async", None), None),
        (of_sampler("separate_async", 8, custom_sampler={"path": "mine.py", "name": "Mine"}), None),
        (of_sampler("sync", 8), None),
        ({**of_sampler("separate_async", 8), "async_training": {"staleness_threshold": 0.1}}, None),
        ({"trainer": {"use_v1": False, **of_sampler("separate_async", 8)["trainer"]}}, None),
        (
            {
                "trainer": {"use_v1": False, **of_sampler("separate_async", 8)["trainer"]},
                "actor_rollout_ref": {"hybrid_engine": False},
            },
            None,
        ),
    ],
)
def test_the_bound_of_staleness_is_that_of_asynchronous_trainers(recorded, tracking_class, config, bound):
    """Its default is in the configuration of every mode; synchronous, legacy, one-step-off and fully asynchronous trainers do not read it."""
    tracking_class("p", "e", "console", config)
    assert bound_of(recorded) == bound


@pytest.mark.full
def test_verl_trains_on_samples_up_to_the_bound_of_staleness(recorded, tracking_class):
    """Verl's own replay buffer evicts the first samples beyond it: at step 20 the weights have version 19, and those before prompt N version N - 1."""
    module = pytest.importorskip(
        "verl.trainer.ppo.v1.replay_buffer", reason="verl is not installed in this environment"
    )
    tracking_class("p", "e", "console", of_sampler("separate_async", 3))
    buffer = module.ReplayBufferAsync.__new__(module.ReplayBufferAsync)
    buffer.max_off_policy_threshold, buffer.max_off_policy_strategy = 3, "drop"
    buffer.prompt_global_steps = {"train": {str(step): step for step in range(1, 21)}}
    buffer.finished_keys = {"train": set(buffer.prompt_global_steps["train"])}
    kept = buffer.finished_keys["train"] - buffer._stale_terminal_keys(20, "train")
    assert max((20 - 1) - (int(prompt) - 1) for prompt in kept) == bound_of(recorded)


@pytest.mark.parametrize("config", [None, {}, {"trainer": None}, {"trainer": 3}, object()])
def test_a_configuration_of_another_form(recorded, tracking_class, config):
    """What the configuration does not say is left out."""
    made = tracking_class(project_name="p", experiment_name="e", config=config)
    labels = info(recorded)
    assert (labels["verl.project"], labels["verl.experiment"]) == ("p", "e")
    assert "verl.algorithm" not in labels
    assert recorded.value("verl.run.state") == 1
    made.finish()


def test_scalars_are_recorded_and_still_logged(recorded, tracking_class):
    """Each number of one log is a gauge with one time stamp, the step's number among them; verl's loggers get the same."""
    made = tracking_class("p", "e")
    data = {"actor/pg_loss": 0.5, "critic/rewards/mean": 0.25, "note": "x", "val-core/math/acc/mean@1": 1.0}
    made.log(data=data, step=3, backend=["console"])
    made.log(data, 4)
    assert made.logged == [(data, 3, ["console"]), (data, 4, None)]
    assert made.logged[0][0] is data
    points = {point.instrument.name: point for point in recorded.points}
    assert points["verl.actor.pg_loss"].value == 0.5
    assert points["verl.critic.rewards.mean"].value == points["verl.average_reward"].value == 0.25
    assert points["verl.validation.score"].value == 1.0
    assert points["verl.training.step"].value == 4
    names = ("verl.actor.pg_loss", "verl.average_reward", "verl.validation.score", "verl.training.step")
    assert len({points[name].time_ns for name in names}) == 1
    assert not [name for name in points if "note" in name]


@pytest.mark.parametrize(("data", "step"), [([1, 2], 1), (None, None), ({"a": 1}, object())])
def test_what_cannot_be_recorded_is_still_logged(recorded, tracking_class, swallow, data, step):
    """Data or a step that we do not understand reach verl's loggers as they are."""
    made = tracking_class("p", "e")
    made.log(data, step)
    assert made.logged == [(data, step, None)]


@pytest.mark.parametrize(("arguments", "state"), [({}, 2), ({"exit_code": 0}, 2), ({"exit_code": -9}, 3)])
def test_how_the_run_ended(recorded, tracking_class, arguments, state):
    """The exit code of finish says whether the run finished or failed; a second finish changes nothing."""
    made = tracking_class("p", "e")
    made.finish(**arguments)
    made.finish(1 - len(arguments))
    assert made.exit_codes == [arguments.get("exit_code", 0)]
    assert recorded.value("verl.run.state") == state


def test_a_logger_that_fails_to_finish(recorded, tracking_class):
    """An exception of a logger passes, and the end of the run is recorded all the same."""

    class Failing(tracking_class):
        @property
        def _finished(self):
            return False

        @_finished.setter
        def _finished(self, value):
            if value:
                raise ConnectionError

        def __del__(self):
            pass

    made = Failing("p", "e")
    with pytest.raises(ConnectionError):
        made.finish(1)
    assert recorded.value("verl.run.state") == 3


def test_nothing_is_recorded_while_telemetry_is_off(tracking_class):
    """With recording off the hooks pass everything through."""
    made = tracking_class("p", "e")
    made.log({"a": 1}, 1)
    made.finish(1)
    assert (made.logged, made.exit_codes) == ([({"a": 1}, 1, None)], [1])
    assert not scalars._names


@pytest.mark.full
def test_a_tracking_that_could_not_be_made_says_nothing(recorded, tracking_class):
    """An unknown backend raises as before, and does not say that the run has finished."""
    with pytest.raises(AssertionError, match="mystery is not supported"):
        tracking_class("p", "e", "mystery")
    gc.collect()
    assert not [point for point in recorded.points if point.instrument.name == "verl.run.state"]


def test_the_last_scalars_are_on_disk_after_finish(tracking_class, tmp_path):
    """When finish returns, the scalars and the end of the run are in the files, although the drain is far away. No step has a span here."""
    verl_otel.init(exporters="file", run_dir=tmp_path, run_id="r1", drain_interval=60)
    try:
        made = tracking_class("p", "e", config=CONFIG)
        made.log({"critic/rewards/mean": 0.5}, 7)
        made.finish()
        text = next((tmp_path / "r1").glob("metrics-*")).read_text()
        assert '"verl.run.state"' in text
        manifest = json.loads((tmp_path / "r1" / "run.json").read_text())
        (training,) = run_status.read(manifest).trainings
        assert (manifest["verl.project"], training.state, training.step) == ("p", "finished", 7)
        assert training.reward == 0.5
    finally:
        verl_otel.shutdown()


def test_every_log_is_in_the_files(tracking_class, read_run, tmp_path):
    """Steps that follow each other quickly are all in the files, each with its scalars."""
    verl_otel.init(exporters="file", run_dir=tmp_path, run_id="r1", drain_interval=60)
    try:
        made = tracking_class("p", "e")
        for number in range(5):
            made.log({"critic/rewards/mean": number / 10, "actor/lr": 1e-6}, number)
    finally:
        verl_otel.shutdown()
    values = defaultdict(dict)
    for scalar in read_run(tmp_path / "r1").scalars:
        values[scalar.time_ns].setdefault(scalar.name, []).append(scalar.value)
    assert [values[at] for at in sorted(values) if "verl.training.step" in values[at]] == [
        {
            "verl.critic.rewards.mean": [number / 10],
            "verl.actor.lr": [1e-6],
            "verl.average_reward": [number / 10],
            "verl.training.step": [number],
            **({"verl.training.steps_since_best": [0]} if number == 4 else {}),  # the fifth value
        }
        for number in range(5)
    ]


def test_the_resource_is_that_of_all_processes(tracking_class, tmp_path):
    """``Tracking`` is made in one process. Its names are not in the resource, which would give that process another ``job`` in Prometheus."""
    verl_otel.init(exporters="file", run_dir=tmp_path, run_id="r1", drain_interval=60)
    try:
        with verl_otel.span("init_workers"):
            pass
        session.flush()
        made = tracking_class("bed", "exp-1", config=CONFIG)
        with verl_otel.step(1):
            pass
        made.finish()
    finally:
        verl_otel.shutdown()
    last = next((tmp_path / "r1").glob("traces-*")).read_text().splitlines()[-1]
    assert "verl.step" in last
    assert "service.namespace" not in last


def test_a_failed_run_stays_failed(recorded, tracking_class):
    """The trainer's ``fit`` raised; verl's ``Tracking`` then says 0 in its destructor, as if all were well."""
    made = tracking_class("p", "e")
    tracking.end_run(failed=True)
    made.finish()
    assert recorded.value("verl.run.state") == 3
    tracking_class("p", "again").finish()
    assert recorded.value("verl.run.state") == 2


def test_a_training_after_a_failed_one_has_no_exception(tracking_class, tmp_path):
    """A program may catch it and train again in the same session."""
    verl_otel.init(exporters="file", run_dir=tmp_path, run_id="r1", drain_interval=60)
    try:
        first = tracking_class("p", "e", config=CONFIG)
        tracking.end_run(ValueError())
        first.finish()
        found = [run_status.read(json.loads((tmp_path / "r1" / "run.json").read_text())).newest]
        tracking_class("p", "e", config=CONFIG).finish()
        found.append(run_status.read(json.loads((tmp_path / "r1" / "run.json").read_text())).newest)
    finally:
        verl_otel.shutdown()
    assert [(one.state, one.error) for one in found] == [("failed", "ValueError"), ("finished", "")]


def test_a_training_that_ctrl_c_ends_is_interrupted(recorded, tracking_class):
    """``fit`` is left by KeyboardInterrupt; what the destructor of ``Tracking`` reports afterwards changes nothing."""
    made = tracking_class("p", "e")
    tracking.end_run(KeyboardInterrupt())
    made.finish()
    assert recorded.value("verl.run.state") == 6


# -- How long each tracker takes in one ``Tracking.log``; the call itself works as before --


TRACKERS = '''
class Tracker:
    def __init__(self, error=None):
        self.logged, self.error = [], error

    def log(self, data, step):
        self.logged.append((data, step))
        if self.error:
            raise self.error


class Tracking:
    """As verl 0.9.1."""

    def __init__(self, logger):
        self.logger = logger

    def log(self, data, step, backend=None):
        for default_backend, logger_instance in self.logger.items():
            if backend is None or default_backend in backend:
                logger_instance.log(data=data, step=step)

    def finish(self, exit_code=0):
        pass
'''


@pytest.fixture
def module(loaded):
    """A host whose hooks are installed."""
    module = loaded(TRACKERS)
    patch.register([hook._replace(module=module.__name__) for hook in tracking.HOOKS])
    return module


def spans(recorded):
    """Tracker and error of each span of a tracker."""
    found = [span for span in recorded.spans if span.name == "verl.logging"]
    return [(span.attributes["verl.tracker"], span.attributes.get("error.type", "")) for span in found]


def test_an_error_of_a_tracker_is_recorded_and_raised(recorded, module):
    """The exception is the tracker's own, and the next call works."""
    bad = module.Tracker(OSError("no route"))
    run = module.Tracking({"console": module.Tracker(), "wandb": bad})
    with pytest.raises(OSError, match="no route"):
        run.log({}, 1)
    assert type(run.logger) is dict
    bad.error = None
    run.log({}, 2)
    assert spans(recorded) == [("console", ""), ("wandb", "OSError"), ("console", ""), ("wandb", "")]


def test_trackers_of_an_unknown_form_are_left_alone(recorded, module):
    """A subclass of ``dict`` may do more than verl expects."""

    class Own(dict):
        pass

    run = module.Tracking(Own(console=module.Tracker()))
    run.log({}, 1)
    assert spans(recorded) == []
    assert len(run.logger["console"].logged) == 1


def test_the_trackers_of_real_verl(recorded, monkeypatch, tmp_path):
    """Verl's own class, console and file."""
    module = pytest.importorskip("verl.utils.tracking", reason="verl is not installed in this environment")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "scalars.jsonl"))
    patch.register(tracking.HOOKS)
    run = module.Tracking("bed", "exp", ["console", "file"], {})
    run.log({"critic/score/mean": 0.5}, 1)
    run.log({"critic/score/mean": 0.5}, 2, backend=["file"])
    run.finish()
    assert spans(recorded) == [("console", ""), ("file", ""), ("file", "")]
    assert len((tmp_path / "scalars.jsonl").read_text().splitlines()) == 2
    session.resource.clear()


def test_an_error_that_the_caller_catches_keeps_nothing(recorded, module):
    """No cycle through the frames of the callers keeps their batches until the garbage collector runs."""

    class Batch:
        """Stands for tensors."""

    def step():
        batch = Batch()
        reference = weakref.ref(batch)
        with contextlib.suppress(OSError):
            run.log({}, 1)
        return reference

    class Failing:
        """A tracker without a network."""

        def log(self, data, step):
            raise OSError("no route")

    run = module.Tracking({"wandb": Failing()})
    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()
