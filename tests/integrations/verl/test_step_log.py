# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Records of the run log from the scalars of verl."""

import pytest

import verl_otel
from verl_otel.integrations.verl import step_log, training
from verl_otel.integrations.verl.sample_origin import Origin
from verl_otel.recording import run_log
from verl_otel.recording.step_statistics import count_groups
from verl_otel.semconv import logs

DATA = {
    "training/epoch": 1,
    "timing_s/step": 12.5,
    "timing_s/gen": 9.0,
    "timing_s/agent_loop/num_preempted/max": 0,
    "critic/rewards/mean": 0.25,
    "actor/pg_loss": -0.1,
    "actor/ppo_kl": 0.02,
    "actor/grad_norm": 1.5,
    "val-core/math/acc/mean@1": 0.5,
    "note": "x",
}


@pytest.fixture
def level(recorded):
    """Begin a run at a level."""

    def begin(severity):
        run_log.configure(severity, 0)
        training.begin()

    yield begin
    run_log._reset()


def test_a_step_is_a_record_of_each_scope(level):
    """Training, rollout, PPO, timers and validation have a record each, with the names of verl's scalars in plain words."""
    level(logs.INFO)
    step_log.note_trajectories([Origin(1, 1, 1.0, 0.0, "math"), Origin(1, 2, 1.0, 1.0, "math")], {})
    verl_otel.log("rollout", tps=3)
    step_log.write(DATA, 4)
    by_scope = {record.scope: record for record in run_log.take()}
    assert set(by_scope) == {"training", "rollout", "ppo", "timing", "validation"}
    assert {record.step for record in by_scope.values()} == {4}
    assert by_scope["training"].fields["epoch"] == 1
    assert by_scope["training"].fields["elapsed_seconds"] >= 0
    counts = (1, *[0] * 14, 1)
    assert by_scope["rollout"].fields == {
        "samples": 2, "score_std": 0.5, "score_low": 0.0, "score_high": 1.0, "score_counts": counts, "reward_mean": 0.25, "tps": 3,
        "wait_seconds": 9.0,
    }  # fmt: skip
    assert by_scope["ppo"].fields == {"policy_loss": -0.1, "kl_div": 0.02, "grad_norm": 1.5}
    assert by_scope["timing"].fields == {"gen": 9.0}
    assert by_scope["validation"].fields == {"val-core/math/acc/mean@1": 0.5}


def test_what_the_reward_function_returned_beside_the_score_is_a_record_of_the_step(level):
    """Mean, minimum and maximum of the samples that have it; nothing of a step without such fields, and nothing of the step before."""
    level(logs.INFO)
    fields = [{"tps": 10.0, "acc": 1.0}, {"tps": 20.0, "acc": float("nan")}, {}]
    origins = [
        Origin(1, number, 1.0, 0.0, "math", facts={f"reward_field:{name}": value for name, value in each.items()})
        for number, each in enumerate(fields, 1)
    ]
    step_log.note_trajectories([Origin.decode(origin.encode()) for origin in origins], {})
    assert step_log.write({"val-core/math/acc/mean@1": 0.5}, 4) == {}, "a validation between two steps is about others"
    assert step_log.write(DATA, 4) == {
        "tps": {"mean": 15.0, "min": 10.0, "max": 20.0}, "acc": {"mean": 1.0, "min": 1.0, "max": 1.0},
    }  # fmt: skip
    (record,) = (record for record in run_log.take() if record.scope == "reward")
    assert (record.step, record.fields) == (
        4, {"tps_mean": 15.0, "tps_min": 10.0, "tps_max": 20.0, "acc_mean": 1.0, "acc_min": 1.0, "acc_max": 1.0},
    )  # fmt: skip
    step_log.note_trajectories([Origin(1, 1, 1.0, 0.0, "math")], {})
    step_log.write(DATA, 5)
    assert not any(record.scope == "reward" for record in run_log.take())


def test_the_timer_of_a_phase_with_a_slash_in_its_name_is_there(level):
    """Branch neo of verl has such phases; their timers are no scalars, since they are spans."""
    level(logs.INFO)
    with verl_otel.step(4), verl_otel.phase("dataplane/prefetch_adv"):
        pass
    step_log.write({"timing_s/dataplane/prefetch_adv": 0.5, "timing_s/agent_loop/num_preempted/max": 0}, 4)
    (timing,) = [record for record in run_log.take() if record.scope == "timing"]
    assert timing.fields == {"dataplane/prefetch_adv": 0.5}


def test_all_scalars_at_debug(level):
    """At the level DEBUG all numbers of the step are there, by verl's own keys."""
    level(logs.DEBUG)
    step_log.write(DATA, 4)
    (record,) = [record for record in run_log.take() if record.scope == "scalars"]
    assert record.level == logs.DEBUG
    assert record.fields == {key: value for key, value in DATA.items() if key != "note"}


@pytest.mark.parametrize("severity", [logs.INFO, logs.WARNING])
def test_fields_of_users_are_records_at_every_level(level, severity):
    """Also where those of steps are left out, and after the last step."""
    level(severity)
    verl_otel.log("alert", level="ERROR", first=1)
    step_log.write(DATA, 4)
    verl_otel.log("alert", level="ERROR", last=2)
    step_log.end_run()
    alerts = [record.fields for record in run_log.take() if record.scope == "alert"]
    assert alerts == [{"first": 1}, {"last": 2}]


def test_a_validation_before_the_training(level):
    """Step 0 has only scores of a validation, and one record."""
    level(logs.INFO)
    step_log.write({"val-core/math/acc/mean@1": 0.5}, 0)
    assert [(record.scope, record.step) for record in run_log.take()] == [("validation", 0)]


@pytest.mark.parametrize(("scores", "counts"), [([0.5, 0.5], (2,)), ([-1.0, float("inf")], None)])
def test_scores_without_a_range(level, scores, counts):
    """Equal scores are one bin; infinite ones have no bins."""
    level(logs.INFO)
    step_log.note_trajectories([Origin(1, number, 1.0, score, "math") for number, score in enumerate(scores)], {})
    step_log.write(DATA, 4)
    (record,) = [record for record in run_log.take() if record.scope == "rollout"]
    assert record.fields.get("score_counts") == counts


def test_groups_without_a_signal_and_empty_responses_are_counted(level):
    """A group needs two scores; a response of one token has no text."""
    level(logs.INFO)
    samples = [("a", 1.0, 9), ("a", 1.0, 1), ("b", 0.0, 5), ("b", 1.0, 5), ("c", 0.0, 0), ("", 1.0, 7)]
    origins = [
        Origin(1, n, 1.0, score, "math", uid, facts={"response": length})
        for n, (uid, score, length) in enumerate(samples)
    ]
    step_log.note_trajectories(origins, count_groups(origins))
    step_log.write({"response_length/mean": 4.0, "response/aborted_ratio": 0.5}, 3)
    (record,) = [record for record in run_log.take() if record.scope == "rollout"]
    counts = {name: value for name, value in record.fields.items() if name.startswith("groups")}
    assert counts == {
        "groups": 2, "groups_without_signal": 1, "groups_solved": 1, "groups_failed": 0, "groups_truncated": 0,
    }  # fmt: skip
    assert record.fields["empty_responses"] == 2
    assert record.fields["aborted_ratio"] == 0.5


@pytest.mark.parametrize(("acc", "outcome"), [((1.0, 1.0), "solved"), ((0.0, 0.0), "failed"), ((), "solved")])
def test_a_score_for_the_format_alone_solves_nothing(acc, outcome):
    """Equal scores above 0 are right answers, unless the reward function returned that they are none."""
    facts = [{"reward_field:acc": value} for value in acc] or [{}, {}]
    counts = count_groups([Origin(1, n, 1.0, 0.1, "math", "a", facts=fact) for n, fact in enumerate(facts)])
    assert {name: count for name, count in counts.items() if count} == {outcome: 1}


@pytest.mark.parametrize("prefix", ["", "actor/"])
def test_the_gap_to_the_engine_is_a_field_in_both_modes(level, prefix):
    """In bypass mode verl's actor computes it, and its keys have another prefix."""
    level(logs.INFO)
    step_log.write({f"{prefix}rollout_corr/kl": 0.01, "actor/pg_loss": 0.1}, 3)
    (record,) = [record for record in run_log.take() if record.scope == "ppo"]
    assert record.fields["rollout_kl"] == 0.01


def test_scores_wait_for_the_record_of_the_rollout(level):
    """Fully asynchronous training logs other scalars between the samples and the rewards of a step: the scores are not lost there."""
    level(logs.INFO)
    step_log.note_trajectories([Origin(1, 1, 1.0, 0.0, "math"), Origin(1, 2, 1.0, 1.0, "math")], {})
    step_log.write({"fully_async/rollouter/idle_ratio": 0.5}, 4)
    step_log.write(DATA, 4)
    (rollout,) = [record for record in run_log.take() if record.scope == "rollout"]
    assert rollout.fields["samples"] == 2
