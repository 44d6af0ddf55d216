# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A step is what verl logs as a step: everything of it is added up over the mini-batches or local steps that it consists of."""

import contextlib
import types

import numpy as np
import pytest

from tests.builders import hooks
from tests.builders.hooks import marked_timer
from verl_otel.integrations import patch
from verl_otel.integrations.verl import lineage, step_log, timers, trainer, training
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.recording import run_log
from verl_otel.semconv import attributes as attr
from verl_otel.semconv import logs

STOP = type(timers._STOP, (Exception,), {})
"""What verl's fully asynchronous trainer raises when the queue has ended."""


def origin(number, *, score=None, uid="", version=None, **facts):
    return Origin(0xA000 + number, 0xB000 + number, 1.0, score, "", uid, version, facts)


def group(number, *scores, version=None):
    """Return one sample for each score of a prompt."""
    return [
        origin(10 * number + place, score=score, uid=f"u{number}", version=version)
        for place, score in enumerate(scores)
    ]


@pytest.fixture
def run(recorded, monkeypatch):
    """A training without its end: what it records is in ``recorded``, the run log in ``run_log.take()``."""
    ended = []
    monkeypatch.setattr(trainer, "end_run", lambda error=None: ended.append(error is not None))
    monkeypatch.setattr(trainer, "_last_drain", lambda: 0.0)
    run_log.configure(logs.INFO, 0)
    training.begin()
    yield types.SimpleNamespace(ended=ended)
    patch.undo_all()
    run_log._reset()
    trainer._clear()
    Trainer.instance, Trainer.algorithm = None, ""
    lineage.begin_run()


def read_rollout():
    """Return the records of the scope ``rollout`` since the last call: step and fields."""
    return [(record.step, record.fields) for record in run_log.take() if record.scope == logs.ROLLOUT]


def read_steps(recorded):
    return [span for span in recorded.spans if span.name == "verl.step"]


def histogram(recorded, name):
    """Return count and sum of a histogram."""
    points = [point.value for point in recorded.points if point.instrument.name == name]
    return sum(value.samples for value in points), sum(value.total for value in points)


# -- separate_async: a step takes several batches from the replay buffer --


class SeparateAsyncTrainer:
    """verl's trainer as far as it is patched: three groups for each of two mini-batches."""

    trainer_mode = "separate_async"
    parameter_sync_step = 2

    def __init__(self, *batches):
        batches = iter(batches)
        buffer = types.SimpleNamespace(
            sample=lambda *_: types.SimpleNamespace(tags=[{lineage.TAG: each.encode()} for each in next(batches)])
        )
        self.replay_buffer = buffer
        self.global_steps = 0

    def step(self):
        self.global_steps += 1
        with marked_timer("step", {}):
            for _ in range(self.parameter_sync_step):
                with marked_timer("gen", {}):
                    self.replay_buffer.sample(self.global_steps, "train", 3)
                with marked_timer("update_actor", {}):
                    pass
        step_log.write({"critic/rewards/mean": 0.5, "critic/score/mean": 0.5}, self.global_steps)


SeparateAsyncTrainer.__module__ = "verl.trainer.ppo.v1.trainer_separate_async"


def test_mini_batches_are_added_up(recorded, run):
    """Scores, groups, samples, wanted groups and the slowest trajectory are of all mini-batches of the step."""
    training = SeparateAsyncTrainer(
        [*group(1, 0.0, 0.0), *group(2, 0.0, 1.0)], [*group(3, 1.0, 1.0), *group(4, 1.0, 1.0)]
    )
    trainer._register(training)
    training.step()
    ((number, fields),) = read_rollout()
    assert number == 1
    assert fields["samples"] == 8
    assert (fields["groups"], fields["groups_solved"], fields["groups_failed"]) == (4, 2, 1)
    assert (fields["score_low"], fields["score_high"]) == (0.0, 1.0)
    assert fields["reward_std"] == fields["score_std"] == pytest.approx(np.std([0, 0, 0, 1, 1, 1, 1, 1]))
    assert recorded.value("verl.reward.score.mean") == 5 / 8
    assert recorded.value("verl.reward.groups", verl_outcome="solved") == 2
    assert recorded.value("verl.rollout.groups.wanted") == 6
    (step,) = read_steps(recorded)
    links = [link for span in recorded.spans if span.name == "verl.consume" for link in span.links]
    assert len(links) == 8
    assert {span.trace_id for span in recorded.spans if span.name == "verl.consume"} == {step.trace_id}


def test_generation_is_that_of_the_trajectories(recorded, run):
    """The trainer waits for no time; its trajectories began at 100 s, and the last token came at 107.5 s, before the reward."""
    begun = [origin(1, start=100.0), origin(2, start=103.0), origin(3, start=107.0, reward=0.5), origin(4)]
    training = SeparateAsyncTrainer(begun[:1], begun[1:])
    trainer._register(training)
    training.step()
    assert histogram(recorded, "verl.sample.generation") == (1, 7.5)
    ((_, fields),) = read_rollout()
    assert fields["seconds"] == 7.5


# -- fully asynchronous: a version of the weights takes several local steps --


class FullyAsyncTrainer:
    """verl's trainer as far as it is patched, with a version after each two local steps."""

    def __init__(self, *batches):
        self.batches = iter(batches)
        self.current_param_version, self.local_trigger_step, self.global_steps = 0, 1, 1
        self.aggregated = []
        self.is_full = False

    def _fit_save_checkpoint(self, force=False):
        if self.is_full:
            raise OSError(28, "No space left on device")

    def local_step(self):
        """As ``fit_step``: the metrics of a local step are added up after those of the version were logged."""
        with marked_timer("step", {}):
            with marked_timer("gen", {}):
                batch = next(self.batches, None)
                if batch is None:
                    raise STOP
                lineage.consume(batch, step=Trainer.step_number(), logged_later=True)
            with marked_timer("update_actor", {}):
                pass
            if self.local_trigger_step < 2:
                self.local_trigger_step += 1
            else:
                self.current_param_version += 1
                self.local_trigger_step = 1
                lineage.note_sync(self.current_param_version, 0.0)
                step_log.write({"fully_async/rollouter/idle_ratio": 0.5}, self.current_param_version)
        if self.local_trigger_step == 1:
            self.log()
        self.aggregated += batch
        self.global_steps += 1

    def log(self):
        if self.aggregated:
            scores = [each.score for each in self.aggregated]
            values = {"critic/rewards/mean": np.mean(scores), "critic/score/mean": np.mean(scores)}
            step_log.write(values, self.current_param_version)
        self.aggregated = []

    def fit(self):
        with contextlib.suppress(STOP):
            while True:
                trainer._FIT_START_PROFILE(lambda self: None)(self)
                self.local_step()
        self.log()
        self._fit_save_checkpoint(force=True)


FullyAsyncTrainer.__module__ = "verl.experimental.fully_async_policy.fully_async_trainer"


def test_local_steps_of_a_version_are_one_step(recorded, run):
    """Steps are numbered by version; each has the trajectories of its local steps; the end of the queue ends nothing and begins nothing."""
    FullyAsyncTrainer(*(group(number, 0.0, 1.0, version=(number - 1) // 2) for number in range(1, 9))).fit()
    steps = read_steps(recorded)
    assert [span.attributes[attr.STEP_NUMBER] for span in steps] == [1, 2, 3, 4]
    phases = [span.trace_id for span in recorded.spans if span.name == "verl.phase.update_actor"]
    assert phases == [span.trace_id for span in steps for _ in range(2)]
    links = {span.trace_id: 0 for span in steps}
    for span in recorded.spans:
        if span.name == "verl.consume":
            links[span.trace_id] += len(span.links)
    assert list(links.values()) == [4] * 4
    assert histogram(recorded, "verl.rollout.staleness") == (16, 0.0)
    assert recorded.value("verl.training.steps") == 4
    assert run.ended == [False]


def test_a_record_of_the_run_log_is_about_the_samples_of_its_version(run):
    """Verl logs the last local step of a version with the next one, and once more at the end: a record has the mean of its own samples."""
    scores = [0.0, 1.0, 0.25, 0.5, 0.75, 1.0]
    FullyAsyncTrainer(*(group(number, score) for number, score in enumerate(scores))).fit()
    records = read_rollout()
    assert [number for number, _ in records] == [1, 2, 3]
    assert [fields["samples"] for _, fields in records] == [2, 2, 2]
    for name in ("score_mean", "reward_mean"):
        assert [fields[name] for _, fields in records] == [0.5, 0.375, 0.875]
    assert [(fields["reward_min"], fields["reward_max"]) for _, fields in records] == [(0, 1), (0.25, 0.5), (0.75, 1)]


def test_local_steps_that_made_no_version_are_a_step_that_was_cancelled(recorded, run):
    """The queue may end after an odd number of local steps, which verl neither logs nor sends to the rollouts."""
    FullyAsyncTrainer(*(group(number, 1.0) for number in range(3))).fit()
    steps = read_steps(recorded)
    assert [(span.attributes[attr.STEP_NUMBER], span.attributes.get(attr.OUTCOME)) for span in steps] == [
        (1, None),
        (2, "cancelled"),
    ]
    assert recorded.value("verl.training.steps") == 1


def test_a_fully_asynchronous_training_that_fails_has_failed(run):
    """Ray calls its ``fit`` without looking at the instance: an error of a step is the end."""
    training = FullyAsyncTrainer([object()])
    trainer._FIT_START_PROFILE(lambda self: None)(training)
    with pytest.raises(AttributeError):
        training.local_step()
    assert run.ended == [True]


def test_a_fully_asynchronous_training_that_fails_between_two_steps_has_failed(run):
    """A checkpoint is saved after the span of the step."""
    training = FullyAsyncTrainer(group(1, 0.0), group(2, 0.0))
    training.is_full = True
    with pytest.raises(OSError, match="No space"):
        training.fit()
    assert run.ended == [True]


# -- one-step-off: verl sends the weights before the update of a step, under the number of that step --


def test_one_step_off_is_one_version_stale_from_step_2_on(recorded, run):
    training = types.SimpleNamespace(global_steps=0)
    trainer._register(training)
    lineage.note_sync(0, 0.0)
    for training.global_steps in (1, 2, 3):
        with marked_timer("step", {}):
            with marked_timer("gen", {}):
                batch = group(training.global_steps, 1.0, version=training.global_steps - 1)
                lineage.consume(batch, step=Trainer.step_number())
                lineage.note_sync(training.global_steps, 0.0)
            with marked_timer("update_actor", {}):
                pass
    values = [point.value for point in recorded.points if point.instrument.name == "verl.rollout.staleness"]
    assert sum(value.samples for value in values) == 3
    assert sum(value.total for value in values) == 2


# -- groups by advantages --


def compute_advantage(rewards):
    """As GRPO: the same advantage for all tokens of a response, 0 where the rewards of a group are equal."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed in this environment")
    uids, values = list(rewards), []
    for group_rewards in rewards.values():
        values += [reward - sum(group_rewards) / len(group_rewards) for reward in group_rewards]
    repeated = [uid for uid in uids for _ in rewards[uid]]
    return types.SimpleNamespace(
        batch={"advantages": torch.tensor(values).unsqueeze(-1).repeat(1, 3)},
        non_tensor_batch={"uid": np.array(repeated, dtype=object)},
    )


@pytest.mark.parametrize(("estimator", "expected"), [("grpo", (1, 1)), ("gae", (None, None))])
def test_groups_have_a_signal_by_their_advantages(recorded, run, estimator, expected):
    """Rewards with a KL penalty differ where scores are equal. An estimator that compares no samples of a group has no groups."""
    module = types.SimpleNamespace(compute_advantage=compute_advantage, __name__="verl.trainer.ppo.ray_trainer")
    hooks.install(lineage.HOOKS, module, "compute_advantage")
    config = types.SimpleNamespace(algorithm=types.SimpleNamespace(adv_estimator=estimator))
    training = types.SimpleNamespace(global_steps=1, config=config)
    trainer._register(training)
    with marked_timer("step", {}):
        lineage.consume([*group(1, 1.0, 1.0), *group(2, 1.0, 1.0)], step=1)
        with marked_timer("adv", {}):
            module.compute_advantage({"u1": [0.75, 0.5], "u2": [1.0, 1.0]})
        with marked_timer("update_actor", {}):
            pass
    found = {
        dict(point.labels)["verl.outcome"]: point.value
        for point in recorded.points
        if point.instrument.name == "verl.reward.groups"
    }
    assert (found.get("signal"), found.get("solved")) == expected
