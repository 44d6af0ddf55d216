# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lineage without TransferQueue: tags travel in ``meta_info``, survive verl's own code, and are taken out by the trainer."""

import gc
import types

import pytest

import verl_otel
from tests.builders import hooks
from verl_otel.integrations.verl import batch_lineage
from verl_otel.integrations.verl.trainer import Trainer


class Output:
    """What a trajectory leaves: verl's class, too, can be referred to weakly and has fields that become columns."""

    def __init__(self):
        self.extra_fields = {"turn_scores": []}


class Worker:
    """The two methods of verl's ``AgentLoopWorker`` that make its batch, as far as they matter here."""

    async def _agent_loop_postprocess(self, output, validate, **kwargs):
        return output

    def _postprocess(self, inputs, input_non_tensor_batch=None, validate=False):
        columns = sorted({key for each in inputs for key in each.extra_fields})
        return types.SimpleNamespace(
            columns=columns, meta_info={"metrics": [{"generate_sequences": 1.0} for _ in inputs]}
        )


class Manager:
    def _performance_metrics(self, metrics, output):
        return sorted(output.meta_info)


def merge(*chunks):
    """Merge batches as verl's ``DataProto.concat`` does."""
    return types.SimpleNamespace(meta_info={key: value for chunk in chunks for key, value in chunk.meta_info.items()})


@pytest.fixture(autouse=True)
def forget():
    """Forget the trainer and what waits for a step."""
    yield
    Trainer.instance = None
    batch_lineage._ready.clear()


@pytest.fixture
def host():
    """Return a worker and a manager whose methods are hooked."""
    module = types.ModuleType("host")
    module.AgentLoopWorker = type("AgentLoopWorker", (Worker,), dict(vars(Worker)))
    module.AgentLoopManager = type("AgentLoopManager", (Manager,), dict(vars(Manager)))
    hooks.install(batch_lineage.HOOKS, module, "AgentLoopWorker._postprocess", "AgentLoopManager._performance_metrics")
    return types.SimpleNamespace(worker=module.AgentLoopWorker(), manager=module.AgentLoopManager())


@pytest.fixture
def generate(drive):
    """Make a worker's batch of so many trajectories, each with its own trace."""

    def make(worker, count):
        outputs = []
        for index in range(count):
            with verl_otel.trajectory("prompt", index):
                outputs.append(drive(worker._agent_loop_postprocess(Output(), validate=False)))
        return worker._postprocess(outputs)

    return make


def links(recorded):
    return [link.trace_id for span in recorded.spans if span.name == "verl.consume" for link in span.links]


def traces(recorded):
    return [span.trace_id for span in recorded.spans if span.name == "verl.trajectory"]


def test_the_step_is_linked_to_its_batch_and_no_column_is_left(host, recorded, generate):
    """Each trajectory of two workers' batches is linked once; verl sees its own columns and metrics only."""
    chunks = [generate(host.worker, 2), generate(host.worker, 1)]
    assert [chunk.columns for chunk in chunks] == [["turn_scores"]] * 2
    with verl_otel.step(1):
        seen = host.manager._performance_metrics([], merge(*chunks))
    assert seen == ["metrics"]
    assert [chunk.meta_info["metrics"] for chunk in chunks] == [
        [{"generate_sequences": 1.0}] * count for count in (2, 1)
    ]
    assert sorted(links(recorded)) == sorted(traces(recorded))
    assert len(links(recorded)) == 3


def test_validation_is_not_linked(host, recorded, generate):
    """A batch that is generated inside of a validation is no training, its tags are taken out all the same."""
    from verl_otel.recording.callsite import CallSite
    from verl_otel.recording.span import Span

    chunk = generate(host.worker, 2)
    with Span(CallSite("validation", hook=True)):
        assert host.manager._performance_metrics([], chunk) == ["metrics"]
    assert not links(recorded)


@pytest.mark.full
def test_a_worker_that_makes_its_batch_itself_gets_no_tags(host, recorded, generate):
    """Where a user's class replaces the making of the batch, it sees verl's own fields only, and nothing is kept for its outputs."""

    class Own(type(host.worker)):
        def _postprocess(self, inputs, **kwargs):
            return [sorted(each.extra_fields) for each in inputs]

    assert generate(Own(), 1) == [["turn_scores"]]
    gc.collect()
    assert not batch_lineage._finished


def test_each_batch_has_a_key_of_its_own(host, recorded, generate):
    """Two batches that have one key with different values are refused by verl."""
    keys = [
        key for _ in range(20) for key in generate(host.worker, 1).meta_info if key.startswith(batch_lineage.PREFIX)
    ]
    assert len(set(keys)) == len(keys) == 20


def test_a_batch_without_trajectories_is_as_verl_makes_it(host, recorded, drive):
    """Outputs that belong to no trajectory add nothing."""
    outputs = [drive(host.worker._agent_loop_postprocess(Output(), validate=False))]
    assert set(host.worker._postprocess(outputs).meta_info) == {"metrics"}


def test_a_batch_that_was_generated_ahead_is_linked_to_its_own_step(host, recorded, generate, drive):
    """One step off: what was generated during step 1 is consumed by step 2, where verl waits for it."""

    class OneStepOffRayTrainer:
        async def _async_gen_next_batch(self, chunk):
            host.manager._performance_metrics([], chunk)
            return {}, {}, 0, chunk, None

        async def _fit_generate(self, result):
            return result[3], None

    module = types.ModuleType("host")
    module.OneStepOffRayTrainer = OneStepOffRayTrainer
    hooks.install(batch_lineage.HOOKS, module, "OneStepOffRayTrainer._async_gen_next_batch")
    trainer = OneStepOffRayTrainer()
    chunk = generate(host.worker, 2)
    with verl_otel.step(1):
        ahead = drive(trainer._async_gen_next_batch(chunk))
    assert not links(recorded)
    with verl_otel.step(2):
        assert drive(trainer._fit_generate(ahead)) == (chunk, None)
    (second,) = [
        span for span in recorded.spans if span.name == "verl.step" and span.attributes["verl.step.number"] == 2
    ]
    assert {span.trace_id for span in recorded.spans if span.name == "verl.consume"} == {second.trace_id}
    assert len(links(recorded)) == 2
    assert not batch_lineage._ready


def test_damaged_tags_harm_nobody(host, recorded, swallow):
    """What is no tag of ours is taken out, and training goes on."""
    damaged = {f"{batch_lineage.PREFIX}{number}": value for number, value in enumerate(("damaged", 7, None, ""))}
    batch = types.SimpleNamespace(meta_info={**damaged, "timing": {}, 1: 2, "verl": 3})
    with verl_otel.step(1):
        batch_lineage.take_origins(batch.meta_info)
    assert batch.meta_info == {"timing": {}, 1: 2, "verl": 3}
    assert not links(recorded)
