# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A user's OpenTelemetry SDK in a real training: what its console exporters print, in the driver and in the workers, is what the files have."""

import json
from pathlib import Path

import pytest

from tests.end_to_end import bed_run

pytestmark = pytest.mark.verl

TOOLS = "verl.tool.call.duration"


@pytest.fixture(scope="module")
def run(outs):
    """A training of two steps with files and with the user's providers, which `user_sdk` sets in each process."""
    out = outs / "sdk"
    return bed_run.train(
        out, steps=2, tool=True, VERL_OTEL_ENABLED=1, VERL_OTEL_RUN_DIR=out / "runs", VERL_OTEL_EXPORTERS="file,sdk",
        VERL_USE_EXTERNAL_MODULES="user_sdk,cpu_bed", PYTHONPATH_EXTRA=Path(__file__).parent,
    )  # fmt: skip


def read(run, kind):
    """Yield (pid, what was printed) of each line that the user's exporters have written."""
    for path in (run.out / "sdk").glob(f"{kind}-*.json"):
        for line in path.read_text("utf-8").splitlines():
            yield int(path.stem.partition("-")[2]), json.loads(line)


def test_each_span_arrives_once_from_its_process(run):
    """Spans of all roles are there, also those of the last seconds of workers that Ray kills, with names, parents, times and attributes."""
    assert run.returncode == 0, run.log[-3000:]
    printed = list(read(run, "spans"))
    found = {span["context"]["span_id"][2:]: (pid, span) for pid, span in printed}
    ours = {span.id: span for span in run.spans()}
    assert len(found) == len(printed)
    assert found.keys() == ours.keys()
    assert {span.role for span in ours.values()} >= {
        "trainer",
        "agent_loop",
        "llm_server",
        "actor_rollout_ref",
        "reward",
    }
    for name, (pid, theirs) in found.items():
        span = ours[name]
        assert (span.pid, span.name, span.parent) == (pid, theirs["name"], (theirs["parent_id"] or "0x")[2:])
        assert theirs["resource"]["attributes"]["service.name"] == "mine"
        assert theirs["attributes"].keys() == span.attributes.keys()
    steps = sorted(span["attributes"]["verl.step.number"] for _, span in found.values() if span["name"] == "verl.step")
    assert steps == [1, 2]
    assert sum(span["name"] == "verl.trajectory" for _, span in found.values()) == len(run.bed("trajectory"))


def test_metrics_arrive_and_views_apply(run):
    """Each metric of the files is collected, in every process that has some; the view has dropped all attributes of one of them but its outcome."""
    found = {}
    for pid, printed in read(run, "metrics"):
        for group in printed["resource_metrics"]:
            for metric in (each for scope in group["scope_metrics"] for each in scope["metrics"]):
                found.setdefault(metric["name"], {})[pid] = metric["data"]["data_points"]
    assert found.keys() == {name for name, *_ in run.points()}
    assert {pid for each in found.values() for pid in each} == {span.pid for span in run.spans()}
    ((point,),) = found[TOOLS].values()
    assert not point["attributes"]
    assert (
        0 < point["count"] <= len(run.bed("tool"))
    )  # what came after the last collection is lost: Ray kills the worker
    ((step,),) = found["verl.step.duration"].values()
    assert step["count"] == 2
