# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Engines become targets of the run, and the user's ``prometheus.yml`` gets one job that discovers them."""

import json
import socket
import sys
import threading
from types import SimpleNamespace

import cloudpickle
import pytest

import verl_otel
from tests.builders import hooks
from tests.fakes.prometheus_server import FakePrometheus
from verl_otel._internal import error_boundary
from verl_otel.cli import discover
from verl_otel.cli.serving import HttpAuth
from verl_otel.integrations import patch
from verl_otel.integrations.verl import prometheus
from verl_otel.session import prometheus_file, prometheus_targets

REPLICA = """
class RolloutReplica:
    def __init__(self, replica_rank, config, model_config, is_reward_model=False, is_teacher_model=False, name_suffix=""):
        self.replica_rank, self.config, self.model_config = replica_rank, config, model_config
        self.is_reward_model, self.is_teacher_model = is_reward_model, is_teacher_model
        self.name_suffix = f"_{name_suffix}" if name_suffix else ""
        self._server_address = None

    async def init_hybrid(self, worker_group):
        await self.launch_servers()
        return "hybrid"

    async def init_hybrid_colocated(self, worker_group, resource_pool):
        await self.launch_servers()

    async def init_colocated(self, resource_pool):
        await self.launch_servers()

    async def init_standalone(self):
        await self.launch_servers()
"""
UTILS = """
written = []

def update_prometheus_config(config, server_addresses, rollout_name=None):
    written.append(server_addresses)
    return "verl's"
"""


@pytest.fixture
def start(tmp_path):
    """Start a session of run r1 that writes below the test's folder."""

    def begin(**settings):
        verl_otel.init(run_dir=tmp_path, run_id="r1", **{"exporters": "file", **settings})

    yield begin
    verl_otel.shutdown()


@pytest.fixture
def replica(loaded):
    """Make a replica of a user's own class below verl's patched base class."""
    module = loaded(REPLICA)
    hooks.install(prometheus.HOOKS, module, "RolloutReplica.init_standalone")

    class Replica(module.RolloutReplica):
        async def launch_servers(self):
            self._server_address = f"10.0.0.7:{8000 + self.replica_rank}"

    def make(rank=0, engine="vllm", metrics=False, **flags):
        config = SimpleNamespace(name=engine, prometheus=SimpleNamespace(enable=metrics))
        return Replica(rank, config, SimpleNamespace(path="/models/Qwen/Qwen3-8B/"), **flags)

    return make


@pytest.fixture
def silent_port():
    """A port of this machine at which nothing answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


def entries(tmp_path):
    """The labels in the run's files by address, without the meta data."""
    found = prometheus_targets.read_folder(tmp_path / "targets")
    return {
        entry["targets"][0]: {key: value for key, value in entry["labels"].items() if not key.startswith("__")}
        for entry in found
    }


async def test_a_replica_that_was_started_is_a_target(start, replica, tmp_path):
    """The engine is listed with the labels of the contract and what tells engines apart; the caller gets verl's result."""
    start()
    assert await replica(1).init_hybrid(None) == "hybrid"
    assert entries(tmp_path) == {
        "10.0.0.7:8001": {
            "job": "verl",
            "instance": "r1/llm_server-1-vllm",
            "verl_role": "llm_server",
            "verl_run_id": "r1",
            "verl_replica_rank": "1",
            "verl_engine": "vllm",
            "verl_model": "Qwen3-8B",
        }
    }


@pytest.mark.parametrize(("enable", "name"), [(True, "policy"), (False, "Qwen3-8B")])
async def test_the_served_name_is_the_label(start, replica, tmp_path, enable, name):
    """With ``rollout.prometheus.enable`` verl passes ``served_model_name`` to the engine, whose own series have it as ``model_name``."""
    start()
    made = replica(1, metrics=enable)
    made.config.prometheus.served_model_name = "team/policy"
    await made.init_hybrid(None)
    assert entries(tmp_path)["10.0.0.7:8001"]["verl_model"] == name


async def test_reward_and_teacher_replicas_have_roles_of_their_own(start, replica, tmp_path):
    """Replicas of rank 0 of every kind stand side by side, each teacher by its key; none takes another's place."""
    start()
    await replica(0).init_standalone()
    await replica(1, is_reward_model=True).init_colocated(None)
    await replica(2, is_teacher_model=True, name_suffix="math").init_colocated(None)
    found = {labels["instance"]: labels["verl_role"] for labels in entries(tmp_path).values()}
    assert found == {
        "r1/llm_server-0-vllm": "llm_server",
        "r1/reward-1-vllm": "reward",
        "r1/teacher_math-2-vllm": "teacher",
    }


async def test_a_replica_that_is_started_again_replaces_itself(start, replica, tmp_path):
    """A new port at the next launch: the old address is gone, the other replica stays."""
    start()
    one, other = replica(0), replica(1)
    await one.init_standalone()
    await other.init_standalone()
    one.launch_servers = lambda: move(one)

    async def move(each):
        each._server_address = "10.0.0.8:9000"

    await one.init_standalone()
    assert sorted(entries(tmp_path)) == ["10.0.0.7:8001", "10.0.0.8:9000"]


async def test_every_engine_of_a_replica_that_decodes_elsewhere_is_a_target(start, replica, tmp_path):
    """With prefill and decode apart, each decoding server is listed too, an IPv6 address in brackets."""
    start()
    made = replica(0)

    def server(address, port):
        async def answer():
            return address, port

        return SimpleNamespace(get_server_address=SimpleNamespace(remote=answer))

    made._decode_servers = [server("10.0.0.9", 1), server("fd00::1", 2)]
    await made.init_standalone()
    assert {address: labels["instance"] for address, labels in entries(tmp_path).items()} == {
        "10.0.0.7:8000": "r1/llm_server-0-vllm",
        "10.0.0.9:1": "r1/llm_server-0-vllm-decode-0",
        "[fd00::1]:2": "r1/llm_server-0-vllm-decode-1",
    }


@pytest.mark.parametrize(
    ("engine", "metrics", "listed"),
    [("sglang", False, 0), ("sglang", True, 1), ("trtllm", True, 0), ("mine", False, 1)],
)
async def test_an_engine_without_readable_metrics_is_no_target(start, replica, tmp_path, engine, metrics, listed):
    """SGLang has metrics only if verl asks for them and TensorRT-LLM none that Prometheus reads: they would be down for ever."""
    start()
    await replica(0, engine=engine, metrics=metrics).init_standalone()
    assert len(entries(tmp_path)) == listed


async def test_nothing_is_written_while_off_or_without_exporters(start, replica, tmp_path):
    """Without a session, and with no exporter, starting a replica leaves no file."""
    await replica(0).init_standalone()
    start(exporters="none")
    await replica(0).init_standalone()
    assert not (tmp_path / "targets").exists()


async def test_a_failure_of_ours_does_not_reach_the_launch(start, replica, swallow, caplog):
    """A replica that is not what we expect is launched as ever, and one line says that it is no target."""
    start()
    made = replica(0)
    del made.config
    assert await made.init_hybrid(None) == "hybrid"
    assert "engine targets" in caplog.text


async def test_a_failure_of_the_launch_is_the_callers(start, replica, tmp_path):
    """What a launch raises is raised, and nothing is listed."""
    start()
    made = replica(0)

    async def broken():
        raise RuntimeError("no GPU")

    made.launch_servers = broken
    with pytest.raises(RuntimeError, match="no GPU"):
        await made.init_standalone()
    assert entries(tmp_path) == {}


@pytest.mark.parametrize(
    ("enabled", "address", "listed"),
    [(True, "10.0.0.7:40241", 1), (True, None, 0), (False, "10.0.0.7:40241", 0)],
    ids=["on", "on, and serves none", "off"],
)
def test_transfer_queue_is_a_target(start, tmp_path, monkeypatch, wait_for, enabled, address, listed):
    """Where verl switches on the metrics of TransferQueue, its page is listed once, also with verl's logger for RL-Insight."""
    start()
    asked = []
    queue = SimpleNamespace(get_metrics_endpoint=lambda: asked.append(1) or address)
    monkeypatch.setitem(sys.modules, "transfer_queue", queue)
    for _ in range(2):
        prometheus.add_transfer_queue({"transfer_queue": {"metrics": {"enabled": enabled}}})
        wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "verl-otel-transfer-queue"])
    assert len(asked) == 2 * enabled
    assert [(labels["instance"], labels["verl_role"]) for labels in entries(tmp_path).values()] == [
        (f"r1/transfer_queue-{address}", "transfer_queue")
    ] * listed


async def test_the_end_of_the_process_takes_its_engines_away(start, replica, tmp_path):
    """Engines leave with the process that started them, also where it serves no metrics itself."""
    start()
    await replica(0).init_standalone()
    verl_otel.shutdown()
    assert list((tmp_path / "targets").glob("*.json")) == []


@pytest.fixture
def utils(loaded):
    """The module with verl's function that writes, and one that has imported it by name before we came."""
    module = loaded(UTILS)
    early = loaded(f"from {module.__name__} import update_prometheus_config")
    prometheus._patch_update(module)
    late = loaded(f"from {module.__name__} import update_prometheus_config")
    return SimpleNamespace(utils=module, early=early, late=late)


@pytest.mark.parametrize("caller", ["utils", "early", "late"])
def test_prometheus_yml_can_be_kept(start, utils, caller, tmp_path, caplog):
    """Whoever calls verl's function, by whatever name: nothing is written, the engines are listed, one line says what to do."""
    start(keep_prometheus_yml="keep")
    update = getattr(utils, caller).update_prometheus_config
    config = SimpleNamespace(file="/tmp/prometheus.yml", port=9090)
    assert update(config, ["10.0.0.1:1", "10.0.0.2:2"], "vllm") is None
    update(config, server_addresses=["10.0.0.1:1", "10.0.0.2:2"], rollout_name="vllm")
    assert utils.utils.written == []
    assert set(entries(tmp_path)) == {"10.0.0.1:1", "10.0.0.2:2"}
    (line,) = [each.getMessage() for each in caplog.records if "prometheus.yml" in each.getMessage()]
    assert f"file_sd_configs: [{{files: ['{tmp_path}/targets/*.json']}}]" in line
    assert "\n" not in line


@pytest.fixture
def logged(caplog, wait_for):
    """Wait for the one line of the thread that merges; returns it."""

    def find():
        lines = [each.getMessage() for each in caplog.records if "prometheus.yml" in each.getMessage()]
        assert len(lines) < 2, lines
        return lines

    return lambda: wait_for(find, 30, 0.02) and find()[0]


@pytest.mark.parametrize("caller", ["utils", "early", "late"])
def test_a_job_is_merged_into_prometheus_yml(start, utils, caller, tmp_path, logged, silent_port):
    """Under each name of verl's function: the user's lines stay, one job reads the targets of the runs, and one line is logged."""
    start()
    file = tmp_path / "prometheus.yml"
    file.write_text("scrape_configs:\n  - job_name: mine # mine\n")
    config = SimpleNamespace(file=str(file), port=silent_port)
    assert getattr(utils, caller).update_prometheus_config(config, ["10.0.0.1:1", "10.0.0.2:2"], "vllm") is None
    line = logged()
    assert "has the job verl-otel; no Prometheus answers" in line
    assert "\n" not in line
    assert prometheus_file.read_sources(file) == [f"{tmp_path}/targets/*.json"]
    assert file.read_text().startswith("scrape_configs:\n  - job_name: mine # mine\n")
    assert set(entries(tmp_path)) == {"10.0.0.1:1", "10.0.0.2:2"}
    assert utils.utils.written == []


def test_the_prometheus_at_the_port_is_reloaded(start, utils, tmp_path, logged):
    """The port of verl's configuration is asked, once, and has the job then."""
    start()
    file = tmp_path / "prometheus.yml"
    file.write_text("scrape_configs: []\n")
    server = FakePrometheus(file)
    try:
        port = int(server.url.rpartition(":")[2])
        utils.utils.update_prometheus_config(SimpleNamespace(file=str(file), port=port), ["10.0.0.1:1"], "vllm")
        assert f"has the job verl-otel; the Prometheus at {server.url} has loaded it" in logged()
        assert server.reloads == 1
        assert server.jobs == ["verl-otel"]
    finally:
        server.close()


def test_no_file_is_made_where_there_is_none(start, utils, tmp_path, logged, silent_port):
    """A machine without this file has no Prometheus that reads it: nothing is created, and one line says so."""
    start()
    file = tmp_path / "prometheus.yml"
    utils.utils.update_prometheus_config(SimpleNamespace(file=str(file), port=silent_port), ["a:1"], "vllm")
    assert "no job was added" in logged()
    assert not file.exists()


@pytest.mark.parametrize("config", [None, SimpleNamespace(), SimpleNamespace(file=3, port="x")])
def test_an_unknown_configuration_is_left_alone(start, utils, config, tmp_path):
    """The object may change in verl: without a file and a port nothing is merged, and the engines are listed."""
    start()
    assert utils.utils.update_prometheus_config(config, ["a:1"], "vllm") is None
    assert set(entries(tmp_path)) == {"a:1"}


async def test_known_replicas_keep_their_labels(start, replica, utils, tmp_path):
    """The addresses that verl hands over again are those of its replicas: they stay listed once, with rank and role."""
    start()
    await replica(3).init_standalone()
    utils.utils.update_prometheus_config(None, ["10.0.0.7:8003"], "vllm")
    assert entries(tmp_path)["10.0.0.7:8003"]["verl_replica_rank"] == "3"


def test_verl_writes_where_the_user_wants_it(start, utils):
    """With VERL_OTEL_KEEP_PROMETHEUS_YML=verl, and while nothing is recorded, verl's own function runs."""
    assert utils.late.update_prometheus_config(None, ["a:1"]) == "verl's"
    start(keep_prometheus_yml="verl")
    assert utils.late.update_prometheus_config(None, ["b:1"], rollout_name="vllm") == "verl's"
    assert utils.utils.written == [["a:1"], ["b:1"]]


def test_everything_is_put_back(utils):
    """Undone, the module and those that had imported the function early have verl's again."""
    assert getattr(utils.early.update_prometheus_config, patch.PATCHED)
    patch.undo_all()
    assert not hasattr(utils.utils.update_prometheus_config, patch.PATCHED)
    assert utils.early.update_prometheus_config is utils.utils.update_prometheus_config


# -- the merge on every node that has the file; nodes without it, without verl-otel or without an answer cost nothing --

FILE, PORT, FOLDER, RUN = "/etc/prometheus/prometheus.yml", 9090, "/runs/targets", "r1"


@pytest.fixture
def cluster(monkeypatch):
    """A Ray of four nodes, this one among them: ``answers`` holds the line of each other node, or what it raises."""
    asked, answers = [], {}

    class Task:
        def __init__(self, function, resources=None):
            self.function, self.resources = function, resources

        def options(self, resources):
            return Task(self.function, resources)

        def remote(self):
            cloudpickle.dumps(self.function)
            (name,) = self.resources
            asked.append(name.removeprefix("node:"))
            return asked[-1]

    def get(reference, timeout):
        if isinstance(answers[reference], Exception):
            raise answers[reference]
        return answers[reference]

    fake = SimpleNamespace(
        is_initialized=lambda: True,
        nodes=lambda: [
            {"Alive": number != 3, "NodeID": str(number), "NodeManagerAddress": f"10.0.0.{number}"}
            for number in range(5)
        ],
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "0"),
        remote=lambda **_: Task,
        wait=lambda references, num_returns, timeout: ([each for each in references if each in answers], []),
        get=get,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    return SimpleNamespace(ray=fake, asked=asked, answers=answers)


def merge():
    return list(prometheus._merge_elsewhere(FILE, PORT, FOLDER, RUN))


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        ({"10.0.0.1": "", "10.0.0.2": "has", "10.0.0.4": "stays"}, ["node 10.0.0.2: has", "node 10.0.0.4: stays"]),
        ({"10.0.0.4": "has"}, ["node 10.0.0.4: has"]),
        ({"10.0.0.1": RuntimeError("node died"), "10.0.0.2": "has"}, ["node 10.0.0.2: has"]),
    ],
    ids=["all answer", "two do not answer", "one dies"],
)
def test_every_other_node_is_asked(cluster, swallow, answers, lines):
    """Living nodes but this one; one line for each that has the file, whatever becomes of the others."""
    cluster.answers |= answers
    assert merge() == lines
    assert cluster.asked == ["10.0.0.1", "10.0.0.2", "10.0.0.4"]


def test_without_a_cluster_no_node_is_asked(cluster):
    cluster.ray.is_initialized = lambda: False
    assert merge() == []


def test_no_node_has_the_file(cluster, caplog, tmp_path):
    """One line is logged."""
    error_boundary.reset()
    prometheus._merge_everywhere(str(tmp_path / "none.yml"), PORT, FOLDER, RUN)
    assert "no node has" in caplog.text
    assert len(caplog.records) == 1


@pytest.fixture
def discovery(monkeypatch):
    """The discovery of this node: ``discovery(entries, ...)`` serves one list after the other, then the last one each time. Without a call there is none."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(prometheus, "DISCOVERY", f"http://127.0.0.1:{free.getsockname()[1]}/")
    monkeypatch.setattr(prometheus, "_PAUSE", 0.0)
    monkeypatch.setattr(discover, "FRESH_SECONDS", 0.0)
    started = []

    def serve(*lists):
        found = list(lists)
        targets = discover.TargetList(lambda: found.pop(0) if len(found) > 1 else found[0])
        started.append(discover.Server(("127.0.0.1", 0), HttpAuth(), targets))
        started[0].start()
        monkeypatch.setattr(prometheus, "DISCOVERY", started[0].url)
        return started[0].url

    yield serve
    for each in started:
        each.close()


ENTRY = {"targets": ["a:1"], "labels": {"verl_run_id": RUN}}


@pytest.mark.parametrize("lists", [([ENTRY],), ([], [], [ENTRY])], ids=["at once", "when it is listed"])
def test_a_node_with_a_discovery_is_given_its_url(tmp_path, silent_port, discovery, lists):
    """Where the folder is not shared, and `verl-otel discover --serve` lists the run, the job asks that."""
    file = tmp_path / "prometheus.yml"
    file.write_text("scrape_configs: []\n")
    url = discovery(*lists)
    line = prometheus.merge_here(str(file), silent_port, str(tmp_path), RUN)
    assert line.startswith(f"{file} has the job verl-otel")
    assert "not in" not in line
    assert prometheus_file.read_sources(file) == [url]


def test_a_discovery_of_another_cluster_is_not_used(tmp_path, silent_port, discovery):
    """It does not list the run: the job has the folder, and the line says what to do."""
    file = tmp_path / "prometheus.yml"
    file.write_text("scrape_configs: []\n")
    discovery([{"targets": ["a:1"], "labels": {"verl_run_id": "other"}}])
    assert "are not in" in prometheus.merge_here(str(file), silent_port, str(tmp_path), RUN)
    assert prometheus_file.read_sources(file) == [f"{tmp_path}/*.json"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_folder_that_is_not_shared_is_reported(tmp_path, discovery, shared):
    """Where the targets of the run are not on the node of the file, the line says what to do."""
    file = tmp_path / "prometheus.yml"
    file.write_text("scrape_configs: []\n")
    if shared:
        (tmp_path / "r1@node-0-1.json").write_text("[]")
    line = prometheus.merge_here(str(file), 1, str(tmp_path), RUN)
    assert ("verl-otel discover --serve" in line) is not shared
    assert "\n" not in line


REAL = """
import importlib, json, sys
from verl_otel.integrations.patch import PATCHED
if sys.argv[1] == "late":
    import verl.workers.rollout.llm_server
    from verl_otel import integrations
    integrations.install()
names = ["verl.workers.rollout.utils", "verl.workers.rollout.llm_server", "verl.trainer.ppo.v1.trainer_separate_async",
         "verl.experimental.fully_async_policy.fully_async_rollouter"]
found = {name: hasattr(importlib.import_module(name).update_prometheus_config, PATCHED) for name in names}
from verl.workers.rollout.replica import RolloutReplica
found["starts"] = all(hasattr(getattr(RolloutReplica, name), PATCHED)
                      for name in ("init_hybrid", "init_hybrid_colocated", "init_colocated", "init_standalone"))
print("RESULT " + json.dumps(found))
"""


@pytest.mark.verl
@pytest.mark.parametrize("when", ["early", "late"])
def test_every_call_site_of_real_verl_is_ours(clean_python, when, tmp_path):
    """In the installed verl, whoever imports the function has ours, whether we were loaded before or after."""
    pytest.importorskip("verl", reason="verl is not installed in this environment")
    switch = {"VERL_OTEL_ENABLED": "1" if when == "early" else "0", "VERL_OTEL_RUN_DIR": str(tmp_path)}
    done = clean_python("-c", REAL, when, seconds=200, **switch)
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    assert all(found.values()), found
