# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Recording rules: the names of older guides, and what boards and alerts ask for again and again."""

from tests.dashboards.scenes import Scene
from tests.dashboards.trainings import MINUTE, RUN, TRAINER, WORKER, Training, watch

SAME = {
    # older name, ours, its own labels, our value, the older value
    "reward_mean": ("verl_reward_score_mean", ',verl_data_source="math"', 0.5, 0.5),
    "reward_std": ("verl_reward_score_stddev", ',verl_data_source="math"', 0.2, 0.2),
    "kl_divergence": ("verl_actor_kl_loss", "", 0.01, 0.01),
    "entropy": ("verl_actor_entropy", "", 0.7, 0.7),
    "critic_loss": ("verl_critic_vf_loss", "", 0.4, 0.4),
    "actor_loss": ("verl_actor_pg_loss", "", -0.1, -0.1),
    "rollout_latency_seconds_bucket": ("verl_rollout_trajectory_duration_seconds_bucket", ',le="60"', 9, 9),
    "rollout_latency_seconds_sum": ("verl_rollout_trajectory_duration_seconds_sum", "", 99, 99),
    "rollout_latency_seconds_count": ("verl_rollout_trajectory_duration_seconds_count", "", 9, 9),
    "gpu_utilization": ("hw_gpu_utilization_ratio", ',hw_id="GPU-1a2b"', 0.75, 75),
    "rollout_reward_mean": ("verl_average_reward", "", 0.5, 0.5),
    "rollout_response_length_mean": ("verl_response_length_mean", "", 300, 300),
    "ppo_kl_div": ("verl_actor_ppo_kl", "", 0.02, 0.02),
    "ppo_policy_loss": ("verl_actor_pg_loss", "", -0.1, -0.1),
    "ppo_value_loss": ("verl_critic_vf_loss", "", 0.4, 0.4),
    "ppo_entropy": ("verl_actor_entropy", "", 0.7, 0.7),
    "ppo_clip_ratio": ("verl_actor_pg_clipfrac", "", 0.1, 0.1),
    "ppo_grad_norm": ("verl_actor_grad_norm", "", 0.3, 0.3),
    "system_gpu_utilization": ("hw_gpu_utilization_ratio", ',hw_id="GPU-1a2b"', 0.75, 75),
    "system_memory_utilization": ("verl_gpu_memory_io_utilization_ratio", ',hw_id="GPU-1a2b"', 0.3, 30),
    "throughput": ("verl_perf_throughput", "", 1200, 1200),
    "memory_usage": ("verl_gpu_memory_used_bytes", ',device="cuda:0"', 1 << 30, 1 << 30),
}
"""Every one of them has a row, and every recording rule has a test: a test counts."""


def older(name):
    ours, labels, value, shown = SAME[name]
    kept = "" if name == "memory_usage" else labels
    series = {f"{ours}{{{TRAINER}{labels}}}": [value] * 11}
    if name == "memory_usage":
        series[f'{ours}{{{TRAINER},device="cuda:1"}}'] = [value] * 11
        shown *= 2
    return Scene(f"older name {name}", series, {5: set()}, values={(5, name): {f"{name}{{{TRAINER}{kept}}}": shown}})


def kl_in_the_reward():
    """With ``algorithm.use_kl_in_reward`` verl logs the KL under another name; where both are on, the loss term is shown once."""
    both = f"{TRAINER.replace(RUN, 'run-of-both')}"
    series = {
        f"verl_actor_reward_kl_penalty{{{TRAINER}}}": [0.02] * 11,
        f"verl_actor_reward_kl_penalty{{{both}}}": [0.04] * 11,
        f"verl_actor_kl_loss{{{both}}}": [0.03] * 11,
    }
    shown = {f"kl_divergence{{{TRAINER}}}": 0.02, f"kl_divergence{{{both}}}": 0.03}
    return Scene("older name kl_divergence, in the reward", series, {5: set()}, values={(5, "kl_divergence"): shown})


def read_by_dcgm():
    """DCGM's exporter reads one GPU, both read the other: each is shown once, in percent, by its UUID."""
    exporter = 'job="dcgm",instance="node:9400"'
    series = {
        f'DCGM_FI_DEV_GPU_UTIL{{{exporter},UUID="GPU-dcgm"}}': [60] * 11,
        f'DCGM_FI_DEV_GPU_UTIL{{{exporter},UUID="GPU-both"}}': [61] * 11,
        f'hw_gpu_utilization_ratio{{{TRAINER},hw_id="GPU-both"}}': [0.75] * 11,
    }
    shown = {
        f'gpu_utilization{{{exporter},UUID="GPU-dcgm",hw_id="GPU-dcgm"}}': 60,
        f'gpu_utilization{{{TRAINER},hw_id="GPU-both"}}': 75,
    }
    return Scene("older name gpu_utilization, by DCGM", series, {5: set()}, values={(5, "gpu_utilization"): shown})


def latency_of_a_step():
    """``rollout_latency_seconds`` itself is the time in which a step generates: here 15 s, in a step of 20 minutes."""
    steps = [n // 40 for n in range(361)]
    series = {
        f"verl_sample_generation_seconds_sum{{{TRAINER}}}": [15 * n for n in steps],
        f"verl_sample_generation_seconds_count{{{TRAINER}}}": steps,
    }
    shown = {f"rollout_latency_seconds{{{TRAINER}}}": 15}
    values = {(minute, "rollout_latency_seconds"): shown for minute in (25, 39, 75, 119)}
    return Scene("older name rollout_latency_seconds", series, {5: set()}, values=values)


def speed():
    """A step of a minute, half of which generates; a trajectory of 40 s ends every second."""
    count = 241
    loop = f'job="verl",instance="{RUN}/agent_loop-0",verl_role="agent_loop",verl_run_id="{RUN}"'
    trajectory = f'verl_rollout_trajectory_duration_seconds_bucket{{{loop},verl_validate="false",le='
    series = {
        **watch([Training(MINUTE)], 120),
        f"verl_step_duration_seconds_sum{{{TRAINER}}}": [30 * n for n in range(count)],
        f"verl_step_duration_seconds_count{{{TRAINER}}}": [0.5 * n for n in range(count)],
        f'verl_phase_duration_seconds_sum{{{TRAINER},verl_phase="gen"}}': [15 * n for n in range(count)],
        f'verl_rollout_tokens_total{{{loop},verl_token_type="generated",verl_validate="false"}}': [
            3000 * n for n in range(count)
        ],
        f'verl_rollout_tokens_total{{{loop},verl_token_type="generated",verl_validate="true"}}': [
            5000 * n for n in range(count)
        ],
        f'verl_worker_call_time_seconds_total{{{WORKER},verl_worker_method="update_actor"}}': [
            6 * n for n in range(count)
        ],
        f'{trajectory}"30"}}': [0] * count,
        f'{trajectory}"60"}}': [30 * n for n in range(count)],
        f'{trajectory}"+Inf"}}': [30 * n for n in range(count)],
        trajectory.replace("_bucket", "_count").replace(",le=", "}"): [30 * n for n in range(count)],
    }
    run = f'{{verl_run_id="{RUN}"}}'
    return Scene(
        "how fast a run is",
        series,
        {60: set()},
        values={
            (60, "run:verl_step_duration_seconds:mean10m"): {f"run:verl_step_duration_seconds:mean10m{run}": 60},
            (60, "run_phase:verl_phase_duration_seconds:share10m"): {
                f'run_phase:verl_phase_duration_seconds:share10m{{verl_run_id="{RUN}",verl_phase="gen"}}': 0.5
            },
            (60, "run:verl_rollout_tokens:rate5m"): {
                f'run:verl_rollout_tokens:rate5m{{verl_run_id="{RUN}",verl_token_type="generated"}}': 100
            },
            (60, "run:verl_rollout_samples:rate5m"): {f"run:verl_rollout_samples:rate5m{run}": 1},
            (90, "round(run:verl_step_samples:mean1h)"): {run: 60},
            (60, "round(run:verl_training_steps:rate10m * 60)"): {run: 1},
            (60, "instance:verl_worker_call_time_seconds:rate10m"): {
                f'instance:verl_worker_call_time_seconds:rate10m{{verl_run_id="{RUN}",verl_role="actor_rollout_ref",'
                f'instance="{RUN}/actor_rollout_ref-0"}}': 0.2
            },
            (60, "round(run:verl_rollout_trajectory_duration_seconds:p50_1h)"): {run: 45},
            (60, "round(run:verl_rollout_trajectory_duration_seconds:p95_1h, 0.5)"): {run: 58.5},
            (60, "round(run:verl_step_interval_seconds:max2d)"): {run: 60},
        },
    )


SCENES = [*map(older, SAME), latency_of_a_step(), kl_in_the_reward(), read_by_dcgm(), speed()]
