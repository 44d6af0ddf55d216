# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run overview: is it learning, is it healthy, how fast is it, and what is it waiting for now?"""

from __future__ import annotations

from typing import Final

from dashboards.boards import phases
from dashboards.parts import links, panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.panels import Panel
from dashboards.parts.queries import grouped, last, mean_and, part, plain, query, row

STATES: Final = {
    "1": ("running", "blue"),
    "2": ("finished", "green"),
    "3": ("failed", "red"),
    "4": ("gone while running", "orange"),
}
_INFO: Final = 'last_over_time(verl_run_info{verl_project=~"$project", verl_experiment=~"$experiment"}[range])'


def _state(of: str) -> str:
    """Return the state of runs, 4 where a run was last seen running and is not seen any more."""
    before = f"max by (verl_run_id) (last_over_time(verl_run_state{of}[range]))"
    return f"max by (verl_run_id) (verl_run_state{of}) or ({before} == 1) * 4 or {before}"


def state() -> Panel:
    """Is the run running, finished, failed, or gone?"""
    text = (
        "What the trainer said last. 'Gone while running' means that its metrics stopped without a word: killed, or not scraped. "
        "It does not say that training makes progress: see the age of the last step."
    )
    return panels.number("State", text, "none", last(_state("{run}")), names=STATES)


def step() -> Panel:
    """Which step was logged last?"""
    text = "Number of the step whose values were logged last. After a resumption it goes on from the checkpoint."
    return panels.number("Step", text, "none", grouped("max", "verl_run_id", "verl_training_step{run}"))


def age() -> Panel:
    """How long ago did the last step end?"""
    text = (
        "Time since the last step ended, of runs that have not ended. Compare it with the time of a step: a long validation, a "
        "checkpoint and the start-up are no stall. Nothing is shown for runs that have ended."
    )
    running = "verl_training_last_step_timestamp_seconds{run} unless on (verl_run_id) verl_run_state{run} > 1"
    return panels.number("Last step ended", text, "s", last(f"max by (verl_run_id) (time() - ({running}))"), decimals=0)


def pace() -> Panel:
    """How many steps an hour?"""
    text = "Steps that ended in the window, for an hour. Validation and checkpoints count as time."
    rate = "sum by (verl_run_id) (rate(verl_training_steps_total{run}[window])) * 3600"
    return panels.number("Steps per hour", text, "short", query(rate), decimals=1)


def reward_now() -> Panel:
    """What is the mean reward now?"""
    text = "Mean reward of the last step, after a KL penalty if there is one. One step says little: see the curve."
    return panels.number("Reward now", text, "short", query("verl_average_reward{run}"), decimals=3)


def alerts_now() -> Panel:
    """How many alerts fire?"""
    text = "Alerts that fire for these runs, or for no run at all (a Collector). 0 is shown, too, where no rules are loaded."
    fire = 'count(ALERTS{verl_run_id=~"$run|", alertstate="firing"}) or vector(0)'
    return panels.number("Alerts now", text, "none", last(fire, "firing"), steps=[(None, "green"), (1, "red")])


def waiting() -> Panel:
    """What is the trainer doing now?"""
    text = (
        "Phases that were open when they were looked at, every few seconds. Shorter phases may be missing between two looks; an open "
        "phase is not a busy GPU. Phases can lie in one another."
    )
    return phases.opened("What it is waiting for", text)


def reward() -> Panel:
    """Does the reward rise, and how far are samples apart?"""
    text = (
        "Scores that each step trained on: mean, 10th and 90th percentile. A rising reward does not prove a better model: compare "
        "it with validation, KL and the length of responses."
    )
    names = {f"verl_reward_score_{each}": each for each in ("mean", "p10", "p90")}
    asked = plain(names, "verl_run_id, verl_data_source")
    link = links.to_board("training", "Training of this run")
    return panels.lines("Reward", text, "short", *asked, width=12, links=[link])


def spread() -> Panel:
    """Do the samples of a step differ at all?"""
    text = (
        "Standard deviation of the scores of a step. Near 0 there is nothing to learn from: all samples of a group are alike. "
        "More than half of the mean is often noise or too small a batch."
    )
    asked = query("verl_reward_score_stddev{run}", "{{verl_run_id}} {{verl_data_source}}")
    return panels.lines("Spread of the reward", text, "short", asked, width=6, low=0)


def progress() -> Panel:
    """How many steps since it was best?"""
    text = (
        "Steps since the smoothed reward, score or validation was highest. It is counted in steps, so that it means the same for steps "
        "of seconds and of hours."
    )
    asked = query("verl_training_steps_since_best{run}", "{{verl_run_id}} {{verl_metric}}")
    return panels.lines("Steps since the best", text, "none", asked, width=6, low=0)


def divergence() -> Panel:
    """How far does the policy move?"""
    text = (
        "Two different things: KL to the reference model (over the whole training) and policy KL (old to new policy, within a step; it may "
        "be negative, it is an estimate). Bounds of one do not fit the other."
    )
    names = {"verl_actor_kl_loss": "to the reference", "verl_actor_ppo_kl": "policy"}
    return panels.lines("KL", text, "short", *plain(names))


def entropy() -> Panel:
    """Does the policy still explore?"""
    text = (
        "Entropy per token, in nats. A fast fall to 0 is a collapse; which value is healthy depends on model and task."
    )
    return panels.lines("Entropy", text, "short", query("verl_actor_entropy{run}"), low=0)


def losses() -> Panel:
    """Are the losses sane?"""
    text = "Policy loss and, with a critic, value loss. A policy loss need not fall: it says little about quality. NaN is a gap."
    names = {"verl_actor_pg_loss": "policy", "verl_critic_vf_loss": "value"}
    return panels.lines("Losses", text, "short", *plain(names))


def step_time() -> Panel:
    """Where does the time of a step go?"""
    text = (
        "Seconds of a step in each phase, over the window. Phases that lie in one another count twice, and what no phase covers is missing: "
        "the board Step anatomy has both."
    )
    return phases.per_step(text)


def tokens() -> Panel:
    """How many tokens a second?"""
    text = (
        "Tokens of trajectories that ended. A long trajectory counts when it ends: curves jump where few end at a time."
    )
    rate = "sum by (verl_run_id, verl_token_type) (rate(verl_rollout_tokens_total{run}[window]))"
    return panels.lines("Tokens per second", text, "short", query(rate, "{{verl_run_id}} {{verl_token_type}}"), low=0)


def throughput() -> Panel:
    """How many tokens a second does a GPU train?"""
    text = (
        "Tokens of a step (prompt and response) for each second and GPU, as verl logs it. It mixes rollout and update."
    )
    return panels.lines("Tokens per second and GPU", text, "short", query("verl_perf_throughput{run}"), low=0)


def step_duration() -> Panel:
    """How long is a step?"""
    text = "Mean and 95th percentile in the window. The percentile is an estimate between two bounds of the histogram."
    asked = mean_and("verl_step_duration_seconds", 0.95)
    link = links.to_board("steps", "Anatomy of the steps of this run")
    return panels.lines("Duration of a step", text, "s", *asked, low=0, links=[link])


def gpu_time() -> Panel:
    """What are the GPUs used and lost for?"""
    text = (
        "GPU seconds of the run, as far as the trainer can know them while it runs. 'Productive' means that work was there, not that the "
        "kernels were fast. `verl-otel explain` counts it exactly, from the traces."
    )
    spent = "sum by (verl_gpu_state, verl_gpu_cause) (rate(verl_gpu_time_seconds_total{run}[window]))"
    whole = "sum (rate(verl_gpu_time_seconds_total{run}[window]))"
    asked = query(part(spent, whole, on=""), "{{verl_gpu_state}}: {{verl_gpu_cause}}")
    return panels.stacked("GPU time by use and loss", text, "percentunit", asked, high=1)


def firing() -> Panel:
    """Which alerts fired when?"""
    text = "Alerts of these runs, and those of no run (a Collector), from Prometheus itself. It is empty where no rules are loaded."
    asked = query(
        'max by (alertname, severity) (ALERTS{verl_run_id=~"$run|", alertstate="firing"})',
        "{{alertname}} ({{severity}})",
    )
    return panels.lanes("Alerts", text, asked, names={"1": ("firing", "red")}, height=6)


def runs() -> Panel:
    """Which runs are there?"""
    text = (
        "Every run of the chosen projects and experiments that was seen in the time range, chosen or not. "
        "A click on a run chooses it. Values are the last ones that were seen."
    )
    chosen = f"and on (verl_run_id) {_INFO}"

    def seen(metric: str) -> str:
        return f"max by (verl_run_id) (last_over_time({metric}[range])) {chosen}"

    labels = "verl_run_id, verl_project, verl_experiment, verl_algorithm, verl_trainer_mode, verl_model, verl_engine, verl_gpus"
    of_all = f"({_state('')}) {chosen}"
    asked = [
        row(f"max by ({labels}) ({_INFO})"),
        row(of_all),
        row(seen("verl_training_step")),
        row(seen("verl_average_reward")),
        row(f"({seen('verl_training_last_step_timestamp_seconds')}) * 1000"),
    ]
    columns = {
        "verl_run_id": "Run",
        "Value #B": "State",
        "Value #C": "Step",
        "Value #D": "Reward",
        "Value #E": "Last step ended",
        "verl_project": "Project",
        "verl_experiment": "Experiment",
        "verl_algorithm": "Algorithm",
        "verl_trainer_mode": "Mode",
        "verl_model": "Model",
        "verl_engine": "Engine",
        "verl_gpus": "GPUs",
    }
    return panels.rows(
        "Runs",
        text,
        *asked,
        columns=columns,
        units={"Last step ended": "dateTimeAsIso", "Reward": "short"},
        names={"State": STATES},
        cell_links={"Run": [links.from_row("overview", "Choose this run")]},
        sort="Last step ended",
    )


BOARD: Final = Board(
    name="overview",
    title="verl / Run overview",
    text="Is it learning, is it healthy, how fast is it, and what is it waiting for now?",
    rows=(
        Row("Now", (state, step, age, pace, reward_now, alerts_now, waiting)),
        Row("Is it learning?", (reward, spread, progress, divergence, entropy, losses)),
        Row("How fast is it?", (step_time, step_duration, tokens, throughput)),
        Row("What are the GPUs doing?", (gpu_time,)),
        Row("Runs and alerts", (runs, firing)),
    ),
    variables=(
        variables.data_source,
        *variables.RUNS,
        variables.window,
    ),
)
