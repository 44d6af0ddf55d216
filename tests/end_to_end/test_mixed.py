# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster of two nodes, one of which lacks verl-otel: verl merges what both send and trains on, whichever comes first."""

import os
import sys
from typing import NamedTuple

import pytest

from tests.builders.training_logs import find_unexpected
from tests.end_to_end import bed_run, modes, ray_cluster
from tests.verl_cpu import cpu_train

pytestmark = pytest.mark.verl


class Mixed(NamedTuple):
    """Where verl-otel is missing."""

    lacking: int
    """Number of the node; the trainer runs on node 1, since Ray keeps node 0 for what needs its GPU."""
    first: str
    """Which node has the first of the two agent loop workers: ``lacking`` or ``having``."""


CLUSTERS = {
    "first worker lacks": Mixed(0, "lacking"),
    "last worker lacks": Mixed(0, "having"),
    "trainer and last worker lack": Mixed(1, "having"),
    "trainer and first worker lack": Mixed(1, "lacking"),
}
RELEASES = {"legacy": "", "0.8": "08", "0.7": "07"}


def train(out, mode, lacking, first):
    """Train one step on a cluster of two nodes, with an agent loop worker on each."""
    release = RELEASES[mode]
    python = modes.make_environment(release) if release else sys.executable
    more = {"CPU_BED_NODES": first, "PYTHONPATH_EXTRA": ray_cluster.OBSTACLES}
    environ = cpu_train.make_environment(out, **more)
    environ["PYTHONPATH"] = os.pathsep.join([str(ray_cluster.OBSTACLES), environ["PYTHONPATH"]])
    if release:
        del environ["VERL_USE_EXTERNAL_MODULES"]  # forwarded by verl-otel, as for a user's own modules
        more["VERL_USE_EXTERNAL_MODULES"] = "verl_otel.plugin,cpu_bed"
    with ray_cluster.start(out / "cluster", python=python, lacking=lacking) as address:
        overrides = [
            "actor_rollout_ref.rollout.agent.num_workers=2", "trainer.total_training_steps=1", "trainer.test_freq=-1",
            *(["~ray_kwargs.ray_init.resources"] if release else []),
            *ray_cluster.make_overrides(address, environ),
        ]  # fmt: skip
        return bed_run.train(
            out, mode=mode, python=python, overrides=overrides, gen="random", RAY_AUTH_MODE="disabled",
            VERL_OTEL_ENABLED=1, VERL_OTEL_RUN_DIR=out / "runs", **more,
        )  # fmt: skip


@pytest.mark.matrix  # `make test` has the same without a training: tests/integrations/verl/test_mixed_batches.py
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("mode", RELEASES)
def test_a_mixed_cluster_trains(outs, mode, cluster):
    """Every sample is trained on; those of the worker that has verl-otel are linked, where the trainer has it, too."""
    where = CLUSTERS[cluster]
    training = train(outs / f"mixed-{mode}-{cluster.replace(' ', '-')}", mode, *where)
    assert training.returncode == 0, training.log[-3000:]
    assert "verl-otel is not on this node" in training.log
    assert find_unexpected(training.log) == []
    assert training.scalars()[1]["critic/score/mean"] is not None
    spans = training.spans()
    names = [span.name for span in spans]
    has_trainer = where.lacking == 0
    assert len(training.bed("trajectory")) == modes.GROUP
    assert names.count("verl.trajectory") == modes.GROUP // 2
    assert names.count("verl.step") == has_trainer
    linked = {link[0] for span in spans if span.name == "verl.consume" for link in span.links}
    known = {span.trace for span in spans if span.name == "verl.trajectory"}
    assert linked == (known if has_trainer else set())
