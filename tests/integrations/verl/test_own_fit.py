# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Dynamic sampling in a loop of another project: rounds of generation are one step, and what a filter leaves is what the step trains on."""

import importlib
import sys
import types
import weakref

import numpy as np
import pytest

import verl_otel
from tests.builders import hooks
from tests.builders.agent_outputs import make_output
from tests.builders.hooks import marked_timer
from verl_otel.integrations.verl import batch_lineage, lineage, tracking, trainer, workers
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.semconv import attributes as attr

pytestmark = pytest.mark.filterwarnings("ignore")
"""verl and its dependencies warn when they are imported."""
ROWS = 4
"""Samples of a round."""
GROUP = types.SimpleNamespace(world_size=1)


def send_update(batch):
    """Send a batch to an update."""
    with workers.open_call("worker call", (None, batch), {}, GROUP, "update_actor", True):
        pass


class Loop:
    """A trainer that derives from none of verl's: each step has rounds, of which a filter keeps some rows.

    Args:
        generate: Returns the batch of a round.
    """

    def __init__(self, generate):
        self.global_steps = 1
        self.generate = generate

    def step(self, *kept_of_rounds, change=lambda batch: batch, update=True):
        """Train one step: keep these rows of each round. Returns verl's times."""
        from verl import DataProto

        timing, batch = {}, None
        for number, kept in enumerate(kept_of_rounds, 1):
            with marked_timer("step", timing):
                with marked_timer("gen", timing):
                    new = self.generate()
                batch = new[kept] if batch is None else DataProto.concat([batch, new[kept]])
                if number < len(kept_of_rounds) or not update:
                    continue
                batch = change(batch)
                for part in batch if isinstance(batch, list) else [batch]:
                    with marked_timer("update_actor", timing):
                        send_update(part)
        self.global_steps += 1
        return timing


@pytest.fixture
def loop(recorded, drive):
    """A loop whose batches are made by verl's own agent loop, with the hooks."""
    pytest.importorskip("verl", reason="verl is not installed in this environment")
    module = importlib.import_module("verl.experimental.agent_loop.agent_loop")
    plain = module.AgentLoopWorker._agent_loop_postprocess

    async def postprocess(self, number):
        return make_output(module, number)

    module.AgentLoopWorker._agent_loop_postprocess = postprocess
    for hook in batch_lineage.HOOKS:
        if hook.module == module.__name__:
            hook.install(sys.modules[hook.module])
    worker = object.__new__(module.AgentLoopWorker)
    worker.reward_loop_worker_handles = None
    names = ("generate_sequences", "_performance_metrics")
    manager = type("Manager", (), {name: vars(module.AgentLoopManager)[name] for name in names})()
    numbers = iter(range(1000))

    async def answer(validate):
        outputs = []
        for number in (next(numbers) for _ in range(ROWS)):
            with verl_otel.trajectory("prompt", number) as span:
                span.set_attribute(attr.REWARD_SCORE, float(number))
                if validate:
                    span.set_attribute(attr.VALIDATE, True)
                outputs.append(await worker._agent_loop_postprocess(number))
        return worker._postprocess(outputs)

    def generate(validate=False, metrics=True):
        from verl import DataProto

        if not metrics:
            return drive(answer(validate))
        remote = types.SimpleNamespace(remote=lambda _: answer(validate))
        manager.agent_loop_workers = [types.SimpleNamespace(generate_sequences=remote)]
        return manager.generate_sequences(DataProto.from_single_dict({"uid": np.arange(ROWS).astype(object)}))

    yield Loop(generate)
    module.AgentLoopWorker._agent_loop_postprocess = plain
    Trainer.instance = Trainer.step = Trainer.created = None
    Trainer.round_end, Trainer.found = 0.0, None
    lineage.begin_run()


def read_links(recorded):
    """Return the numbers of trajectories by the number of a step and the type of link."""
    numbers = {
        span.trace_id: span.attributes[attr.ROLLOUT_INDEX] for span in recorded.spans if span.name == "verl.trajectory"
    }
    steps = {span.trace_id: span.attributes[attr.STEP_NUMBER] for span in recorded.spans if span.name == "verl.step"}
    found = {}
    for span in recorded.spans:
        for link in span.links if span.name == "verl.consume" else ():
            key = steps[span.trace_id], link.attributes[attr.LINK_TYPE]
            found.setdefault(key, []).append(numbers[link.trace_id])
    return found


def test_rounds_of_a_step_are_one_step(recorded, loop):
    """A step begins with its first round and ends with its update; verl's own time is the sum of its rounds, as without us."""
    times = [loop.step([0, 1], [0, 1]), loop.step([0, 1, 2, 3])]
    steps = [span for span in recorded.spans if span.name == "verl.step"]
    assert [span.attributes[attr.STEP_NUMBER] for span in steps] == [1, 2]
    assert {span.attributes[attr.TRAINER_MODE] for span in steps} == {"Loop"}
    phases = [(span.trace_id, span.name) for span in recorded.spans if span.name.startswith("verl.phase")]
    assert phases == [
        *[(steps[0].trace_id, "verl.phase.gen")] * 2,
        (steps[0].trace_id, "verl.phase.update_actor"),
        (steps[1].trace_id, "verl.phase.gen"),
        (steps[1].trace_id, "verl.phase.update_actor"),
    ]
    assert [timing.keys() for timing in times] == [{"step", "gen", "update_actor"}] * 2


def test_a_loop_that_ends_between_two_rounds_ends_its_step(recorded, loop):
    """The data may end while a batch is being filled; the next count of the trainer ends the step, too."""
    loop.step([0], update=False)
    loop.step([0], [1])
    first, second = (span for span in recorded.spans if span.name == "verl.step")
    assert [each.attributes[attr.STEP_NUMBER] for each in (first, second)] == [1, 2]
    assert first.end_ns <= second.start_ns


def test_a_round_that_fails_ends_its_step_with_its_error(recorded, loop):
    """DAPO raises when it has generated too often."""
    timing = {}
    for _ in range(2):
        with pytest.raises(ValueError, match="too many"), marked_timer("step", timing), marked_timer("gen", timing):
            raise ValueError("too many")
    assert [span.attributes["error.type"] for span in recorded.spans if span.name == "verl.step"] == ["ValueError"] * 2


def test_filtered_trajectories_are_not_trained_on(recorded, loop):
    """Each round keeps some rows, in another order; what the step took and did not train on is linked with a reason."""
    loop.step([2, 0], [3])
    assert read_links(recorded) == {(1, "consumed"): [0, 1, 2, 3, 4, 5, 6, 7], (1, "evicted"): [1, 3, 4, 5, 6]}
    reasons = {link.attributes.get("reason") for span in recorded.spans for link in span.links} - {None}
    assert reasons == {"filtered"}
    assert recorded.value("verl.rollout.dropped", reason="filtered") == 5


def test_rows_of_several_updates_add_up(recorded, loop):
    """A loop of its own may send its mini-batches one by one."""
    loop.step([0, 1, 2, 3], change=lambda batch: [batch[[0, 1]], batch[[2, 3]]])
    assert read_links(recorded) == {(1, "consumed"): [0, 1, 2, 3]}


def test_a_surplus_is_trained_on_by_the_step_that_does(recorded, loop):
    """A loop may keep for the next step what a batch had no room for, or train on that alone."""
    kept, timing = [], {}

    def cut(batch):
        kept.append(batch[[2, 3]])
        return batch[[0, 1]]

    loop.step([0, 1, 2, 3], change=cut)
    loop.step([0, 1], change=lambda batch: batch.concat([kept[0], batch]))
    loop.step([0, 1, 2, 3], change=cut)
    with marked_timer("step", timing), marked_timer("update_actor", timing):
        send_update(kept[1])
    assert read_links(recorded) == {
        (1, "consumed"): [0, 1, 2, 3],
        (1, "evicted"): [2, 3],
        (2, "consumed"): [4, 5, 6, 7, 2, 3],
        (2, "evicted"): [6, 7],
        (3, "consumed"): [8, 9, 10, 11],
        (3, "evicted"): [10, 11],
        (4, "consumed"): [10, 11],
    }


def test_nothing_is_said_of_rows_that_the_loop_has_changed(recorded, loop):
    """Which of them were trained on cannot be known then."""

    def shorten(batch):
        batch.batch["responses"] = batch.batch["responses"][:, :1]
        return batch

    loop.step([0], change=shorten)
    assert read_links(recorded) == {(1, "consumed"): [0, 1, 2, 3]}


def test_a_batch_of_all_that_was_generated_is_not_read(recorded, loop):
    """A stock trainer sends what it generated: its rows cost nothing to compare."""

    class Unreadable(list):
        """Has a length, and tensors that nobody may read."""

        @property
        def batch(self):
            raise AssertionError("read")

    loop.step([0, 1, 2, 3], change=lambda batch: [Unreadable(batch)])
    assert read_links(recorded) == {(1, "consumed"): [0, 1, 2, 3]}


def test_verls_own_conversion_of_the_batch_is_known_too(recorded, loop):
    """Since verl 0.8 a trainer sends a ``TensorDict`` without padding."""
    padding = importlib.import_module("verl.workers.utils.padding")
    loop.step([1, 2], change=lambda batch: [padding.left_right_2_no_padding(batch.to_tensordict())])
    assert read_links(recorded) == {(1, "consumed"): [0, 1, 2, 3], (1, "evicted"): [0, 3]}


def test_scores_are_those_of_the_rows_that_were_trained_on(recorded, loop):
    """The mean of two rounds is that of what the filter left."""
    loop.step([0, 1], [0, 3])
    assert recorded.value("verl.reward.score.mean") == pytest.approx((0 + 1 + 4 + 7) / 4)


def test_trajectories_of_a_validation_are_trained_on_by_nobody(recorded, loop):
    """Also if the loop has a validation of its own, of which verl-otel knows nothing."""
    loop.generate(validate=True)
    loop.step([0, 1, 2, 3])
    assert read_links(recorded) == {(1, "consumed"): [4, 5, 6, 7]}


@pytest.mark.parametrize("converted", [False, True])
def test_a_manager_of_its_own_may_measure_nothing(recorded, loop, converted):
    """Without verl's ``_performance_metrics`` the origins of the rows are read when they are sent to the update."""
    padding = importlib.import_module("verl.workers.utils.padding")
    generate, loop.generate = loop.generate, lambda: generate(metrics=False)

    def change(batch):
        return [padding.left_right_2_no_padding(batch.to_tensordict()) if converted else batch]

    loop.step([0, 1], [2], change=change)
    assert read_links(recorded) == {(1, "consumed"): list(range(8)), (1, "evicted"): [2, 3, 4, 5, 7]}


def test_looking_for_a_trainer_keeps_no_batch_of_its_loop_alive(recorded, loop):
    """Before Python 3.13 to read one variable of a function copies all, and the copy lives as long as the function runs."""

    class Holder(Loop):
        def fit(self):
            batch = Loop(None)
            reference = weakref.ref(batch)
            with marked_timer("step", {}):
                del batch
                return reference()

    assert Holder(None).fit() is None
    assert recorded.span("verl.step").attributes[attr.STEP_NUMBER] == 1


def test_looking_for_a_trainer_changes_nothing_of_its_loop(recorded, loop):
    """A loop may keep its variables as a dictionary, as loggers of hyper-parameters do."""

    class Keeper(Loop):
        def fit(self, rate=0.1):
            settings = locals()
            with marked_timer("step", {}):
                pass
            return sorted(settings)

    assert {"rate", "self"} <= set(Keeper(None).fit())


def test_a_trainer_that_was_found_is_kept_alive_by_nothing(recorded, loop):
    """It may end unnoticed, and trackers that belong to it finish when it is deleted."""
    found = Loop(loop.generate)
    found.step([0, 1, 2, 3])
    reference = weakref.ref(found)
    del found
    assert reference() is None


def test_the_end_of_tracking_is_the_end_of_a_trainer_that_was_found(recorded, loop, monkeypatch):
    """Nothing else tells that its workers have to be waited for: they write what they did in their last second."""
    waits = []
    monkeypatch.setattr(trainer, "_last_drain", lambda: waits.append("drain") or 0.0)

    class Tracking:
        def __init__(self):
            self._finished = False

        def finish(self, exit_code=0):
            self._finished = True

    hooks.install(tracking.HOOKS, types.SimpleNamespace(Tracking=Tracking), "Tracking.finish")
    made = Tracking()
    loop.step([0], update=False)
    assert "verl.step" not in {span.name for span in recorded.spans}
    for _ in range(2):
        made.finish()
    assert recorded.span("verl.step").attributes[attr.STEP_NUMBER] == 1
    assert waits == ["drain"]
