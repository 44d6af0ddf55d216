# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a run has: from the ids that its processes say, else from their ranks."""

import pytest

from tests.builders import trees
from verl_otel.analysis.gpu import devices

resource = trees.resource


def gpus(*ids, node="n1"):
    return {"verl__gpu__ids": ids, "ray__node__id": node}


def lanes(found):
    return {device.name: device.lane for device in found.gpus}


def used(found, instance):
    return [found.gpus[number].name for number in found.users.get(instance, ())]


def test_processes_that_say_their_gpus_share_them_by_id():
    """A worker and the server on its GPU are one device, on each host anew; ten comes after nine."""
    workers = [
        resource(f"actor_rollout_ref-{rank}", rank=rank, host=f"node-{rank // 2}", **gpus(str(9 + rank % 2)))
        for rank in range(4)
    ]
    servers = [resource(f"llm_server-{host}", host=f"node-{host}", **gpus("9", "10")) for host in range(2)]
    found = devices.find_devices([resource("trainer-0"), *servers, *workers], {"verl.gpus": "2", "verl.nodes": "2"})
    assert list(lanes(found)) == ["node-0/9", "node-0/10", "node-1/9", "node-1/10"]
    assert set(lanes(found).values()) == {"hybrid"}
    assert used(found, "llm_server-1") == ["node-1/9", "node-1/10"]
    assert used(found, "actor_rollout_ref-3") == ["node-1/10"]
    assert not found.problems


def test_two_nodes_of_ray_on_one_host_have_different_gpus():
    """The GPU 0 of each node of a cluster on one machine is another one."""
    found = devices.find_devices(
        [resource(f"actor-{rank}", rank=rank, **gpus("0", node=f"{rank}abc")) for rank in range(2)], {}
    )
    assert len(found.gpus) == 2


def test_without_ids_each_rank_is_a_device_and_replicas_lie_over_them_in_order():
    """Four ranks and two replicas: two GPUs each, as verl places them."""
    processes = [resource(f"actor_rollout_ref-{rank}", rank=rank) for rank in (3, 1, 0, 2)]
    found = devices.find_devices([*processes, resource("llm_server-1"), resource("llm_server-0")], {})
    assert used(found, "llm_server-0") == ["actor_rollout_ref-0", "actor_rollout_ref-1"]
    assert used(found, "llm_server-1") == ["actor_rollout_ref-2", "actor_rollout_ref-3"]
    assert found.replicas == 2


def test_a_standalone_replica_has_the_gpus_of_its_own_ranks():
    """The rollout's workers of a replica say which GPUs it has, also where a hybrid one is beside it."""
    processes = [
        resource("actor_rollout_ref-0", rank=0),
        resource("rollout-1-0", rank=0),
        resource("rollout-1-1", rank=1),
    ]
    found = devices.find_devices([*processes, resource("llm_server-0"), resource("llm_server-1")], {})
    assert used(found, "llm_server-1") == ["rollout-1-0", "rollout-1-1"]
    assert lanes(found) == {"actor_rollout_ref-0": "hybrid", "rollout-1-0": "rollout", "rollout-1-1": "rollout"}


def test_a_replica_whose_ranks_wrote_nothing_stands_for_itself():
    """Standalone by its own word, or with no worker of the trainer to share with: one device."""
    alone = resource("llm_server-0", verl__replica__mode="standalone")
    assert lanes(devices.find_devices([alone, resource("actor-0", rank=0)], {})) == {
        "actor-0": "train",
        "llm_server-0": "rollout",
    }
    assert lanes(devices.find_devices([resource("llm_server-0")], {})) == {"llm_server-0": "rollout"}


def test_reward_models_have_gpus_of_another_use():
    """The engine of a reward model is no replica of the rollout; on a shared GPU the rollout counts."""
    own = [resource("rollout-reward-0-0", rank=0, **gpus("1")), resource("llm_server-reward-0", **gpus("1"))]
    shared = [resource("actor-0", rank=0, **gpus("0")), resource("llm_server-0", **gpus("0"))]
    found = devices.find_devices([*own, *shared, resource("llm_server-reward-1", **gpus("0"))], {})
    assert lanes(found) == {"node/0": "hybrid", "node/1": "reward"}
    assert found.replicas == 1


def test_other_processes_are_no_devices():
    """The trainer, agent loops and rewards use none; a GPU that a process of unknown use reserved is counted and not explained."""
    processes = [resource("trainer-0"), resource("agent_loop-0"), resource("reward-0"), resource("task-7", **gpus("5"))]
    assert lanes(devices.find_devices(processes, {})) == {"node/5": "other"}


@pytest.mark.parametrize(
    ("ranks", "manifest", "said"),
    [
        (0, {}, None),
        (0, {"verl.gpus": "2"}, "no process reports"),
        (1, {"verl.gpus": "2", "verl.nodes": "2"}, "1 of the trainer's 4"),
        (2, {"verl.gpus": 2, "verl.nodes": 1}, None),
        (2, {"verl.gpus": "1", "verl.nodes": "1"}, "every rank counts as one"),
        (1, {"verl.gpus": "many"}, None),
    ],
)
def test_what_is_missing_is_said(ranks, manifest, said):
    """GPUs that should be there and wrote nothing are no part of the account, and that is said."""
    found = devices.find_devices([resource(f"actor-{rank}", rank=rank) for rank in range(ranks)], manifest)
    assert len(found.problems) == (said is not None)
    assert said is None or said in found.problems[0]


@pytest.mark.parametrize(
    ("ids", "metrics", "device", "has_gpu"),
    [
        ((), (), "", False),
        ((), ("process.cpu.time", "verl.gpu.time", "hw.network.io"), "", False),
        ((), ("hw.gpu.utilization",), "cuda", True),
        (("0",), (), "", True),
        (("0",), ("hw.gpu.utilization",), "cpu", False),
    ],
)
def test_a_run_has_gpus_if_a_process_or_a_driver_names_one(ids, metrics, device, has_gpu):
    """Neither a rank nor the account of its time makes a GPU, nor what Ray reserves for a training on the CPU."""
    processes = [resource("actor-0", rank=0, **(gpus(*ids) if ids else {}))]
    assert devices.has_gpu(processes, metrics, {"verl.trainer.device": device}) == has_gpu


@pytest.mark.parametrize("name", ["node-" + "9" * 5000, "node-²", "node-٣", ""])
def test_any_name_of_a_node_can_be_sorted(name):
    """Digits without an end, and digits that are none to `int`, are text."""
    assert len(sorted([name, "node-2/10", "node-2/9"], key=devices.natural)) == 3
    assert sorted(["node-2/10", "node-2/9"], key=devices.natural) == ["node-2/9", "node-2/10"]


def test_an_own_loop_has_the_gpus_that_it_reports_as_a_metric():
    """It trains and generates on them itself; beside LLM servers it only trains. A process with ids of Ray keeps these."""
    series = [
        ("verl.gpu.owner", (("hw.id", "GPU-a"), ("hw.name", "1"), ("instance", "process-7"))),
        ("verl.gpu.owner", (("hw.id", "GPU-b"), ("instance", "process-8"))),
        ("verl.gpu.owner", (("hw.id", "GPU-c"), ("hw.name", "3"), ("instance", "actor-0"))),
        ("hw.power", (("hw.id", "GPU-a"), ("instance", "process-7"))),
    ]
    owners = devices.find_owners(series)
    loops = [resource("process-7"), resource("process-8"), resource("process-9")]
    found = devices.find_devices(loops, {}, owners)
    assert lanes(found) == {"node/1": "hybrid", "node/GPU-b": "hybrid"}
    assert used(found, "process-7") == ["node/1"]
    assert found.own == {"process-7", "process-8"}
    assert (
        lanes(devices.find_devices([*loops, resource("llm_server-0", verl__gpu__ids=("5",))], {}, owners))["node/1"]
        == "train"
    )
    ranked = devices.find_devices([resource("actor-0", rank=0, **gpus("0"))], {}, owners)
    assert list(lanes(ranked)) == ["node/0"]
    assert not ranked.own
