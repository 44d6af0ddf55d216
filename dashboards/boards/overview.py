# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Run overview: is it learning, is it healthy, how fast is it, and what is it waiting for now?"""

from __future__ import annotations

from typing import Final

from dashboards.boards import indicators, phases
from dashboards.parts import links, panels, variables
from dashboards.parts.board import Board, Row
from dashboards.parts.names import label, legend, metric, scalar
from dashboards.parts.panels import Panel
from dashboards.parts.queries import TRAINED, grouped, last, mean_and, part, plain, query, row
from verl_otel.semconv.run_state import RunState

_COLOURS: Final = {
    RunState.RUNNING: "blue",
    RunState.FINISHED: "green",
    RunState.FAILED: "red",
    RunState.STOPPED: "purple",
    RunState.INTERRUPTED: "yellow",
}
STATES: Final = dict(
    sorted(
        {
            "4": ("gone while running", "orange"),
            **{str(state.value): (state.word, colour) for state, colour in _COLOURS.items()},
        }.items()
    )
)
_INFO: Final = (
    f'last_over_time({metric.RUN_INFO}{{{label.PROJECT}=~"$project", {label.EXPERIMENT}=~"$experiment"}}[range])'
)


def _state(of: str) -> str:
    """Return the state of runs, 4 where a run was last seen running and is not seen any more."""
    before = f"max by ({label.RUN_ID}) (last_over_time({metric.RUN_STATE}{of}[range]))"
    return f"max by ({label.RUN_ID}) ({metric.RUN_STATE}{of}) or ({before} == 1) * 4 or {before}"


def state() -> Panel:
    """Is the run running, finished, failed, or gone?"""
    text = (
        "The last state that the trainer reported. 'Gone while running' means that its metrics stopped without an end of the run: killed, or not scraped. "
        "It does not show whether the training makes progress: see the age of the last step."
    )
    return panels.stat("State", text, "none", last(_state("{run}")), names=STATES)


def step() -> Panel:
    """Which step was logged last?"""
    text = "Number of the step whose values were logged last. After a resumption it goes on from the checkpoint."
    return panels.stat("Step", text, "none", grouped("max", label.RUN_ID, f"{metric.TRAINING_STEP}{{run}}"))


def age() -> Panel:
    """How long ago did the last step end?"""
    text = (
        "Time since the last step ended, of runs that have not ended. Compare it with the time of a step: a long validation, a "
        "checkpoint and the start-up are no stall. Nothing is shown for runs that have ended."
    )
    running = f"{metric.TRAINING_LAST_STEP_TIMESTAMP}{{run}} unless on ({label.RUN_ID}) {metric.RUN_STATE}{{run}} > 1"
    return panels.stat(
        "Last step ended", text, "s", last(f"max by ({label.RUN_ID}) (time() - ({running}))"), decimals=0
    )


def pace() -> Panel:
    """How many steps an hour?"""
    text = "Steps that ended in the window, for an hour. Validation and checkpoints count as time."
    rate = f"sum by ({label.RUN_ID}) (rate({metric.TRAINING_STEPS}{{run}}[window])) * 3600"
    return panels.stat("Steps per hour", text, "short", query(rate), decimals=1)


def reward_now() -> Panel:
    """What is the mean reward now?"""
    text = "Mean reward of the last step, after a KL penalty if there is one. One step says little: see the curve."
    target = grouped("avg", label.RUN_ID, f"{metric.AVERAGE_REWARD}{{run}}")
    return panels.stat("Reward now", text, "short", target, decimals=3)


def alerts_now() -> Panel:
    """How many alerts fire?"""
    text = "Alerts that fire for these runs, or for no run at all (a Collector). 0 is shown, too, where no rules are loaded."
    fire = f'count(ALERTS{{{label.RUN_ID}=~"$run|", alertstate="firing"}}) or vector(0)'
    return panels.stat("Alerts now", text, "none", last(fire, "firing"), steps=[(None, "green"), (1, "red")])


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
        "it with validation, KL and the length of responses. Where several processes of an own loop report scores, it is their mean."
    )
    names = {metric.REWARD_SCORE_MEAN: "mean", metric.REWARD_SCORE_P10: "p10", metric.REWARD_SCORE_P90: "p90"}
    labels = f"{label.RUN_ID}, {label.DATA_SOURCE}"
    targets = [grouped("avg", labels, f"{name}{{run}}", suffix) for name, suffix in names.items()]
    link = links.to_board("training", "Training of this run")
    return panels.timeseries("Reward", text, "short", *targets, width=12, links=[link])


def spread() -> Panel:
    """Do the samples of a step differ at all?"""
    text = (
        "Standard deviation of the scores of a step. Near 0 there is nothing to learn from: all samples of a group are alike. "
        "More than half of the mean is often noise or too small a batch."
    )
    target = grouped("avg", f"{label.RUN_ID}, {label.DATA_SOURCE}", f"{metric.REWARD_SCORE_STDDEV}{{run}}")
    return panels.timeseries("Spread of the reward", text, "short", target, width=6, low=0)


def progress() -> Panel:
    """How many steps since it was best?"""
    text = (
        "Steps since the smoothed reward, score or validation was highest. It is counted in steps, so that it means the same for steps "
        "of seconds and of hours."
    )
    target = query(f"{metric.TRAINING_STEPS_SINCE_BEST}{{run}}", f"{legend.RUN_ID} {legend.METRIC}")
    return panels.timeseries("Steps since the best", text, "none", target, width=6, low=0)


def divergence() -> Panel:
    """How far does the policy move?"""
    text = (
        "Two different things: KL to the reference model (over the whole training) and policy KL (old to new policy, within a step; it may "
        "be negative, it is an estimate). Bounds of one do not fit the other."
    )
    names = {
        scalar("actor/kl_loss"): "to the reference",
        scalar("actor/reward_kl_penalty"): "to the reference, in the reward",
        scalar("actor/ppo_kl"): "policy",
    }
    return panels.timeseries("KL", text, "short", *plain(names))


def entropy() -> Panel:
    """Does the policy still explore?"""
    text = (
        "Entropy per token, in nats. A fast fall to 0 is a collapse; which value is healthy depends on model and task."
    )
    return panels.timeseries("Entropy", text, "short", query(f"{scalar('actor/entropy')}{{run}}"), low=0)


def losses() -> Panel:
    """Are the losses sane?"""
    text = "Policy loss and, with a critic, value loss. A policy loss need not fall: it says little about quality. NaN is a gap."
    names = {scalar("actor/pg_loss"): "policy", scalar("critic/vf_loss"): "value"}
    return panels.timeseries("Losses", text, "short", *plain(names))


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
        "Tokens of trajectories that ended, for a second of time, of the whole run and without those of validations: of the prompts, of what the "
        "model wrote (generated), and of what tools and environments answered (observation). A long trajectory counts when it ends: curves jump "
        "where few end at a time."
    )
    rate = f"sum by ({label.RUN_ID}, {label.TOKEN_TYPE}) (rate({metric.ROLLOUT_TOKENS}{TRAINED}[window]))"
    return panels.timeseries(
        "Tokens per second", text, "short", query(rate, f"{legend.RUN_ID} {legend.TOKEN_TYPE}"), low=0
    )


def samples() -> Panel:
    """How many samples a second, and a step?"""
    text = (
        "Trajectories that ended, without those of validations: for a second, and for each step of the window. In asynchronous modes the second is "
        "what was generated meanwhile, and not what the step trained on."
    )
    ended = f"{metric.ROLLOUT_TRAJECTORY_DURATION}_count{TRAINED}"
    rate = query(f"sum by ({label.RUN_ID}) (rate({ended}[window]))", f"{legend.RUN_ID} a second")
    steps = f"sum by ({label.RUN_ID}) (increase({metric.TRAINING_STEPS}{{run}}[window])) > 0"
    each = f"sum by ({label.RUN_ID}) (increase({ended}[window])) / on ({label.RUN_ID}) ({steps})"
    return panels.timeseries("Samples", text, "short", rate, query(each, f"{legend.RUN_ID} a step"), low=0)


def throughput() -> Panel:
    """How many tokens a second does a GPU train?"""
    text = (
        "Tokens that the step trained on (prompt and response, with the answers of tools) for each second of the step and each GPU, as verl logs "
        "it. The one-step-off trainer counts its own GPUs only, not those of the rollouts. It mixes rollout and update."
    )
    return panels.timeseries(
        "Tokens per second and GPU", text, "short", query(f"{scalar('perf/throughput')}{{run}}"), low=0
    )


def step_duration() -> Panel:
    """How long is a step?"""
    text = "Mean and 95th percentile in the window. The percentile is an estimate between two bounds of the histogram."
    targets = mean_and(metric.STEP_DURATION, 0.95)
    link = links.to_board("steps", "Anatomy of the steps of this run")
    return panels.timeseries("Duration of a step", text, "s", *targets, low=0, links=[link])


def groups() -> Panel:
    """How far are the rollouts?"""
    text = (
        "Groups of samples of one prompt in the replay buffer of verl 0.9, by their state, and how many the trainer takes for a step. Read while "
        "the trainer waits: without new values it does not. Many finished ones with an idle trainer were filtered or wait for a sync; none "
        "pending and few running want more prompts at a time."
    )
    states = f"max by ({label.RUN_ID}, {label.GROUP_STATE}) ({metric.ROLLOUT_GROUPS}{{run}})"
    wanted = f"max by ({label.RUN_ID}) ({metric.ROLLOUT_GROUPS_WANTED}{{run}})"
    targets = [query(states, f"{legend.RUN_ID} {legend.GROUP_STATE}"), query(wanted, f"{legend.RUN_ID} wanted")]
    return panels.timeseries("Groups in the replay buffer", text, "short", *targets, low=0)


def gpu_time() -> Panel:
    """What are the GPUs used and lost for?"""
    text = (
        "GPU seconds of the run, as far as the trainer can know them while it runs. 'Productive' means that work was there, not that the "
        "kernels were fast. `verl-otel explain` counts it exactly, from the traces."
    )
    spent = f"sum by ({label.GPU_STATE}, {label.GPU_CAUSE}) (rate({metric.GPU_TIME}{{run}}[window]))"
    whole = f"sum (rate({metric.GPU_TIME}{{run}}[window]))"
    target = query(part(spent, whole, on=""), f"{legend.GPU_STATE}: {legend.GPU_CAUSE}")
    return panels.stacked("GPU time by use and loss", text, "percentunit", target, high=1)


def firing() -> Panel:
    """Which alerts fired when?"""
    text = "Alerts of these runs, and those of no run (a Collector), from Prometheus itself. It is empty where no rules are loaded."
    target = query(
        f'max by (alertname, severity) (ALERTS{{{label.RUN_ID}=~"$run|", alertstate="firing"}})',
        "{{alertname}} ({{severity}})",
    )
    return panels.state_timeline("Alerts", text, target, names={"1": ("firing", "red")}, height=6)


def runs() -> Panel:
    """Which runs are there?"""
    text = (
        "Every run of the chosen projects and experiments that was seen in the time range, chosen or not. "
        "A click on a run chooses it. Values are the last ones that were seen."
    )
    chosen = f"and on ({label.RUN_ID}) {_INFO}"

    def seen(name: str, aggregation: str = "max") -> str:
        return f"{aggregation} by ({label.RUN_ID}) (last_over_time({name}[range])) {chosen}"

    labels = f"{label.RUN_ID}, {label.PROJECT}, {label.EXPERIMENT}, {label.ALGORITHM}, {label.TRAINER_MODE}, {label.MODEL}, {label.ENGINE}, {label.GPUS_TOTAL}"
    of_all = f"({_state('')}) {chosen}"
    targets = [
        row(f"max by ({labels}) ({_INFO})"),
        row(of_all),
        row(seen(metric.TRAINING_STEP)),
        row(seen(metric.AVERAGE_REWARD, "avg")),
        row(f"({seen(metric.TRAINING_LAST_STEP_TIMESTAMP)}) * 1000"),
    ]
    columns = {
        label.RUN_ID: "Run",
        "Value #B": "State",
        "Value #C": "Step",
        "Value #D": "Reward",
        "Value #E": "Last step ended",
        label.PROJECT: "Project",
        label.EXPERIMENT: "Experiment",
        label.ALGORITHM: "Algorithm",
        label.TRAINER_MODE: "Mode",
        label.MODEL: "Model",
        label.ENGINE: "Engine",
        label.GPUS_TOTAL: "GPUs",
    }
    return panels.table(
        "Runs",
        text,
        *targets,
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
        Row("Five core indicators, with their healthy bands", indicators.PANELS),
        Row("Is it learning?", (reward, spread, progress, divergence, entropy, losses)),
        Row("How fast is it?", (step_time, step_duration, groups, tokens, samples, throughput)),
        Row("What are the GPUs doing?", (gpu_time,)),
        Row("Runs and alerts", (runs, firing)),
    ),
    variables=(
        variables.data_source,
        *variables.RUNS,
        variables.window,
    ),
)
