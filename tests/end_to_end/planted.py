# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""One training in which nine steps are slow, each for a cause that was planted: what, where, and how long.

Two ranks with a replica each, a tool agent, a checkpoint in every second step. Each step has 8 trajectories, one tool call and one
reward each, so that the number of a call tells its step.

Usage: python -m tests.end_to_end.planted OUT [--healthy | --slower] [--steps N]
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end import bed_run

GROUP = 8
STEPS = 16
"""As many as there are data for."""


class Cause(NamedTuple):
    """What was planted in a step, and what a verdict has to say of it."""

    step: int
    plant: str
    """As `cpu_plant` reads it."""
    kind: str
    """What held the step: `Verdict.kind`; several words where it may be seen in more than one way."""
    cause: str
    name: str
    seconds: float


CAUSES = (
    Cause(4, f"tool:2.5:{3 * GROUP + 4}", "trajectory", "tool", "add", 2.5),
    Cause(6, f"reward:2.5:{5 * GROUP + 4}", "trajectory reward", "reward", "", 2.5),
    Cause(8, "server:2.5:7:1", "trajectory replica", "server", "", 2.5),
    Cause(9, "sync:2.5:9:0", "phase", "weight_sync worker", "", 2.5),
    Cause(10, "checkpoint:3:5:0", "phase", "checkpoint worker", "", 3.0),
    Cause(12, "rank:2:12:1", "rank", "worker", "", 2.0),
    Cause(13, f"block:2.5:{12 * GROUP + 4}", "loop", "blocked", "tool add", 2.5),
    Cause(14, "log:2.5:14", "between", "logging", "file", 2.5),
    Cause(15, "item:2.5:15", "phase", "data_loading", "", 2.5),
)
SLOWER = (Cause(0, "tool:0.35:*", "", "tool", "add", 0.35),)
"""Every tool call takes longer: about a fifth of a step."""


def train(out, *, causes=CAUSES, steps=STEPS, **variables):
    """Run the training, with causes or without."""
    overrides = [
        "trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2", "trainer.test_freq=-1",
        "trainer.save_freq=2", f"trainer.default_local_dir={out}/checkpoints", "trainer.max_actor_ckpt_to_keep=1",
    ]  # fmt: skip
    if causes:
        variables["CPU_BED_PLANT"] = ",".join(cause.plant for cause in causes)
    return bed_run.train(
        out,
        overrides=overrides,
        steps=steps,
        tool=True,
        VERL_OTEL_ENABLED=1,
        VERL_OTEL_RUN_DIR=out / "runs",
        **variables,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--healthy", dest="causes", action="store_const", const=(), default=CAUSES, help="plant nothing"
    )
    parser.add_argument(
        "--slower", dest="causes", action="store_const", const=SLOWER, help="make every tool call slower"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    training = train(arguments.out.absolute(), causes=arguments.causes, steps=arguments.steps)
    print(f"exit code {training.returncode} after {training.seconds:.0f} s; {training.folder}")
    return training.returncode


if __name__ == "__main__":
    sys.exit(main())
