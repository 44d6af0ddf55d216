# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters on which some processes lack verl-otel: verl's own classes merge, pickle and convert what workers with it send."""

import importlib
import io
import pickle
import sys
import types

import numpy as np
import pytest

import verl_otel
from tests.builders.agent_outputs import make_output
from verl_otel.integrations.verl import batch_lineage, lineage
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.recording.decorate import surround

pytestmark = pytest.mark.filterwarnings("ignore")
"""verl and its dependencies warn when they are imported."""
WORKERS = [
    ("without", "with"),
    ("with", "without"),
    ("with", "with"),
    ("without", "without"),
    ("some", "with"),
    ("with", "some", "without", "some"),
]
"""What each agent loop worker is: ``some`` has verl-otel, but only its second sample has a trajectory."""
ROWS = 2
"""Samples of one worker."""


class Reader(pickle.Unpickler):
    """Reads a pickle as a process does that lacks verl-otel."""

    def find_class(self, module, name):
        assert not module.startswith("verl_otel"), f"{module}.{name} is in the pickle"
        return super().find_class(module, name)


def send(batch):
    """Send a batch as Ray does, to a process that lacks verl-otel."""
    return Reader(io.BytesIO(pickle.dumps(batch))).load()


@pytest.fixture
def cluster(monkeypatch, drive):
    """The worker and the manager of verl, each with and without the hooks."""
    pytest.importorskip("verl", reason="verl is not installed in this environment")
    loop = importlib.import_module("verl.experimental.agent_loop.agent_loop")
    queue = importlib.import_module("verl.experimental.fully_async_policy.detach_utils")
    names = ("generate_sequences", "_performance_metrics")
    managers = {"without": type("Manager", (), {name: vars(loop.AgentLoopManager)[name] for name in names})}
    assemblers = {"without": queue.assemble_batch_from_rollout_samples}
    make_plain = loop.AgentLoopWorker._postprocess

    async def postprocess(self, number):
        return make_output(loop, number)

    monkeypatch.setattr(loop.AgentLoopWorker, "_agent_loop_postprocess", postprocess)
    for hook in batch_lineage.HOOKS:
        if hook.module in (loop.__name__, queue.__name__):
            hook.install(sys.modules[hook.module])
    managers["with"] = type("Manager", (), {name: vars(loop.AgentLoopManager)[name] for name in names})
    assemblers["with"] = queue.assemble_batch_from_rollout_samples

    def make_batch(kind):
        """Make the batch of a worker, and send it."""
        worker = object.__new__(loop.AgentLoopWorker)
        worker.reward_loop_worker_handles = None
        outputs = []
        for number in range(ROWS):
            if kind == "with" or (kind == "some" and number):
                with verl_otel.trajectory("prompt", number):
                    outputs.append(drive(worker._agent_loop_postprocess(number)))
            else:
                outputs.append(make_output(loop, number))
        return send(make_plain(worker, outputs) if kind == "without" else worker._postprocess(outputs))

    yield types.SimpleNamespace(managers=managers, assemblers=assemblers, make_batch=make_batch)
    Trainer.instance = None


def generate(cluster, driver, kinds):
    """Have a manager generate a batch with workers of these kinds."""
    import torch
    from verl import DataProto

    async def answer(kind):
        return cluster.make_batch(kind)

    def make_worker(kind):
        return types.SimpleNamespace(generate_sequences=types.SimpleNamespace(remote=lambda _: answer(kind)))

    manager = cluster.managers[driver]()
    manager.agent_loop_workers = [make_worker(kind) for kind in kinds]
    count = ROWS * len(kinds)
    prompts = DataProto.from_single_dict({"dummy": torch.zeros(count, 1), "uid": np.arange(count).astype(object)})
    return prompts, manager.generate_sequences(prompts)


def count_links(recorded):
    return sum(len(span.links) for span in recorded.spans if span.name == "verl.consume")


def count_trajectories(recorded):
    return sum(span.name == "verl.trajectory" for span in recorded.spans)


@pytest.mark.full
@pytest.mark.parametrize("kinds", WORKERS, ids=" ".join)
def test_a_trainer_merges_batches_of_any_workers(cluster, recorded, kinds):
    """Whichever workers have verl-otel, verl merges their batches, each known trajectory is linked once, and nothing of ours is left."""
    with verl_otel.step(1):
        _, batch = generate(cluster, "with", kinds)
    assert set(batch.meta_info) == {"timing", "reward_extra_keys"}
    assert len(batch) == ROWS * len(kinds)
    assert not [key for key in batch.non_tensor_batch if key.startswith("verl_otel")]
    assert (
        count_links(recorded)
        == count_trajectories(recorded)
        == sum({"with": 2, "some": 1}.get(kind, 0) for kind in kinds)
    )
    assert not batch_lineage._finished


@pytest.mark.parametrize("kinds", WORKERS, ids=" ".join)
def test_a_trainer_without_us_merges_batches_of_any_workers(cluster, recorded, kinds):
    """The trainer may be the process that lacks verl-otel: what is left of ours passes every conversion of verl, and is a plain text."""
    from verl import DataProto

    prompts, batch = generate(cluster, "without", kinds)
    ours = {key for key in batch.meta_info if key.startswith(batch_lineage.PREFIX)}
    assert all(type(batch.meta_info[key]) is str for key in ours)
    assert set(batch.meta_info) - ours == {"timing", "reward_extra_keys"}
    batch.meta_info.pop("timing")
    merged = prompts.union(send(batch))
    merged = DataProto.concat([*merged.chunk(len(kinds)), *merged.chunk(len(kinds))])
    assert len(DataProto.from_tensordict(send(merged.to_tensordict()))) == 2 * len(batch)


@pytest.mark.parametrize("trainer", ["with", "without"])
@pytest.mark.parametrize("kinds", WORKERS, ids=" ".join)
def test_samples_of_a_queue_are_assembled_whoever_made_them(cluster, recorded, trainer, kinds):
    """Fully asynchronous: each sample of the queue is a batch of its own, of any worker."""
    samples = [
        types.SimpleNamespace(full_batch=cluster.make_batch(kind), rollout_status={}, sample_id=str(number))
        for number, kind in enumerate(kinds)
    ]
    with verl_otel.step(1):
        batch = cluster.assemblers[trainer](samples, None, None)
    assert len(batch) == ROWS * len(kinds)
    ours = [key for key in batch.meta_info if key.startswith("verl_otel")]
    assert count_links(recorded) == (count_trajectories(recorded) if trainer == "with" else 0)
    if trainer == "with":
        assert not ours
    assert len(send(batch.to_tensordict())) == len(batch)


def test_results_are_those_of_a_cluster_without_us(cluster, recorded):
    """Columns, tensors and timings of a mixed cluster are those of a cluster without verl-otel."""
    (_, mixed), (_, plain) = (generate(cluster, "with", kinds) for kinds in (("without", "with"), ("without",) * 2))
    assert mixed.meta_info == plain.meta_info
    assert mixed.non_tensor_batch.keys() == plain.non_tensor_batch.keys()
    assert all((mixed.batch[key] == plain.batch[key]).all() for key in sorted(plain.batch.keys()))


def test_tags_of_a_mixed_queue_pass_transfer_queue(recorded, drive):
    """Trainers v1: samples with and without our tag pass every operation of TransferQueue on them, in any order, in a process without us."""
    metadata = pytest.importorskip("transfer_queue.metadata", reason="TransferQueue is not installed")
    tags = [{"seq_len": number} for number in range(4)]

    async def put(*, tags):
        return metadata.KVBatchMeta(keys=[str(tag["seq_len"]) for tag in tags], tags=tags)

    with verl_otel.trajectory("prompt", 0):
        ours = drive(surround("lineage", lineage._tag)(put)(tags=tags[1:3]))
    theirs = metadata.KVBatchMeta(keys=["0", "3"], tags=[tags[0], tags[3]])
    for parts in ([ours, theirs], [theirs, ours]):
        merged = send(metadata.KVBatchMeta.concat(parts))
        merged.reorder([3, 1, 2, 0])
        chosen = merged.select_keys(["0", "1"])
        assert [tag["seq_len"] for tag in chosen.tags] == [0, 1]
        assert [lineage.TAG in tag for tag in chosen.tags] == [False, True]
        assert type(chosen.tags[1][lineage.TAG]) is str
        assert [len(chunk) for chunk in merged.chunk(2)] == [2, 2]
