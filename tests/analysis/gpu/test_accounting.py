# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU time: idle and busy for the reason that an engineer would name."""

import pytest

from tests.builders import trees
from verl_otel.analysis.gpu import devices
from verl_otel.analysis.gpu.accounting import GpuAccount
from verl_otel.analysis.model import Straggler

activity, call, node, phase = trees.activity, trees.call, trees.node, trees.phase
roll, step, worker = trees.roll, trees.step, trees.worker
account = trees.account


def test_a_synchronous_step_is_told_from_its_first_to_its_last_tick():
    """Two GPUs share everything; the first is free early, then both wait for a tool, a reward, the poll, the sleep of the engines."""
    short = roll(2, 6, activity("llm", "agent_loop-0", 2, 6), activity("server", "llm_server-0", 2, 6))
    long = roll(
        2,
        20,
        activity("server", "llm_server-1", 2, 10),
        activity("tool", "agent_loop-0", 10, 17),
        activity("reward", "reward-0", 17, 20),
    )
    ranks = [worker(f"actor_rollout_ref-{rank}", "update_actor", 26, 30 + 2 * rank) for rank in range(2)]
    sync = [worker(f"actor_rollout_ref-{rank}", "update_weights", 34, 36) for rank in range(2)]
    phases = [
        phase("submit", 0, 1),
        phase("gen", 1, 24, node("trainer-0", "verl.consume", 22, 22)),
        phase("update_actor", 25, 33, call("update_actor", 25, 33, *ranks)),
        phase(
            "update_weights",
            33,
            37,
            node("trainer-0", "verl.weight_sync", 33, 37, call("update_weights", 33, 37, *sync)),
        ),
    ]
    found = account("sync", 2, 40, [step(0, 38, *phases)], [short, long])
    both = {"tool_wait": 7, "reward_wait": 3, "none_open": 2, "switch": 2, "weight_sync": 2, "sync_wait": 2}
    assert found == {
        "actor_rollout_ref-0": {**both, "rollout": 4, "tail_wait": 4, "train": 4, "train_wait": 2, "data": 6},
        "actor_rollout_ref-1": {**both, "rollout": 8, "train": 6, "data": 6},
    }


SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("delays", "waits"),
    [
        ({1: 4.0}, (4, 0)),
        ({0: 1.0, 1: 4.0}, (3, 0)),  # in a collective all wait for the last one
        ({1: 60.0}, (10, 0)),  # what was estimated is never more than what the method took
    ],
)
def test_a_rank_that_waits_for_a_late_one_does_not_train(delays, waits):
    """Within its method, which the collective makes as long as that of the late rank."""
    ranks = [worker(f"actor_rollout_ref-{rank}", "update_actor", 0, 10 * SECOND) for rank in range(2)]
    root = step(0, 10 * SECOND, phase("update_actor", 0, 10 * SECOND, call("update_actor", 0, 10 * SECOND, *ranks)))
    late = [
        Straggler("update_actor", rank, f"actor_rollout_ref-{rank}", delay, "data") for rank, delay in delays.items()
    ]
    found = account("sync", 0, 10 * SECOND, [root], late=late)
    for rank, waited in enumerate(waits):
        spent = found[f"actor_rollout_ref-{rank}"]
        assert (spent.get("train", 0), spent.get("train_wait", 0)) == ((10 - waited) * SECOND, waited * SECOND)


def test_a_late_process_of_an_own_loop_holds_no_collective():
    """The devices of the others are idle meanwhile, as their methods have ended."""
    root = step(
        0,
        10 * SECOND,
        phase("update_actor", 0, 10 * SECOND, worker("actor_rollout_ref-0", "update_actor", 0, 10 * SECOND)),
    )
    late = [Straggler("update_actor", 1, "actor_rollout_ref-1", 4.0, "took")]
    assert account("sync", 0, 10 * SECOND, [root], late=late)["actor_rollout_ref-0"] == {"train": 10 * SECOND}


def test_gpus_apart_wait_for_each_other():
    """While one trains the other waits for it, unless it generates; while it generates the trainer waits."""
    first = roll(0, 10, activity("server", "llm_server-0", 0, 10))
    ahead = roll(12, 14, activity("server", "llm_server-0", 12, 14))
    trains = phase("update_actor", 10, 20, call("update_actor", 10, 20, worker("actor-0", "update_actor", 10, 20)))
    found = account("one_step", 0, 20, [step(0, 20, phase("gen", 0, 10), trains)], [first, ahead])
    assert found["actor-0"] == {"rollout_wait": 10, "train": 10}
    assert found["actor-1"] == {"rollout_wait": 10, "train_wait": 10}
    assert found["rollout-0-0"] == found["rollout-0-1"] == {"rollout": 12, "train_wait": 8}


def test_a_wait_for_samples_while_no_trajectory_is_open_is_a_cause_of_its_own():
    """On both sides; with a trajectory open, in its own code, the trainer waits for rollouts. So it does where none is recorded, or one may be lost."""
    first = roll(0, 10, activity("server", "llm_server-0", 0, 6))
    waits = step(0, 20, phase("gen", 0, 20))
    found = account("one_step", 0, 20, [waits], [first])
    assert found["actor-0"] == {"rollout_wait": 10, "none_open": 10}
    assert found["rollout-0-0"] == {"rollout": 6, "rollout_wait": 4, "none_open": 10}
    trains = phase("update_actor", 0, 1, call("update_actor", 0, 1, worker("actor-0", "update_actor", 0, 1)))
    unrecorded = account("one_step", 0, 20, [step(0, 20, trains, phase("gen", 1, 20))])
    assert unrecorded["actor-0"] == {"train": 1, "rollout_wait": 19}
    assert unrecorded["rollout-0-0"] == {"train_wait": 1, "rollout_wait": 19}
    lossy = account("one_step", 0, 20, [waits], [first], is_lossy=True)
    assert lossy["actor-0"] == {"rollout_wait": 20}


def test_before_the_first_work_everything_is_start_up():
    """What no worker does until the first trajectory begins is start-up, and nothing after it."""
    first = roll(30, 40, activity("server", "llm_server-0", 30, 40))
    load = call("init_model", 0, 9, worker("actor_rollout_ref-0", "init_model", 2, 9))
    found = account("sync", 0, 50, [load, step(20, 50, phase("gen", 20, 50))], [first])
    assert found["actor_rollout_ref-0"] == {"start_up": 30, "rollout": 10, "none_open": 10}


def test_validation_and_checkpoint_are_told_apart_from_training():
    """Requests of a validation are its own, whoever does not serve it waits for it; one rank saves, the other waits."""
    asked = roll(0, 4, activity("server", "llm_server-0", 0, 4), validate=True)
    saves = phase(
        "save_checkpoint",
        8,
        12,
        call("save_checkpoint", 8, 12, worker("actor_rollout_ref-0", "save_checkpoint", 8, 12)),
    )
    roots = [node("trainer-0", "verl.validation", 0, 6), step(6, 12, saves)]
    found = account("sync", 0, 12, roots, [asked])
    assert found["actor_rollout_ref-0"] == {"validation": 4, "validation_wait": 2, "data": 2, "checkpoint": 4}
    assert found["actor_rollout_ref-1"] == {"validation_wait": 6, "data": 2, "checkpoint_wait": 4}


def test_a_validation_beside_the_trainer_holds_none_of_its_gpus():
    """A rollouter that validates while the trainer trains makes its own GPUs wait, not the trainer's."""
    trains = phase("adv", 0, 10)
    begun = roll(0, 0)
    found = account("one_step", 0, 10, [step(0, 10, trains), node("agent_loop-0", "verl.validation", 0, 10)], [begun])
    assert found["actor-0"] == {"data": 10}
    assert found["rollout-0-0"] == {"validation_wait": 10}


def test_a_weight_sync_holds_requests_back():
    """A request that is open at a server while weights arrive is not at work."""
    held = roll(0, 10, activity("server", "llm_server-0", 0, 10))
    sync = node("trainer-0", "verl.weight_sync", 4, 8, worker("rollout-0-0", "update_weights", 5, 7))
    found = account("one_step", 0, 10, [step(0, 10, phase("update_weights", 4, 8, sync))], [held])
    assert found["rollout-0-0"] == {"rollout": 6, "sync_wait": 2, "weight_sync": 2}


@pytest.mark.parametrize(("kept", "expected"), [(1, "unknown"), (2, "rollout")])
def test_trajectories_of_which_only_the_root_was_kept(kept, expected):
    """As many as there are replicas keep all of these busy; of fewer nobody knows which."""
    found = account("sync", 0, 10, [step(0, 10, phase("gen", 0, 10))], [roll(0, 10, whole=False)] * kept)
    assert found["actor_rollout_ref-0"] == {expected: 10}


def test_calls_without_a_server_side_keep_nobody_idle_for_sure():
    """Where servers wrote no files, a call may run anywhere; between calls it is known that nobody generates."""
    silent = roll(0, 10, activity("llm", "agent_loop-0", 0, 4), activity("tool", "agent_loop-0", 4, 10))
    found = account("sync", 0, 10, [step(0, 10, phase("gen", 0, 10))], [silent])
    assert found["actor_rollout_ref-0"] == {"unknown": 4, "tool_wait": 6}


def test_nothing_known_is_nothing_accounted():
    """Without a device there is no account, and without spans all of it is start-up."""
    assert GpuAccount(devices.find_devices([], {})).add_window(0, 10, [], []) == ()
    assert account("sync", 0, 10) == {f"actor_rollout_ref-{rank}": {"start_up": 10} for rank in range(2)}


def test_calls_whose_workers_wrote_nothing_are_unknown():
    """Where the files of the workers are missing, nobody knows what their GPUs did while they were called."""
    known = call("update_actor", 10, 20, worker("actor_rollout_ref-0", "update_actor", 11, 19))
    lost = call("update_actor", 30, 40)
    found = account("sync", 10, 50, [step(10, 50, phase("update_actor", 10, 45, known, lost))], [])
    assert found["actor_rollout_ref-0"] == {"start_up": 1, "train": 8, "data": 21, "unknown": 10}
