# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a replay buffer removes is linked with the reason, by verl's own buffer where verl is installed."""

from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

import verl_otel
from verl_otel.integrations.verl import lineage, trainer
from verl_otel.integrations.verl.lineage import TAG
from verl_otel.integrations.verl.sample_origin import Origin

GROUPS = {"old": 1, "same": 2, "bad": 3, "left": 4, "good": 5}
"""Groups of two samples each, and the number in their ids."""
REASONS = ({"old"}, {"same", "old"}, {"bad"}, Counter())


def make_partition():
    """The tags of a partition as verl keeps them, with ours in them."""
    return {
        f"{uid}_{index}": {TAG: Origin(0xA000 + number, 0xB000 + index, 1.0, None, "").encode(), "seq_len": 7}
        for uid, number in GROUPS.items()
        for index in range(2)
    }


class Buffer:
    """A replay buffer with the methods of verl 0.9, as far as they matter."""

    def __init__(self):
        self.partitions = defaultdict(dict, train=make_partition(), val=make_partition())

    def sample(self, global_steps, partition_id, batch_size):
        raise AssertionError("not called")

    def _clear_groups(self, partition_id, uids):
        for key in [key for key in self.partitions[partition_id] if key.split("_")[0] in uids]:
            del self.partitions[partition_id][key]

    def _evict_terminal_groups(self, global_steps, partition_id, eviction_reasons):
        self._clear_groups(partition_id, set.union(*map(set, eviction_reasons[:3])))
        return "evicted"


def make_real_buffer(monkeypatch):
    """Verl's own replay buffer, without a TransferQueue behind it."""
    module = pytest.importorskip("verl.trainer.ppo.v1.replay_buffer", reason="verl is not installed here")
    monkeypatch.setattr(module.tq, "kv_clear", lambda **_: None)
    buffer = object.__new__(module.ReplayBuffer)
    buffer.partitions = defaultdict(dict, train=make_partition(), val=make_partition())
    for name in ("pending_keys", "running_keys", "finished_keys", "failure_keys"):
        setattr(buffer, name, defaultdict(set))
    buffer.prompt_global_steps = defaultdict(dict, train={"old": 1})
    buffer._dapo_classification_cache = defaultdict(dict)
    return buffer


@pytest.fixture(params=["like verl's", pytest.param("verl's own", marks=pytest.mark.verl)])
def buffer(request, monkeypatch):
    """A buffer that is watched."""
    buffer = Buffer() if request.param == "like verl's" else make_real_buffer(monkeypatch)
    lineage.watch(buffer)
    return buffer


def links(recorded):
    """Return the reasons and the numbers of the groups of every link of an evicted sample."""
    return sorted(
        (link.attributes["reason"], link.trace_id - 0xA000)
        for span in recorded.spans
        if span.name == "verl.consume"
        for link in span.links
        if link.attributes["verl.link.type"] == "evicted"
    )


def test_removed_samples_are_linked_with_the_reason(recorded, buffer):
    """Stale groups, those without a signal, failed ones and those that are left over; what is trained on is not linked here."""
    with verl_otel.step(4):
        result = buffer._evict_terminal_groups(4, "train", REASONS)
        buffer._clear_groups("train", {"left"})
    assert links(recorded) == [
        ("failed", 3), ("failed", 3), ("no_signal", 2), ("no_signal", 2), ("stale", 1), ("stale", 1), ("surplus", 4), ("surplus", 4),
    ]  # fmt: skip
    assert sorted(buffer.partitions["train"]) == ["good_0", "good_1"]
    assert result == "evicted" or result[0] == {"old", "same", "bad"}
    assert all(TAG in tag for tag in buffer.partitions["train"].values())


def test_nothing_else_is_linked(recorded, buffer):
    """Not what validation clears, what has no tag, or what a call without reasons would remove; and a second watch adds no link."""
    lineage.watch(buffer)
    for tag in buffer.partitions["train"].values():
        del tag[TAG]
    with verl_otel.step(4):
        buffer._clear_groups("val", {"good"})
        buffer._clear_groups("train", {"good", "unknown"})
        buffer._evict_terminal_groups(4, "train", (set(), set(), set(), Counter()))
    assert links(recorded) == []
    assert "good_0" not in buffer.partitions["train"]


def test_damage_costs_the_links_only(recorded, buffer, swallow):
    """What verl clears is cleared, and its exceptions pass."""
    buffer.partitions["train"]["old_0"][TAG] = 7
    buffer._clear_groups("train", {"old"})
    assert "old_0" not in buffer.partitions["train"]
    buffer.partitions = None
    with pytest.raises(TypeError):
        buffer._clear_groups("train", {"old"})


def test_the_buffer_of_a_trainer_is_watched(recorded, monkeypatch):
    """From the moment that the trainer is known."""
    monkeypatch.setattr(trainer.Trainer, "instance", None)
    made = Buffer()
    trainer._register(SimpleNamespace(replay_buffer=made))
    with verl_otel.step(4):
        made._clear_groups("train", {"left"})
    assert links(recorded) == [("surplus", 4)] * 2


def test_a_buffer_of_another_version_is_left_alone():
    """It has no such methods."""

    class Older:
        def sample(self, global_steps, partition_id, batch_size):
            return None

    buffer = Older()
    lineage.watch(buffer)
    assert not hasattr(buffer, "_clear_groups")
