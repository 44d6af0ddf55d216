# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The trainings that are counted, by mode. With ``RECOUNT_RUNS=FOLDER`` they are kept there, and a training that is there is not made again.

python -m tests.recount.trainings FOLDER MODE ...     trains these modes and keeps the trainings
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end import bed_run, modes
from tests.recount.oracle import Oracle, OwnLoop
from tests.recount.product import Product
from tests.recount.rows import MIN_STEPS

KEPT = "RECOUNT_RUNS"
VALIDATED = "trainer.val_before_train=True"


def _train(out, *overrides, **options):
    return bed_run.train(
        out, overrides=[VALIDATED, *overrides], VERL_OTEL_ENABLED=1, VERL_OTEL_RUN_DIR=out / "runs", **options
    )


def _separate(sync_step, prompts):
    """A step of so many local steps, which together have so many prompts; verl wants a mini-batch for each of them."""
    overrides = (
        f"trainer.v1.separate_async.parameter_sync_step={sync_step}",
        f"data.train_batch_size={prompts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts // sync_step}",
    )
    return lambda out: _train(out, *overrides, mode="separate_async")


def _twice(out, *overrides, steps, then, **options):
    """Train, and continue from the last checkpoint; verl's file logger would write over what it has written."""
    overrides = ("trainer.resume_mode=auto", f"trainer.default_local_dir={out}/checkpoints", *overrides)
    first = _train(
        out,
        *overrides,
        steps=steps,
        VERL_OTEL_RUN_ID="continued",
        VERL_FILE_LOGGER_PATH=out / "scalars-1.jsonl",
        **options,
    )
    shutil.move(out / "training.log", out / "training-1.log")
    assert bool(first.returncode) == ("CPU_BED_CRASH" in options)
    options.pop("CPU_BED_CRASH", None)
    return _train(
        out,
        *overrides,
        steps=then,
        VERL_OTEL_RUN_ID="continued",
        VERL_FILE_LOGGER_PATH=out / "scalars-2.jsonl",
        **options,
    )


def _resume(out):
    """PPO with critic that ended after step 3 is continued to step 5."""
    return _twice(out, "trainer.save_freq=1", algorithm="gae", steps=3, then=5)


def _crash(out):
    """GRPO that failed in step 4, which is the sixth batch with two validations, is continued from its checkpoint of step 2 to step 5."""
    return _twice(out, "trainer.save_freq=2", steps=5, then=5, CPU_BED_CRASH=6)


def _own_loop(kind):
    def train(out):
        environ = {
            **os.environ,
            "VERL_OTEL_ENABLED": "1",
            "VERL_OTEL_RUN_DIR": str(out / "runs"),
            "RAY_AUTH_MODE": "disabled",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental" if kind == "threads" else "",
        }
        out.mkdir(parents=True, exist_ok=True)
        with (out / "training.log").open("wb") as log:
            command = [sys.executable, "-m", "tests.recount.own_loop", kind, str(out)]
            code = subprocess.call(command, env=environ, cwd=bed_run.HERE.parents[1], stdout=log, stderr=log)
        training = bed_run.Training(out)
        assert (code != 0) == (kind == "failed"), training.log[-3000:]
        training.returncode = 0
        return training

    return train


class Mode(NamedTuple):
    """One mode: how it is trained, in an empty folder, and how it is counted."""

    train: Callable[[Path], bed_run.Training]
    counted: dict
    """Arguments of the oracle."""
    oracle: type = Oracle


def _bed(name):
    return lambda out: modes.train(name, out)


SEPARATE = {"rollout_devices": 1, "bound": 7}
AHEAD = {"rollout_devices": 1, "has_buffer": False}
MODES = {
    "sync": Mode(modes.train_full, {}),
    "colocate_async": Mode(_bed("colocate_async"), {"bound": 7}),
    "separate_async_1": Mode(_separate(1, 4), SEPARATE),
    "separate_async_2": Mode(_bed("separate_async"), SEPARATE),
    "separate_async_4": Mode(_separate(4, 8), SEPARATE),
    "fully_async": Mode(_bed("fully_async"), AHEAD),
    "one_step_off": Mode(_bed("one_step_off"), AHEAD),
    "legacy": Mode(_bed("legacy"), {"has_buffer": False}),
    "critic": Mode(_bed("critic"), {}),
    "tools": Mode(_bed("tools"), {}),
    "own_fit": Mode(modes.train_own_fit, {"has_buffer": False, "filters": True}),
    "kl": Mode(lambda out: _train(out, "algorithm.use_kl_in_reward=True", steps=4), {}),
    "two": Mode(
        lambda out: _train(
            out, "trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2",
            "actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=2",
            steps=MIN_STEPS,
        ),
        {"train_devices": 2},
    ),
    "resume": Mode(_resume, {"resumes": 1}),
    "crash": Mode(_crash, {"resumes": 1, "crashed_steps": 1}),
    "own_asyncio": Mode(_own_loop("asyncio"), {}, OwnLoop),
    "own_threads": Mode(_own_loop("threads"), {"conventions": True}, OwnLoop),
    "own_failed": Mode(_own_loop("failed"), {"crashed_steps": 1, "state": "failed"}, OwnLoop),
    "own_ray": Mode(_own_loop("ray"), {}, OwnLoop),
}  # fmt: skip

SHARED = {"separate_async_2": "separate_async"}
"""Modes whose training other tests read, too, by another name."""


def get(name, new_folder):
    """Return the training of a mode. ``new_folder`` returns an empty folder."""
    kept = os.environ.get(KEPT)
    if not kept:
        training = modes.share(SHARED.get(name, name), lambda: MODES[name].train(new_folder()))
    elif (Path(kept, name) / "returncode").exists():
        training = bed_run.Training(Path(kept, name))
        training.returncode = int((training.out / "returncode").read_text())
    else:
        shutil.rmtree(Path(kept, name), ignore_errors=True)  # what did not come to its end
        training = MODES[name].train(Path(kept, name))
        (training.out / "returncode").write_text(str(training.returncode))
    assert training.returncode == 0, training.log[-3000:]
    return training


def open_run(name, new_folder):
    """Return the count of a mode, and what the product says of it."""
    training = get(name, new_folder)
    return MODES[name].oracle(training.out, **MODES[name].counted), Product(training.folder)


def main():
    folder, *names = sys.argv[1:]
    os.environ[KEPT] = str(Path(folder).absolute())
    for name in names or MODES:
        shutil.rmtree(Path(folder, name), ignore_errors=True)
        training = get(name, None)
        print(name, "returned", training.returncode, flush=True)


if __name__ == "__main__":
    main()
