# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The command that trains: real, unmodified ``verl.trainer.main_ppo`` on the CPU bed.

Usage: python -m tests.verl_cpu.cpu_train OUT_FOLDER [--mode sync] [--algorithm grpo] [--steps 3] [--tool] [hydra overrides ...]
Modes: sync, colocate_async, separate_async (trainers v1), legacy, one_step_off, fully_async; 0.8 and 0.7 with those releases, neo with that branch.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.verl_cpu.cpu_assets import make_assets

HERE = Path(__file__).resolve().parent
MODEL_CLASS = "attn_implementation=eager"


SEPARATE = [
    "actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "ray_kwargs.ray_init.num_gpus=2", "actor_rollout_ref.rollout.checkpoint_engine.backend=cpu_file",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=cpu_checkpoint_engine",
]  # fmt: skip
"""A rollout replica of its own, which gets its weights through files."""
ORDERED = [
    f"trainer.v1.sampler.custom_sampler.path={HERE}/cpu_sampler.py",
    "trainer.v1.sampler.custom_sampler.name=OrderedReplayBuffer",
]
"""A sampler whose batches do not depend on which trajectory finished first."""
AHEAD = [
    *SEPARATE, "trainer.use_v1=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=1",
    "hydra.searchpath=[pkg://verl.trainer.config]", "actor_rollout_ref.hybrid_engine=False",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
    "ray_kwargs.ray_init.num_cpus=64",  # their actors ask for 10 each
]  # fmt: skip
MODES = {
    "sync": (
        "verl.trainer.main_ppo",
        "trainer.use_v1=true", "trainer.v1.trainer_mode=sync", *ORDERED,
    ),
    "colocate_async": ("verl.trainer.main_ppo", "trainer.use_v1=true", "trainer.v1.trainer_mode=colocate_async"),
    "separate_async": (
        "verl.trainer.main_ppo",
        "trainer.use_v1=true", "trainer.v1.trainer_mode=separate_async", *SEPARATE,
        "trainer.v1.separate_async.parameter_sync_step=2",
    ),
    "legacy": ("verl.trainer.main_ppo", "trainer.use_v1=false"),
    "0.8": ("verl.trainer.main_ppo", "+ray_kwargs.ray_init.resources.cpu=1"),
    "0.7": (
        "verl.trainer.main_ppo", "+ray_kwargs.ray_init.resources.cpu=1", "trainer.use_legacy_worker_impl=disable",
        "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2", "actor_rollout_ref.ref.fsdp_config.strategy=fsdp2",
    ),
    "neo": ("verl.trainer.main_ppo",),
    "one_step_off": ("verl.experimental.one_step_off_policy.main_ppo", *AHEAD),
    "fully_async": (
        "verl.experimental.fully_async_policy.fully_async_main", *AHEAD, "rollout.n=2",
        "rollout.total_rollout_steps=16", "async_training.trigger_parameter_sync_step=2",
        "async_training.require_batches=1", "data.train_batch_size=0", "data.gen_batch_size=1",
        "actor_rollout_ref.actor.use_rollout_log_probs=True",
    ),
}  # fmt: skip
"""Module and overrides of every trainer; ``0.8``, ``0.7`` and ``neo`` for those versions of verl, which have one."""


def cache_folder():
    """Return the user's cache folder for the bed's model and data."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "verl-otel" / "verl_cpu"


def make_command(out, *, mode="sync", algorithm="grpo", steps=3, tool=False, overrides=(), python=sys.executable):
    """Return the training command: three steps of four prompts with two rollouts each, unless told otherwise."""
    assets = make_assets(cache_folder())
    model = f"{assets}/model"
    length = ["data.max_prompt_length=256", "data.max_response_length=160"] if tool else [
        "data.max_prompt_length=32", "data.max_response_length=8",
    ]  # fmt: skip
    agent = [
        "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={HERE}/cpu_tools.py",
    ]
    critic = [
        "critic.strategy=fsdp2",
        f"critic.model.path={model}", "critic.model.use_remove_padding=False",
        f"+critic.model.override_config.{MODEL_CLASS}", "critic.model.enable_gradient_checkpointing=False",
        "critic.ppo_micro_batch_size_per_gpu=2", "critic.ppo_mini_batch_size=2", "critic.fsdp.use_torch_compile=False",
        "+critic.fsdp.mixed_precision.param_dtype=fp32", "critic.optim.lr=1e-3",
    ]  # fmt: skip
    module, *mode_overrides = MODES[mode]
    return [
        str(python), "-m", module, "trainer.device=cpu",
        f"algorithm.adv_estimator={algorithm}",
        f"data.train_files={assets}/train.parquet", f"data.val_files={assets}/val.parquet", "data.seed=1",
        "data.train_batch_size=4", "data.dataloader_num_workers=0", *length,
        f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.use_remove_padding=False",
        f"+actor_rollout_ref.model.override_config.{MODEL_CLASS}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.ref.strategy=fsdp2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.actor.use_torch_compile=False", "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.actor.fsdp_config.forward_only=False",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=fp32",
        "actor_rollout_ref.ref.fsdp_config.model_dtype=fp32",
        "actor_rollout_ref.actor.optim.lr=1e-3", "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.calculate_entropy=True",
        "actor_rollout_ref.rollout.name=cpu", "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.agent.num_workers=1", "actor_rollout_ref.rollout.load_format=auto",
        *(agent if tool else []),
        *(critic if algorithm == "gae" else []),
        "reward.num_workers=1", f"reward.custom_reward_function.path={HERE}/cpu_reward.py",
        *([] if mode in ("0.7", "neo") else ["transfer_queue.backend.SimpleStorage.num_data_storage_units=1"]),
        "trainer.n_gpus_per_node=1", "trainer.nnodes=1", "trainer.logger=[console,file]",
        "trainer.project_name=bed", f"trainer.experiment_name={Path(out).name}",
        f"trainer.total_training_steps={steps}", "trainer.total_epochs=1", "trainer.test_freq=2", "trainer.save_freq=-1",
        "trainer.val_before_train=False", "trainer.resume_mode=disable",
        "ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.num_gpus=1", "+ray_kwargs.ray_init.address=local",
        "++ray_kwargs.ray_init.include_dashboard=False", f"hydra.run.dir={out}/hydra",
        *mode_overrides, *overrides,
    ]  # fmt: skip


def make_environment(out, *, tool=False, gen="det", **variables):
    """Return the environment of a training: what the bed needs, its own log in ``OUT/log``, and more ``variables``."""
    (Path(out) / "log").mkdir(parents=True, exist_ok=True)
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VERL_", "OTEL_", "RAY_", "CPU_BED_")) and name != "PYTEST_CURRENT_TEST"
    }
    environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
        "VERL_USE_EXTERNAL_MODULES": "cpu_bed",
        "VERL_PLATFORM": "cpu",
        "VERL_FILE_LOGGER_PATH": f"{out}/scalars.jsonl",
        "CPU_BED_LOG": f"{out}/log",
        "CPU_BED_WEIGHTS": f"{out}/weights",
        "CPU_BED_GEN": gen,
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_worker_prestart": "0",  # 16 idle workers take both cores while the first one imports verl
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",  # 15, which is Ray's, starves its workers beside other programs of this machine
        "PYTHONUNBUFFERED": "1",
    }
    if tool:
        environ["CPU_BED_TOOL"] = "1"
    return environ | {name: str(value) for name, value in variables.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--mode", default="sync", choices=MODES)
    parser.add_argument("--algorithm", default="grpo")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tool", action="store_true")
    arguments, overrides = parser.parse_known_args()
    out = arguments.out.absolute()
    command = make_command(
        out,
        mode=arguments.mode,
        algorithm=arguments.algorithm,
        steps=arguments.steps,
        tool=arguments.tool,
        overrides=overrides,
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("VERL_OTEL_", "VERL_USE_EXTERNAL_", "OTEL_", "CPU_BED_"))
    }
    return subprocess.call(command, env=make_environment(out, tool=arguments.tool) | kept, cwd=out)


if __name__ == "__main__":
    sys.exit(main())
