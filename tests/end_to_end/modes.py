# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ways in which verl trains, as trainings of the bed: what is run, and what can be expected of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.end_to_end import bed_run, ray_cluster
from tests.end_to_end.scraper import Scraper
from tests.fakes.otlp_sink import Sink
from tests.verl_cpu import cpu_train

TOP = Path(__file__).resolve().parent.parent.parent
REPOSITORY = os.environ.get("VERL_REPOSITORY", "https://github.com/verl-project/verl")
"""Where commits of verl come from: an address, or a folder with a clone."""
GROUP = 4 * 2
"""Samples that a step trains on: prompts times rollouts."""


class Mode(NamedTuple):
    """One row of the matrix."""

    title: str
    options: dict
    """Arguments of `bed_run.train`."""
    steps: int
    samples: int = GROUP
    """Trajectories that one step consumes."""
    updates: int = 1
    """Updates of the actor in one step."""
    submitted: bool = True
    """Whether every trajectory is submitted by a step, a validation or a warm-up."""
    devices: int = 1
    """GPUs, or what stands for them: ranks that train or hold a replica of their own."""
    held: tuple[int, ...] = ()
    """Steps that a planted cause held."""
    release: str = ""
    """An earlier release of verl, in an environment of its own."""
    commit: str = ""
    """A commit of verl's repository, whose sources hide those of the installed release."""
    cluster: bool = False
    """On a Ray cluster that was started before."""


def _options(*overrides, **more):
    return {"overrides": ["trainer.val_before_train=True", *overrides], **more}


MODES = {
    "sync": Mode("v1 `sync`, GRPO", {}, steps=3),
    "colocate_async": Mode("v1 `colocate_async`, GRPO", _options(mode="colocate_async"), steps=3),
    "separate_async": Mode(
        "v1 `separate_async`, GRPO, two replicas", _options(mode="separate_async"), steps=3, updates=2, devices=2
    ),
    "critic": Mode(
        "v1 `sync`, PPO with critic, checkpoints, validation before and during training",
        _options("trainer.save_freq=1", "trainer.default_local_dir=checkpoints", algorithm="gae"),
        steps=3,
    ),
    "tools": Mode(
        "v1 `sync`, tool agent: a slow tool, one that raises, one that hangs until its time-out",
        {
            "tool": True,
            "hide": "nvtx",
            "CPU_BED_SLOW_TOOL": "3:11",
            "CPU_BED_BAD_TOOLS": "raise:3,hang:27",
            "CPU_BED_NOTE": 1,
            "VERL_OTEL_LOG_LEVEL": "debug",
        },
        steps=3,
        held=(2, 3),
    ),
    "cluster": Mode(
        "v1 `sync` on a cluster that was there before: two raylets, two agent loop and two reward workers",
        _options("actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=2"),
        steps=3,
        cluster=True,
    ),
    "legacy": Mode("legacy trainer (`trainer.use_v1=false`), GRPO", _options(mode="legacy"), steps=3),
    "own_trainer": Mode(
        "subclass of the legacy trainer with a `fit` of its own, GRPO",
        _options(mode="legacy", CPU_BED_OWN_TRAINER=1),
        steps=3,
    ),
    "one_step_off": Mode("one step off policy, GRPO", _options(mode="one_step_off"), steps=3, devices=2),
    "fully_async": Mode(
        "fully asynchronous, GRPO", _options(mode="fully_async"), steps=4, updates=2, submitted=False, devices=2
    ),
    "verl-0.8": Mode("verl 0.8.0, GRPO", _options(mode="0.8"), steps=3, release="08"),
    "verl-0.7": Mode("verl 0.7.1, GRPO", _options(mode="0.7"), steps=3, release="07"),
    "neo": Mode(
        "verl's branch `neo` of 2026-08-17 (b0d344b0), GRPO",
        _options(mode="neo"),
        steps=3,
        release="08",  # it needs einops, as verl 0.8 does
        commit="b0d344b0bc823dda2034c006230e00b699a68806",
    ),
}


_trained = {}


def share(name, train_it):
    """Return the training of a mode, which is made once in a session: several fixtures read it."""
    if name not in _trained:
        _trained[name] = train_it()
    return _trained[name]


def train_full(out):
    """Run the training of ``sync`` with files, OTLP and Prometheus at once; what the sink and the scraper saw is attached."""
    with Sink() as sink, Scraper(out / "runs" / "targets") as scraper:
        training = bed_run.train(
            out,
            overrides=["trainer.val_before_train=True", f"ray_kwargs.timeline_json_file={out}/timeline.json"],
            VERL_OTEL_ENABLED=1,
            VERL_OTEL_RUN_DIR=out / "runs",
            VERL_OTEL_EXPORTERS="file,otlp,prometheus",
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint,
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        )
    training.sink, training.scraper = sink, scraper
    return training


def train_own_fit(out, *, copied=False):
    """Run the training of `dynamic_sampling`, whose trainer derives from verl's, or is a copy that does not."""
    overrides = [f"ray_kwargs.timeline_json_file={out}/timeline.json"]
    command = cpu_train.make_command(out, mode="legacy", steps=3, overrides=overrides)
    command[command.index("verl.trainer.main_ppo")] = "dynamic_sampling"
    return bed_run.train(
        out,
        command=command,
        PYTHONPATH_EXTRA=Path(__file__).parent,
        VERL_OTEL_ENABLED=1,
        VERL_OTEL_RUN_DIR=out / "runs",
        COPIED_TRAINER="1" if copied else "",
    )


def train(name, out):
    """Run the training of a mode, with files as the only output and Ray's own list of executed calls."""
    mode = MODES[name]
    options = dict(mode.options)
    overrides = [*options.pop("overrides", ()), f"ray_kwargs.timeline_json_file={out}/timeline.json"]
    if mode.release:
        options |= {"python": make_environment(mode.release), "VERL_USE_EXTERNAL_MODULES": "verl_otel.plugin,cpu_bed"}
    if mode.commit:
        options["PYTHONPATH_EXTRA"] = fetch_sources(mode.commit)
    options |= {"VERL_OTEL_ENABLED": 1, "VERL_OTEL_RUN_DIR": out / "runs"}
    if not mode.cluster:
        return bed_run.train(out, overrides=overrides, **options)
    environ = cpu_train.make_environment(out)
    with ray_cluster.start(out / "cluster") as address:
        overrides += ray_cluster.make_overrides(address, environ)
        return bed_run.train(out, overrides=overrides, RAY_AUTH_MODE="disabled", **options)


def make_environment(release):
    """Return the Python of an environment with an earlier release of verl, made from its lock if need be."""
    uv = TOP / ".cache" / "uv" / "bin" / "uv"
    folder, lock = TOP / f".venv-verl-{release}", TOP / "requirements" / f"verl-{release}.txt"
    python = folder / "bin" / "python"
    run = lambda *arguments: subprocess.run([uv, *arguments], check=True)  # noqa: E731 - four calls alike
    run("venv", "--quiet", "--allow-existing", "--python", sys.executable, folder)
    run("pip", "sync", "--quiet", "--python", python, "--require-hashes", lock)
    run("pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", "--editable", TOP)
    return python


def fetch_sources(commit):
    """Return a folder with the sources of a commit of verl, fetched from `REPOSITORY` if need be."""
    folder = TOP / ".cache" / f"verl-{commit[:8]}"
    git = lambda *arguments: subprocess.run(["git", "-C", folder, *arguments], check=True)  # noqa: E731 - four calls alike
    if not (folder / "verl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git("init", "--quiet")
        try:
            git("fetch", "--quiet", "--depth", "1", REPOSITORY, commit)
        except subprocess.CalledProcessError:
            pytest.skip(f"{REPOSITORY} cannot be reached, and {folder} has no copy of {commit[:8]}")
        git("checkout", "--quiet", "FETCH_HEAD")
    return folder
