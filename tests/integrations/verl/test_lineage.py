# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Lineage: tags lead from a batch to its trajectories, and are gone before verl looks at the batch."""

import types
from collections import Counter, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import verl_otel
from verl_otel.integrations.verl import lineage, trainer
from verl_otel.integrations.verl.lineage import TAG
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.model import REMOTE
from verl_otel.recording.decorate import surround
from verl_otel.testing import capture

SCORES = st.floats(-1e6, 1e6, allow_nan=False)
ORIGINS = st.builds(
    Origin,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.floats(0, 1e7).map(lambda value: round(value, 6)),
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.text(max_size=20),
    st.text(max_size=20),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.dictionaries(st.text(max_size=10), st.floats(allow_nan=False), max_size=4),
)


def tags(*origins, **more):
    """One tag for each origin, with something of verl's own in it."""
    return [{TAG: origin.encode(), "seq_len": 7, **more} for origin in origins]


def origin(number, *, seconds=1.0, score=None, source="", version=None, uid="", facts=()):
    return Origin(0xA000 + number, 0xB000 + number, seconds, score, source, uid, version, dict(facts))


def consume(batch, *, step, training):
    """Take a batch out of a replay buffer."""
    buffer = types.SimpleNamespace(sample=lambda *_: types.SimpleNamespace(tags=batch))
    lineage.watch(buffer)
    buffer.sample(step, "train" if training else "val")


def consumed(recorded):
    return [span for span in recorded.spans if span.name == "verl.consume"]


@pytest.mark.full
@given(ORIGINS)
def test_decoding_inverts_encoding(made):
    """A tag says again what was put into it, whatever the data source is called."""
    assert Origin.decode(made.encode()) == made


@pytest.mark.full
@given(st.text(max_size=60))
def test_a_tag_that_is_not_ours_is_a_value_error(text):
    """Any other text is decoded to an origin or refused with ValueError."""
    try:
        made = Origin.decode(text)
    except ValueError:
        return
    assert isinstance(made.trace_id, int)


def test_tags_are_taken_out_while_telemetry_is_off():
    """A batch that was tagged elsewhere is cleaned although this process records nothing."""
    batch = tags(origin(1))
    consume(batch, step=1, training=True)
    assert batch == [{"seq_len": 7}]


def test_each_trajectory_is_linked_once(recorded):
    """Padding rows and further outputs of one trajectory are one link, to its root in another process."""
    origins = [origin(number) for number in (1, 2, 1, 3, 2, 1)]
    consume(tags(*origins), step=1, training=True)
    (span,) = consumed(recorded)
    assert [(link.trace_id, link.span_id) for link in span.links] == [
        (0xA001, 0xB001),
        (0xA002, 0xB002),
        (0xA003, 0xB003),
    ]
    assert all(link.attributes == {"verl.link.type": "consumed"} and link.flags == REMOTE for link in span.links)
    assert span.attributes["verl.samples"] == 3


@pytest.mark.parametrize(("count", "parts"), [(1, [1]), (128, [128]), (129, [128, 1]), (300, [128, 128, 44])])
def test_a_span_has_at_most_128_links(recorded, count, parts):
    """More trajectories than OpenTelemetry keeps links are spread over several spans, none is lost."""
    consume(tags(*(origin(number) for number in range(count))), step=1, training=True)
    found = consumed(recorded)
    assert [len(span.links) for span in found] == parts
    assert len({link.trace_id for span in found for link in span.links}) == count


def test_the_step_names_its_slowest_trajectory(recorded):
    """The step's attributes say which of its trajectories took longest, over all batches."""
    with verl_otel.step(1):
        consume(tags(origin(1, seconds=5.0), origin(2, seconds=7.0, uid="u7")), step=1, training=True)
        consume(tags(origin(3, seconds=6.0)), step=1, training=True)
    step = recorded.span("verl.step")
    assert step.attributes["verl.slowest.trace_id"] == f"{0xA002:032x}"
    assert (step.attributes["verl.slowest.duration"], step.attributes["verl.slowest.uid"]) == (7.0, "u7")
    assert {span.parent_id for span in consumed(recorded)} == {step.span_id}


def test_staleness_is_the_distance_of_versions(recorded):
    """Each trajectory's model version is compared with the step's, once; never below 0."""
    batch = tags(origin(1, version=3), origin(1, version=3), origin(2, version=9), origin(4))
    consume(batch, step=6, training=True)
    (point,) = [point for point in recorded.points if point.instrument.name == "verl.rollout.staleness"]
    assert (point.value.samples, point.value.total, point.value.minimum) == (2, 2.0, 0.0)


def began(number, at, version):
    """The origin of a trajectory that began at a Unix time."""
    return origin(number, version=version)._replace(facts={"start": at})


BEHIND = {
    "synchronous: each batch begins after the sync": (((10.0, 4),), ((11.0, 4), (12.0, 4)), 0),
    "ahead: it began before the sync and ended with its weights": (((10.0, 4), (20.0, 5)), ((15.0, 5),), 0),
    "ahead, and trained on much later": (((10.0, 4), (20.0, 5), (30.0, 6)), ((15.0, 4), (25.0, 5)), 0),
    "an engine missed the last sync": (((10.0, 4), (20.0, 5)), ((25.0, 5), (25.0, 4)), 1),
    "an engine missed all but the first": (((10.0, 4), (20.0, 5), (30.0, 6)), ((35.0, 4),), 2),
    "a sync without a number": (((10.0, 4), (20.0, None)), ((25.0, 4),), 0),
    "an engine without a number": (((10.0, 4),), ((11.0, None),), None),
    "older than every sync": (((10.0, 4),), ((9.0, 1),), None),
}


@pytest.mark.parametrize("case", BEHIND)
def test_weights_are_compared_with_the_sync_before_the_trajectory(recorded, monkeypatch, case):
    """Whatever version the step trains."""
    syncs, trajectories, expected = BEHIND[case]
    monkeypatch.setattr(lineage, "_syncs", deque(maxlen=lineage.MAX_SYNCS))
    for ended, version in syncs:
        lineage.note_sync(version, ended)
    batch = tags(*(began(number, at, version) for number, (at, version) in enumerate(trajectories)))
    consume(batch, step=9, training=True)
    found = [point.value for point in recorded.points if point.instrument.name == "verl.rollout.weights.behind"]
    assert found == ([] if expected is None else [expected])


SOURCES = st.dictionaries(st.sampled_from(["", "a", "b|c"]), st.lists(SCORES, min_size=1, max_size=40), min_size=1)


@pytest.mark.full
@given(SOURCES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_scores_are_summed_up_as_numpy_does(by_source):
    """Mean, deviation, extremes and percentiles of each data source equal numpy's."""
    origins = [
        origin(1000 * place + number, score=score, source=source)
        for place, (source, scores) in enumerate(by_source.items())
        for number, score in enumerate(scores)
    ]
    with capture() as recorded:
        consume(tags(*origins), step=1, training=True)
        for source, scores in by_source.items():
            labels = (("verl.data.source", source),) if source else ()
            found = {
                point.instrument.name.rpartition(".")[2]: point.value
                for point in recorded.points
                if point.labels == labels
            }
            expected = {
                "mean": np.mean(scores),
                "stddev": np.std(scores),
                "min": np.min(scores),
                "max": np.max(scores),
                **{f"p{share}": np.percentile(scores, share) for share in (10, 50, 90)},
            }
            for name, value in expected.items():
                assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-6), name


def test_scores_that_are_missing_are_left_out(recorded):
    """Trajectories without a score, or with NaN, do not spoil the scores of the others."""
    scores = [1.0, None, float("nan"), 3.0]
    consume(tags(*(origin(number, score=score) for number, score in enumerate(scores))), step=1, training=True)
    assert recorded.value("verl.reward.score.mean") == 2.0
    assert len(consumed(recorded)[0].links) == 4


def test_an_infinite_score_spoils_its_own_source_only(recorded):
    """A score of minus infinity keeps no other data source from its sums."""
    batch = tags(
        origin(1, score=float("-inf"), source="a"), origin(2, score=1.0, source="a"), origin(3, score=2.0, source="b")
    )
    consume(batch, step=1, training=True)
    assert recorded.value("verl.reward.score.mean", verl_data_source="b") == 2.0
    assert recorded.value("verl.reward.score.mean", verl_data_source="a") == float("-inf")


def test_groups_are_counted_by_what_their_scores_tell(recorded):
    """Those whose scores differ, all are right, all are wrong, or all wrong ones were cut; a prompt with one sample is no group."""
    scores = {"a": (1.0, 0.0), "b": (1.0, 1.0), "c": (0.0, 0.0), "d": (-1.0, -1.0, None), "e": (1.0,), "f": (0.0, 0.5)}
    rows = [(uid, score, {}) for uid, group in scores.items() for score in group]
    rows += [
        ("cut", 0.0, {"cut": 1.0}),
        ("cut", 0.0, {"cut": 1.0}),
        ("one cut", 0.0, {"cut": 1.0}),
        ("one cut", 0.0, {}),
    ]
    consume(
        tags(*(origin(index, uid=uid, score=score, facts=facts) for index, (uid, score, facts) in enumerate(rows))),
        step=1,
        training=True,
    )
    counts = {
        outcome: recorded.value("verl.reward.groups", verl_outcome=outcome)
        for outcome in ("signal", "solved", "failed", "truncated")
    }
    assert counts == {"signal": 2, "solved": 1, "failed": 3, "truncated": 1}
    consume(tags(origin(100, uid="g", score=1.0)), step=2, training=True)
    assert recorded.value("verl.reward.groups", verl_outcome="signal") == 2, "a step without groups says nothing"


@pytest.mark.parametrize("damaged", ["another version", "", 7])
def test_a_damaged_tag_costs_itself_only(recorded, damaged):
    """A tag that cannot be read, of another version for example, is taken out, and the others are linked."""
    batch = tags(origin(1), origin(2))
    batch.insert(0, {TAG: damaged, "seq_len": 7})
    consume(batch, step=1, training=True)
    assert not [tag for tag in batch if TAG in tag]
    assert len(consumed(recorded)[0].links) == 2


def buffer_of(result):
    """A replay buffer as verl has it, whose batches are made up."""

    class ReplayBuffer:
        def sample(self, global_steps, partition_id, batch_size):
            """Verl's words."""
            return result

    return ReplayBuffer()


@pytest.mark.parametrize(("partition", "links"), [("train", 2), ("val", 0)])
def test_a_watched_buffer_hands_out_clean_batches(recorded, partition, links):
    """What a buffer hands out is the very same object, without our tags, linked where it is for training."""
    batch = types.SimpleNamespace(tags=[*tags(origin(1, score=1.0), origin(2)), {"seq_len": 7}])
    buffer = buffer_of((batch, {"metric": 1}))
    lineage.watch(buffer)
    lineage.watch(buffer)
    result = buffer.sample(global_steps=3, partition_id=partition, batch_size=2)
    assert result == (batch, {"metric": 1})
    assert batch.tags == [{"seq_len": 7}] * 3
    assert sum(len(span.links) for span in recorded.spans) == links
    scores = [point for point in recorded.points if point.instrument.name == "verl.reward.score.mean"]
    assert bool(scores) is bool(links)
    assert buffer.sample.__doc__ == type(buffer).sample.__doc__


@pytest.mark.parametrize("result", [None, (None, {}), types.SimpleNamespace(), types.SimpleNamespace(tags=None)])
def test_a_buffer_that_hands_out_something_else(recorded, swallow, result):
    """Whatever a sampler returns arrives unchanged."""
    buffer = buffer_of(result)
    lineage.watch(buffer)
    assert buffer.sample(3, "train", 1) is result


def test_samples_are_tagged_with_their_trajectory(recorded, drive):
    """What an agent loop puts carries its trajectory's ids, length, score and source; outside of one nothing is added."""
    seen = []

    async def async_kv_batch_put(*, keys, tags):
        seen.append(tags)
        return "put"

    put = surround("lineage", lineage._tag)(async_kv_batch_put)

    async def work():
        assert await put(keys=["a"], tags=[{"x": 1}]) == "put"
        with verl_otel.trajectory("u", 0) as span:
            span.set_attribute("verl.reward.score", 0.5)
            span.set_attribute("verl.data.source", "math")
            assert await put(keys=["a", "b"], tags=[{"x": 1}, {"x": 2}]) == "put"

    drive(work())
    assert seen[0] == [{"x": 1}]
    one, other = (Origin.decode(tag.pop(TAG)) for tag in seen[1])
    assert seen[1] == [{"x": 1}, {"x": 2}]
    assert one == other
    root = recorded.span("verl.trajectory")
    assert (one.trace_id, one.span_id, one.score, one.source) == (root.trace_id, root.span_id, 0.5, "math")
    assert 0 < one.seconds < 10


# -- What a replay buffer removes is linked with the reason, by verl's own buffer where verl is installed --


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


def read_evicted(recorded):
    """Return the reasons and the numbers of the groups of every link of an evicted sample."""
    return sorted(
        (link.attributes["reason"], link.trace_id - 0xA000)
        for span in recorded.spans
        if span.name == "verl.consume"
        for link in span.links
        if link.attributes["verl.link.type"] == "evicted"
    )


def test_removed_samples_are_linked_and_counted_with_the_reason(recorded, buffer):
    """Stale groups, those without a signal, failed ones and those that are left over; what is trained on is not linked here."""
    with verl_otel.step(4):
        result = buffer._evict_terminal_groups(4, "train", REASONS)
        buffer._clear_groups("train", {"left"})
    assert read_evicted(recorded) == [
        ("failed", 3), ("failed", 3), ("no_signal", 2), ("no_signal", 2), ("stale", 1), ("stale", 1), ("surplus", 4), ("surplus", 4),
    ]  # fmt: skip
    for reason in ("stale", "no_signal", "failed", "surplus"):
        assert recorded.value("verl.rollout.dropped", reason=reason) == 2
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
    assert read_evicted(recorded) == []
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
    assert read_evicted(recorded) == [("surplus", 4)] * 2


def test_a_buffer_of_another_version_is_left_alone():
    """It has no such methods."""

    class Older:
        def sample(self, global_steps, partition_id, batch_size):
            return None

    buffer = Older()
    lineage.watch(buffer)
    assert not hasattr(buffer, "_clear_groups")
