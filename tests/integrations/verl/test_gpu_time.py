# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU time while a training runs: the trainer's timers and calls and its samples become ``verl.gpu.time``, which adds up."""

import contextlib
import sys
import types

import pytest

import verl_otel
from tests.builders.hooks import marked_timer
from verl_otel.integrations.verl import batch_lineage, gpu_time, lineage, tracking, trainer, training, workers
from verl_otel.integrations.verl.sample_origin import Origin, find_origin
from verl_otel.integrations.verl.trainer import Trainer
from verl_otel.recording import collection
from verl_otel.recording.callsite import CallSite
from verl_otel.recording.decorate import surround
from verl_otel.recording.span import Span, clock
from verl_otel.semconv import attributes as attr


def config(**rollout):
    """A configuration of verl: four GPUs for the trainer, replicas of two."""
    own = {"tensor_model_parallel_size": 2, "data_parallel_size": 1, **rollout}
    return {
        "trainer": {"nnodes": 1, "n_gpus_per_node": 4},
        "actor_rollout_ref": {"hybrid_engine": True, "rollout": own},
    }


class Time:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch, recorded):
    """The clock of spans, and an account that begins anew."""
    made = Time()
    for module in [module for name, module in sys.modules.items() if name.startswith("verl_otel.")]:
        if getattr(module, "clock", None) is clock:
            monkeypatch.setattr(module, "clock", made)
    monkeypatch.setattr(gpu_time, "wall_offset_ns", lambda: 0)
    monkeypatch.setattr(training.current, "state", tracking.RunState.RUNNING)
    gpu_time.begin_run()
    yield made
    gpu_time.begin_run()
    Trainer.instance = None


class Stock(types.SimpleNamespace):
    """A trainer of verl."""

    __module__ = "verl.trainer.ppo"


def train(mode="sync", **rollout):
    Trainer.instance = Stock(trainer_mode=mode, config=config(**rollout), global_steps=1)


def spend(time, key, seconds, method="", *, before=0):
    """A phase that takes so long, with a call for all of it but what comes ``before``."""
    with marked_timer(key, {}):
        time.now += before
        group = types.SimpleNamespace(world_size=4)
        call = (
            workers.open_call("worker call", (None,), {}, group, method, True) if method else contextlib.nullcontext()
        )
        with call:
            time.now += seconds - before


def origin(number, start, seconds, **facts):
    return Origin(number, number, seconds, None, "", facts={"start": start, "llm": seconds, **facts})


def seen():
    """Seconds by cause, as they are collected."""
    return {dict(labels)["verl.gpu.cause"]: seconds for labels, seconds in gpu_time.observe_gpu_time()}


def step(time, *origins):
    with marked_timer("step", {}):
        with marked_timer("gen", {}):
            time.now += 10
            lineage.consume(list(origins), step=1)
            time.now += 1
        spend(time, "adv", 2)
        spend(time, "update_actor", 7, "update_actor")


def test_a_step_becomes_gpu_seconds(time):
    """Four GPUs, two replicas: one trajectory ends early, one late, then the engines sleep, then all four train."""
    train()
    step(time, origin(1, 1000.0, 10.0), origin(2, 1000.0, 4.0))
    assert seen() == pytest.approx({"rollout": 28, "tail_wait": 12, "switch": 4, "data": 8, "train": 28})
    assert gpu_time.observe_tail() == [((), pytest.approx(6 / 20))]


def test_a_phase_of_training_is_training_while_one_of_its_calls_runs(time):
    """What it spends before its call is the trainer's own work."""
    train()
    with marked_timer("step", {}):
        spend(time, "update_actor", 10, "update_actor", before=3)
        spend(time, "ref", 5)  # no call of it was seen: all of it counts
    assert seen() == pytest.approx({"data": 12, "train": 48})


@pytest.mark.parametrize(("key", "method"), [("values", "infer_batch"), ("update_critic", "train_mini_batch")])
def test_a_call_that_returns_a_future_is_training_until_it_is_read(time, key, method):
    """As verl calls its critic: the call takes no time, and the trainer reads the future in the phase of the call. What comes before is not training."""
    train()
    group = types.SimpleNamespace(world_size=4)
    with marked_timer("step", {}):
        with marked_timer(key, {}):
            time.now += 2
            with workers.open_call("worker call", (None,), {}, group, method, False):
                pass
            time.now += 8
        spend(time, "adv", 3)
        spend(time, "update_actor", 7, "update_actor")
    assert seen() == pytest.approx({"data": 4 * (2 + 3), "train": 4 * (8 + 7)})


def test_a_trajectory_that_was_not_measured_called_when_it_did_nothing_else(time):
    """An agent loop of the user's may say nothing of its LLM calls, but our tools and rewards are measured."""
    train()
    silent = Origin(1, 1, 10.0, None, "", facts={"start": 1000.0, "tool": 10.0})
    with marked_timer("step", {}), marked_timer("gen", {}):
        time.now += 10
        lineage.consume([silent], step=1)
    assert seen() == pytest.approx({"tool_wait": 40})


@pytest.mark.parametrize("partition", ["val", "train"])
def test_samples_of_a_validation_are_its_own(time, partition):
    """What the replay buffer hands out for a validation occupies GPUs for that and is trained on by no step."""
    train()
    tags = [{lineage.TAG: origin(number, 1000.0, 8.0).encode()} for number in range(2)]
    buffer = types.SimpleNamespace(sample=lambda *_: types.SimpleNamespace(tags=tags))
    lineage.watch(buffer)
    with marked_timer("step", {}), marked_timer("testing" if partition == "val" else "gen", {}):
        time.now += 8
        buffer.sample(1, partition)
    assert seen() == pytest.approx({"validation" if partition == "val" else "rollout": 32})


def test_samples_of_a_validation_without_transfer_queue_are_its_own(time):
    """The same for trainers that are given a batch."""
    train()
    sent = {f"{batch_lineage.PREFIX}{number}": origin(number, 1000.0, 8.0).encode() for number in range(2)}
    output = types.SimpleNamespace(meta_info=sent)
    with marked_timer("step", {}), marked_timer("testing", {}), Span(CallSite("validation", hook=True)):
        time.now += 8
        surround("lineage", batch_lineage._read_batch)(lambda *_: None)(None, [], output)
    assert seen() == pytest.approx({"validation": 32})
    assert gpu_time.observe_tail() == []


def test_a_sample_says_when_its_trajectory_began(recorded):
    """In Unix time, so that the trainer on another host can place it; it is the start of the trajectory's span."""
    with verl_otel.trajectory("u", 0):
        made = find_origin()
    (span,) = (each for each in recorded.spans if each.name == "verl.trajectory")
    assert made.facts["start"] == pytest.approx(span.start_ns / 1e9, abs=1e-5)
    assert Origin.decode(made.encode()).facts == made.facts


def test_a_sample_says_whether_its_response_was_cut(recorded):
    with verl_otel.trajectory("u", 0) as trajectory:
        before = find_origin()
        trajectory.set_attribute(attr.GEN_AI_FINISH_REASONS, ("length",))
        after = find_origin()
    assert "cut" not in before.facts
    assert Origin.decode(after.encode()).facts["cut"] == 1


def test_what_lies_between_two_steps_counts_too(time):
    """Validation after a step and what the trainer does before the next one belong to the account of the next one."""
    train()
    step(time, origin(1, 1000.0, 10.0), origin(2, 1000.0, 10.0))
    before = seen()
    spend(time, "testing", 5)
    time.now += 3
    step(time, origin(3, 1028.0, 10.0), origin(4, 1028.0, 10.0))
    added = {cause: seconds - before.get(cause, 0) for cause, seconds in seen().items()}
    assert sum(added.values()) == pytest.approx(28 * 4)
    assert added["validation_wait"] == pytest.approx(20)
    assert added["data"] == pytest.approx((3 + 2) * 4)


@pytest.mark.parametrize("mode", ["separate_async", "FullyAsyncTrainer", "colocate_async"])
def test_where_trajectories_outlive_a_step_it_waits_for_the_next(time, mode):
    """What a later step trains on was generated now: a step is accounted for when the next has ended, the last at the end."""
    train(mode, nnodes=1, n_gpus_per_node=2)
    step(time, origin(1, 1000.0, 10.0))
    assert seen() == {}
    step(time, origin(2, 1012.0, 10.0))
    first = seen()
    assert sum(first.values()) == pytest.approx(20 * 6)
    assert first["rollout"] >= 10 * 2  # also the one that only the second step trained on
    tracking.end_run(failed=False)
    assert sum(seen().values()) == pytest.approx(40 * 6)


def test_another_training_begins_anew(time):
    """A second trainer in this process has an account of its own."""
    train()
    step(time, origin(1, 1000.0, 10.0))
    trainer._register(types.SimpleNamespace())
    assert seen() == {}
    assert gpu_time.observe_tail() == []


def test_samples_that_do_not_say_when_they_were_made_break_nothing(time):
    """Of an older agent loop's samples nothing is known: the time adds up all the same."""
    train()
    step(time, Origin(1, 1, 5.0, None, ""), Origin(2, 2, 0.0, None, "", facts={"start": 1000.0}))
    assert seen() == pytest.approx({"rollout_wait": 40, "switch": 4, "data": 8, "train": 28})


def test_a_trainer_without_configuration_breaks_nothing(time):
    """Nobody says how many GPUs there are: one is accounted for."""
    step(time, origin(1, 1000.0, 10.0))
    gpu_time.end_run()
    assert sum(seen().values()) == pytest.approx(20)


def test_it_is_collected_as_metrics(time, recorded):
    """A collection has both metrics after a step, cumulative and by state and cause."""
    train()
    step(time, origin(1, 1000.0, 10.0), origin(2, 1000.0, 4.0))
    points = {
        (point.instrument.name, point.labels): point.value
        for point in collection.collect_observed(collection.collect()).points
    }
    train_labels = (("verl.gpu.state", "productive"), ("verl.gpu.cause", "train"))
    assert points[("verl.gpu.time", train_labels)] == pytest.approx(28)
    assert points[("verl.rollout.tail.share", ())] == pytest.approx(0.3)


def waits():
    return {dict(labels)["verl.gpu.side"]: share for labels, share in gpu_time.observe_waits()}


def apart(mode="sync"):
    """A trainer with four GPUs, and two more that only generate."""
    rollout = {"nnodes": 1, "n_gpus_per_node": 2}
    found = {**config(), "actor_rollout_ref": {"hybrid_engine": False, "rollout": rollout}}
    Trainer.instance = Stock(trainer_mode=mode, config=found, global_steps=1)


def test_which_side_waits_for_the_other(time):
    """Four GPUs train and two generate: the trainer waits 10 s of 20 for samples, the others 8 s for the trainer."""
    apart()
    step(time, origin(1, 1000.0, 10.0), origin(2, 1000.0, 10.0))
    assert waits() == pytest.approx({"trainer": 0.5, "rollouts": 0.4, "both": 0})
    for _ in range(3):
        with marked_timer("step", {}), marked_timer("gen", {}):
            begin = time.now
            time.now += 90
            lineage.consume([origin(number, begin, 90.0) for number in range(16)], step=1)
    assert waits()["trainer"] > 0.9
    assert "; short are the rollouts: give them GPUs" in gpu_time.summarize_verdicts()["verdict"]


def test_neither_side_is_short_of_gpus_while_no_trajectory_is_open(time):
    """The trainer waits 36 s of 45 for samples and the rollouts have nothing to generate in 32 of these: both wait."""
    apart()
    with marked_timer("step", {}):
        with marked_timer("gen", {}):
            time.now += 36
            lineage.consume([origin(1, 1000.0, 4.0), origin(2, 1000.0, 4.0)], step=1)
        spend(time, "update_actor", 9, "update_actor")
    assert waits() == pytest.approx({"trainer": 4 / 45, "rollouts": 9 / 45, "both": 32 / 45})
    verdict = gpu_time.summarize_verdicts()["verdict"]
    assert "both 71%, with no trajectory open; short is the trainer" in verdict
    assert "more GPUs do not shorten the time in which both wait: submit more ahead" in verdict


def test_what_lies_before_the_first_trajectory_is_start_up(time):
    """As in `explain`: engines and agent loops start for 30 s of the first step, in which neither side waits for the other. Later pauses are waits."""
    apart()
    with marked_timer("step", {}):
        with marked_timer("gen", {}):
            time.now += 40
            lineage.consume([origin(1, 1030.0, 10.0), origin(2, 1030.0, 10.0)], step=1)
        spend(time, "update_actor", 10, "update_actor")
    assert seen() == pytest.approx({"start_up": 30 * 6, "rollout_wait": 10 * 4, "rollout": 10 * 2, "train": 10 * 4, "train_wait": 10 * 2})  # fmt: skip
    assert waits() == pytest.approx({"trainer": 0.5, "rollouts": 0.5, "both": 0})
    with marked_timer("step", {}), marked_timer("gen", {}):
        begin, time.now = time.now + 30, time.now + 40
        lineage.consume([origin(3, begin, 10.0), origin(4, begin, 10.0)], step=2)
    assert waits() == pytest.approx({"trainer": 0.25, "rollouts": 0, "both": 0.75})
    assert seen()["start_up"] == 30 * 6


def test_the_last_line_of_a_training_accounts_for_all_its_steps(time, recorded, monkeypatch):
    """Also for the step that is held back until the next one: here it is the only one."""
    apart("separate_async")
    with marked_timer("step", {}), marked_timer("gen", {}):
        time.now += 20
        lineage.consume([origin(1, 1000.0, 20.0), origin(2, 1000.0, 20.0)], step=1)
    lines = []
    monkeypatch.setattr(tracking, "flush", lambda _: gpu_time.observe_gpu_time())  # as the session does, under its lock
    monkeypatch.setattr(
        gpu_time, "current_session", lambda: types.SimpleNamespace(config=types.SimpleNamespace(run_id="r"))
    )
    monkeypatch.setattr(gpu_time._account.live_verdicts, "log_end", lambda *line: lines.append(line))
    tracking.end_run(failed=False)
    ((_, advice),) = lines
    assert "the trainer's GPUs waited for samples 100% of the time" in advice
    assert advice.endswith("short are the rollouts: give them GPUs of the trainer, or more replicas")


def test_shares_of_a_step_leave_out_what_lies_before_it(time):
    """A validation and a checkpoint before the step are in the account, and in none of its shares."""
    apart()
    step(time, origin(1, 1000.0, 10.0), origin(2, 1000.0, 4.0))
    alone, before = (gpu_time.observe_tail(), waits()), sum(seen().values())
    spend(time, "testing", 50)
    spend(time, "save_checkpoint", 30)
    begin = time.now
    step(time, origin(3, begin, 10.0), origin(4, begin, 4.0))
    assert gpu_time.observe_tail() == alone[0] == [((), pytest.approx(6 / 20))]
    assert waits() == pytest.approx(alone[1])
    assert sum(seen().values()) - before == pytest.approx((50 + 30 + 20) * 6)
    assert seen()["validation_wait"] == pytest.approx(50 * 6)


def test_start_up_counts_against_the_goodput(time, recorded, monkeypatch):
    """From the begin of telemetry in the process; a second training begins when the first one has ended."""
    monkeypatch.setattr(gpu_time, "current_session", lambda: types.SimpleNamespace(began=time.now - 60))
    gpu_time.begin_run()
    train()
    step(time, origin(1, 1000.0, 10.0))
    assert recorded.value("verl.goodput") == pytest.approx(20 / 80)
    time.now += 10
    gpu_time.begin_run()
    step(time, origin(2, 1030.0, 10.0))
    assert recorded.value("verl.goodput") == pytest.approx(20 / 30)


def test_sides_that_share_their_gpus_do_not_wait_for_each_other(time):
    """Nothing is collected, and the verdict does not speak of it."""
    train()
    step(time, origin(1, 1000.0, 10.0))
    assert waits() == {}
    assert (
        gpu_time.summarize_verdicts()["verdict"]
        == "too few steps to say what is usual: 0 of 1 can be compared, 4 are needed"
    )


def test_notes_of_a_process_that_ends_no_step_stay_bounded(time):
    """Calls of a process that never trains are not collected for ever."""
    for _ in range(gpu_time.MAX_NOTES + 10):
        gpu_time.note_call("generate", 0.0, 1.0)
        gpu_time.note_phase("gen", 0.0, 1.0)
    assert len(gpu_time._account.calls) == len(gpu_time._account.phases) == gpu_time.MAX_NOTES


def test_samples_of_a_process_that_ends_no_step_stay_bounded(time):
    """Batches of many samples are limited by their samples, and the end of a step makes room again."""
    batch = [origin(1, 1000.0, 10.0)] * (gpu_time.MAX_ROLLOUTS // 4)
    for _ in range(2):
        for _ in range(10):
            gpu_time.note_samples(batch, validate=False)
        assert sum(len(origins) for origins, _ in gpu_time._account.samples) == 4 * len(batch)
        gpu_time.end_step(0.0, 1.0, None, None, "sync")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (config(), (4, 0, True, 2)),
        (config(nnodes=2, n_gpus_per_node=8, pipeline_model_parallel_size=2), (4, 16, True, 4)),
        ({**config(), "trainer": {"nnodes": 3, "n_gpus_per_node": 2}}, (6, 0, True, 2)),
        ({"actor_rollout_ref": {"hybrid_engine": False}}, (1, 0, False, 1)),
        (None, (1, 0, True, 1)),
    ],
)
def test_how_many_gpus_there_are(given, expected):
    """From verl's configuration: the trainer's, those that only generate, whether the trainer's generate, and a replica's size."""
    assert tuple(gpu_time.count_gpus(given)) == expected
