# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Who a process is: role, instance and run id, and whose word wins."""

import json
import os
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_otel import config, resource
from verl_otel._internal.machine import identify_machine
from verl_otel._internal.ranks import RANKS
from verl_otel.semconv import attributes as attr


@pytest.fixture(autouse=True)
def nothing_said():
    """Begin and end with a process of which nobody has said anything."""
    resource.clear()
    yield
    resource.clear()


def build(**described):
    """The resource of a process of run r1 of which this is said."""
    resource.describe({attr.__dict__.get(key.upper(), key): value for key, value in described.items()})
    return resource.build_resource(config.load_config({}, run_id="r1", run_attempt=2))


def test_a_process_of_which_nothing_is_known():
    """Without a word from anybody the process is named by its process id and host."""
    values = build().attributes
    assert values["service.name"] == "verl"
    assert values["service.instance.id"] == f"r1/{socket.gethostname()}-{identify_machine()}/process-{os.getpid()}"
    assert (values["verl.run.id"], values["verl.run.attempt"]) == ("r1", 2)
    assert (values["host.name"], values["process.pid"]) == (socket.gethostname(), os.getpid())
    assert values["telemetry.sdk.language"] == "python"
    assert values["telemetry.distro.name"] == "verl-otel"
    assert "service.namespace" not in values


@pytest.mark.parametrize(
    ("described", "instance"),
    [
        ({"role": "agent_loop", "verl.index": 3}, "r1/agent_loop-3"),
        ({"role": "driver", "verl.index": 0}, "r1/driver-0"),
        ({"role": "actor_rollout_ref", "rank": 0}, "r1/actor_rollout_ref-0"),
        ({"role": "llm_server", "replica_rank": 1}, "r1/llm_server-1"),
        ({"role": "critic", "rank": 5, "replica_rank": 1}, "r1/critic-5"),
        ({"role": "task"}, "r1/HOST/task-PID"),
    ],
)
def test_the_instance_is_run_role_and_number(described, instance):
    """``service.instance.id`` is run, role and rank, replica or index; the index itself is no attribute."""
    values = build(**described).attributes
    assert values["service.instance.id"] == instance.replace("PID", str(os.getpid())).replace(
        "HOST", f"{socket.gethostname()}-{identify_machine()}"
    )
    assert values["verl.role"] == described["role"]
    assert "verl.index" not in values


@pytest.mark.parametrize(
    ("settings", "namespace"),
    [({"project": "p", "experiment": "e"}, "p/e"), ({"project": "p"}, "p"), ({"experiment": "e"}, "e")],
)
def test_the_namespace_is_project_and_experiment_of_the_settings(settings, namespace):
    """``service.namespace``, a part of ``job`` in Prometheus, is made of the settings, which all processes of a run have."""
    resource.describe({attr.PROJECT: "of verl", attr.EXPERIMENT: "of verl"})
    built = resource.build_resource(config.load_config({}, run_id="r1", **settings))
    assert built.attributes["service.namespace"] == namespace


def test_what_verl_says_to_one_process_is_no_namespace():
    """The trainer would have another ``job`` in Prometheus than its workers."""
    values = build(project="p", experiment="e").attributes
    assert (values["verl.project"], values["verl.experiment"]) == ("p", "e")
    assert "service.namespace" not in values


def test_what_was_said_first_stays():
    """A second description adds, and does not replace; a describer adds only what nobody has said."""
    resource.describe({attr.ROLE: "trainer", attr.RANK: 0})
    resource.describe({attr.ROLE: "other", attr.PROJECT: "p"})
    resource.add_describer(lambda: {attr.ROLE: "third", attr.RAY_JOB: "01"})
    values = build().attributes
    assert [values[key] for key in ("verl.role", "verl.project", "ray.job.id")] == ["trainer", "p", "01"]


def test_a_describer_that_fails_costs_its_own_words_only(swallow):
    """Where one integration cannot tell, the others can."""

    def fail():
        raise OSError

    resource.add_describer(fail)
    resource.add_describer(lambda: {attr.ROLE: "reward"})
    assert build().attributes["verl.role"] == "reward"


def test_the_user_has_the_last_word(monkeypatch):
    """OTEL_RESOURCE_ATTRIBUTES wins over us, decoded, and OTEL_SERVICE_NAME over both."""
    text = "service.name=a,verl.role=mine, team = x%2Cy%3Dz ,broken,=unnamed,service.namespace=n,equation=a=b"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", text)
    values = build(role="trainer", project="p").attributes
    assert values["service.name"] == "a"
    assert (values["verl.role"], values["team"], values["service.namespace"]) == ("mine", "x,y=z", "n")
    assert values["equation"] == "a=b"
    assert not {"broken", ""} & set(values), "a label without a name would make /metrics unreadable"
    monkeypatch.setenv("OTEL_SERVICE_NAME", " training ")
    assert build().attributes["service.name"] == "training"


def test_processes_of_a_pod_stay_distinct(monkeypatch):
    """An operator gives all processes of a pod one instance id (opentelemetry-operator, PR 2259); ours stays, like all that identifies a process."""
    text = "service.instance.id=ns.pod.main,verl.run.id=x,process.pid=1,k8s.pod.name=pod,host.name=node-7"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", text)
    values = build(role="trainer", index=0).attributes
    assert (values["service.instance.id"], values["verl.run.id"], values["process.pid"]) == (
        "r1/trainer-0",
        "r1",
        os.getpid(),
    )
    assert (values["k8s.pod.name"], values["host.name"]) == ("pod", "node-7")


RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray's supervisor of jobs sets (`ray.dashboard.modules.job.job_supervisor`)."""
STAMP = r"\d{8}-\d{6}-[0-9a-f]{4}"


@pytest.mark.parametrize(
    ("environ", "pattern"),
    [
        ({}, STAMP),
        (
            {RAY_JOB: '{"metadata": {"job_submission_id": "raysubmit_AbC123"}, "runtime_env": {}}'},
            f"ray-AbC123-{STAMP}",
        ),
        ({RAY_JOB: '{"metadata": null}'}, STAMP),
        ({RAY_JOB: "{"}, STAMP),
        ({"SLURM_JOB_ID": "4711"}, f"slurm-4711-{STAMP}"),
        ({RAY_JOB: '{"metadata": {"job_submission_id": "x"}}', "SLURM_JOB_ID": "4711"}, f"ray-x-{STAMP}"),
        ({"TORCHELASTIC_RUN_ID": "none"}, STAMP),
        ({"TORCHELASTIC_RUN_ID": "elastic-1"}, "elastic-1"),
        ({"TORCHELASTIC_RUN_ID": "/jobs/x"}, "jobs-x"),  # no option of a command
    ],
)
def test_where_a_run_id_comes_from(environ, pattern):
    """A run is named by its Ray or Slurm job and its start, or by torchrun's id."""
    run_id = resource.find_run_id(config.load_config({}), environ)
    assert re.fullmatch(pattern, run_id)


RANKED = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environ", "pattern"),
    [
        (RANKED, "job-[0-9a-f]{12}"),
        ({**RANKED, "SLURM_JOB_ID": "7"}, "job-[0-9a-f]{12}"),
        ({**RANKED, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "slurm-7-0"),
        ({"SLURM_PROCID": "1", "WORLD_SIZE": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "slurm-7-0"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "slurm-7-0"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "job-[0-9a-f]{12}"),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            f"slurm-7-{STAMP}",
        ),
        ({"RANK": "0", "WORLD_SIZE": "1"}, STAMP),
        ({**RANKED, "TORCHELASTIC_RUN_ID": "elastic-1"}, "elastic-1"),
    ],
)
def test_the_ranks_of_a_job_derive_one_run_id(environ, pattern):
    """From a step of Slurm or from the launcher that they have in common; tasks that are no ranks are runs of their own."""
    of_both = {
        resource.find_run_id(config.load_config({}), {**environ, name: rank}, "node 4711 1234")
        for name in RANKS
        if name in environ
        for rank in ("0", "1")
    }
    assert all(re.fullmatch(pattern, run_id) for run_id in of_both)
    assert len(of_both) == 1 or STAMP in pattern


def test_jobs_of_different_launchers_and_ports_have_different_run_ids():
    moved = {**RANKED, "MASTER_PORT": "29501"}
    found = [
        resource.find_run_id(config.load_config({}), each, by) for each in (RANKED, moved) for by in ("n 1 5", "n 1 6")
    ]
    assert len(set(found)) == 4
    assert re.fullmatch(STAMP, resource.find_run_id(config.load_config({}), RANKED))  # started by a shell


@pytest.mark.parametrize(("local", "expected"), [("1", True), ("2", False), (None, False)])
def test_ranks_of_several_nodes_without_a_common_id(local, expected):
    """The first rank of the job says so in the log, and no other one, on whatever node: it is one line."""
    environ = {**RANKED, "RANK": "0", **({"LOCAL_WORLD_SIZE": local} if local else {})}
    run_id = resource.find_run_id(config.load_config({}), environ, "n 1 5")
    assert resource.is_of_one_node(run_id, environ) == expected
    assert not resource.is_of_one_node(run_id, {**environ, "RANK": "1", "LOCAL_RANK": "0"})


def test_the_run_id_that_was_given_wins():
    """VERL_OTEL_RUN_ID is stronger than every other source."""
    given_id = config.load_config({"VERL_OTEL_RUN_ID": "mine"})
    assert resource.find_run_id(given_id, {"TORCHELASTIC_RUN_ID": "x", "SLURM_JOB_ID": "1"}) == "mine"


def test_two_runs_of_the_same_second_have_different_ids():
    """Run ids made at the same time differ."""
    assert len({resource.make_run_id({}) for _ in range(50)}) > 45


@pytest.mark.full
@given(st.sampled_from([RAY_JOB, "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"]), st.text(min_size=1))
def test_a_run_id_can_always_be_forwarded(variable, text):
    """Whatever a job is called, the id that is made from it is one that every worker accepts and a folder can have."""
    value = json.dumps({"metadata": {"job_submission_id": text}}) if variable == RAY_JOB else text
    run_id = resource.find_run_id(config.load_config({}), {variable: value})
    assert config.load_config({"VERL_OTEL_RUN_ID": run_id}).run_id == run_id


def test_a_forked_child_keeps_its_role_and_not_its_instance():
    """What was said of the parent holds for a child, whose instance has its process id; that is no attribute."""
    resource.mark_forked()
    values = build(role="agent_loop", **{"verl.index": 3}).attributes
    assert values["service.instance.id"] == f"r1/agent_loop-3-{os.getpid()}"
    assert values["verl.role"] == "agent_loop"
    assert "verl.child" not in values
    resource.clear()
    resource.mark_forked()
    assert (
        build().attributes["service.instance.id"]
        == f"r1/{socket.gethostname()}-{identify_machine()}/process-{os.getpid()}"
    )
