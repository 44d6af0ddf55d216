# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The ``file_sd`` files: one for each process, whole at any time, gone at the end; what of others' entries reaches Prometheus."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import verl_otel
from tests.builders.environments import inherit
from verl_otel import config, resource, session
from verl_otel.session import prometheus_targets

DEAD = 999_999_999
"""A process id that no process has."""


@pytest.fixture
def settings(tmp_path):
    """The settings of run r1."""
    return config.load_config({}, run_dir=tmp_path, run_id="r1")


@pytest.fixture
def folder(settings):
    """The folder of the targets, in which no process has looked for dead ones yet."""
    folder = settings.run_dir / "targets"
    folder.mkdir()
    return folder


@pytest.fixture
def own_resource(settings):
    """The resource of this process."""
    resource.clear()
    resource.describe({"verl.role": "trainer", "verl.index": 0})
    yield resource.build_resource(settings)
    resource.clear()


@pytest.fixture
def entry(settings):
    """Make an entry of this process for an instance."""

    def make(instance, address="a:1"):
        return prometheus_targets.make_target(resource.build_resource(settings), address, instance=instance)

    return make


def foreign(pid, host=None, address="127.0.0.1:1", **labels):
    """The entry of another process."""
    host = host or socket.gethostname()
    meta = {"__meta_verl_otel_pid": str(pid), "__meta_verl_otel_host": host}
    own = {"job": "verl", "instance": f"r1/x-{pid}", "verl_role": "x", "verl_run_id": "r1"}
    return {"targets": [address], "labels": {**own, **meta, **labels}}


def killed_trainer(pid, **labels):
    return foreign(pid, address="t:1", verl_role="trainer", **labels)


def write(folder, name, *entries):
    path = folder / f"{name}.json"
    path.write_text(json.dumps(entries))
    return path


def addresses(folder, **options):
    return [entry["targets"][0] for entry in prometheus_targets.read_folder(folder, **options)]


def listed(folder):
    """What Prometheus reads: the addresses in all files."""
    return sorted(entry["targets"][0] for path in folder.glob("*.json") for entry in json.loads(path.read_text()))


# -- the file of this process --


def test_an_entry_has_the_labels_of_the_contract(settings, own_resource):
    """The file lists this process with the labels that every path of telemetry shares; the rest is meta data."""
    prometheus_targets.add_target(settings, own_resource, "127.0.0.1:9000")
    (path,) = (settings.run_dir / "targets").glob("r1@*.json")
    (entry,) = json.loads(path.read_text())
    assert entry["targets"] == ["127.0.0.1:9000"]
    labels = {key: value for key, value in entry["labels"].items() if not key.startswith("__meta_")}
    assert labels == {"job": "verl", "instance": "r1/trainer-0", "verl_role": "trainer", "verl_run_id": "r1"}


def test_the_job_is_the_name_that_the_user_gives(settings, monkeypatch):
    """OTEL_SERVICE_NAME is the job label, as it is on the Collector's path."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    prometheus_targets.add_target(settings, resource.build_resource(settings), "127.0.0.1:9000")
    (entry,) = prometheus_targets.read_own_targets(settings)
    assert entry["labels"]["job"] == "training"


def test_a_process_answers_for_its_engines(settings, entry):
    """Entries of several instances stand side by side, the same instance is replaced, and all are removed with the process, also if that is reported twice."""
    prometheus_targets.add_targets(settings, [entry("r1/trainer-0", "a:1")])
    prometheus_targets.add_targets(settings, [entry("r1/llm_server-0", "b:1"), entry("r1/llm_server-1", "c:1")])
    prometheus_targets.add_targets(settings, [entry("r1/llm_server-1", "d:1")])
    folder = settings.run_dir / "targets"
    assert listed(folder) == ["a:1", "b:1", "d:1"]
    assert prometheus_targets.read_own_targets(settings) == prometheus_targets.read_folder(folder)
    prometheus_targets.remove_target(settings)
    prometheus_targets.remove_target(settings)
    assert not list(folder.glob("*.json"))


def test_the_end_of_a_run_takes_everything_away(settings, own_resource, folder):
    """When the run has ended its files are removed, whichever process wrote them; other runs keep theirs, also one whose name begins the same."""
    prometheus_targets.add_target(settings, own_resource, "a:1")
    write(folder, "r1@elsewhere-0-5", foreign(5, "elsewhere"))
    others = {write(folder, "r1.2@node-0-1", foreign(1)), write(folder, "r2@node-0-1", foreign(1))}
    prometheus_targets.remove_run(settings)
    assert set(folder.glob("*.json")) == others


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path, own_resource, caplog):
    """Where the file cannot be written one line is logged and the process goes on."""
    (tmp_path / "file").write_text("")
    broken = config.load_config({}, run_dir=tmp_path / "file", run_id="r1")
    prometheus_targets.add_target(broken, own_resource, "i:1")
    prometheus_targets.remove_target(broken)
    prometheus_targets.remove_run(broken)
    (record,) = caplog.records
    assert record.getMessage().endswith("Prometheus will not find this process")


PROCESS = """
import sys
import verl_otel
verl_otel.init()
from verl_otel import session
with verl_otel.span("work"):
    pass
session.flush()
print("ready", flush=True)
sys.stdin.read()
verl_otel.shutdown()
"""


@pytest.mark.full
def test_every_process_of_a_fixed_port_is_listed_and_scraped(tmp_path):
    """The first process has the port, the others have free ones; the targets files have all three, and one line says why."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = inherit("PYTEST") | {
        "VERL_OTEL_ENABLED": "1",
        "VERL_OTEL_EXPORTERS": "prometheus",
        "VERL_OTEL_PROMETHEUS_PORT": str(port),
        "VERL_OTEL_RUN_DIR": str(tmp_path),
        "VERL_OTEL_RUN_ID": "r1",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", PROCESS], env=environment, **pipes) for _ in range(3)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
        entries = prometheus_targets.read_folder(tmp_path / "targets")
        pages = {address: _scrape(address) for address in listed(tmp_path / "targets")}
    finally:
        errors = [process.communicate("", timeout=30)[1] for process in processes]
    assert {entry["labels"]["__meta_verl_otel_pid"] for entry in entries} == {str(process.pid) for process in processes}
    assert len(pages) == 3
    assert f"127.0.0.1:{port}" in pages
    assert all("target_info" in page for page in pages.values())
    assert sorted(text.count(f"VERL_OTEL_PROMETHEUS_PORT={port} is in use") for text in errors) == [0, 1, 1]
    assert not list((tmp_path / "targets").glob("*.json"))


def _scrape(address):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=60) as answer:
        return answer.read().decode()


# -- the address --


def address(**settings):
    return prometheus_targets.make_address(config.load_config({}, **settings), 9000)


def test_the_address_is_the_one_that_is_bound():
    """One address is bound: that one is advertised, an IPv6 address in brackets."""
    assert address() == "127.0.0.1:9000"
    assert address(prometheus_host="10.1.2.3") == "10.1.2.3:9000"
    assert address(prometheus_host="::1") == address(prometheus_host="[::1]") == "[::1]:9000"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_bound_to_every_address_the_nodes_own_is_advertised(publisher, host):
    """0.0.0.0 cannot be reached: the address that Ray knows is advertised, else that of the outgoing route."""
    publisher.host = "10.0.0.7"
    assert address(prometheus_host=host) == "10.0.0.7:9000"
    publisher.host = "fd00::7"
    assert address(prometheus_host=host) == "[fd00::7]:9000"
    publisher.host = ""
    advertised = address(prometheus_host=host).rpartition(":")[0]
    assert advertised not in ("", "0.0.0.0", "::", "[::]")
    assert advertised == socket.gethostname() or socket.inet_aton(advertised)


def test_the_user_may_say_how_others_reach_it(monkeypatch):
    """VERL_OTEL_PROMETHEUS_ADVERTISE wins, whatever is bound."""
    monkeypatch.setenv("VERL_OTEL_PROMETHEUS_ADVERTISE", "node-7.example")
    advertised = config.load_config(prometheus_host="0.0.0.0")
    assert prometheus_targets.make_address(advertised, 9000) == "node-7.example:9000"


# -- publishers --


class RecordingPublisher:
    """Records its calls."""

    def __init__(self, address=""):
        self.host = address
        self.calls = []

    def address(self):
        return self.host

    def add(self, config, entries):
        self.calls.append(("add", config.run_id, [entry["targets"][0] for entry in entries]))

    def remove(self, config):
        self.calls.append(("remove", config.run_id))

    def end(self, config):
        self.calls.append(("end", config.run_id))


@pytest.fixture
def publisher(monkeypatch):
    """Have one publisher, for this test only."""
    publisher = RecordingPublisher()
    monkeypatch.setattr(prometheus_targets, "_publishers", [])
    prometheus_targets.add_target_publisher(publisher)
    prometheus_targets.add_target_publisher(publisher)
    return publisher


def test_publishers_are_called_once(settings, entry, publisher):
    """A mirror hears of each change, once, also where the file cannot be written."""
    prometheus_targets.add_targets(settings, [entry("r1/trainer-0")])
    prometheus_targets.remove_target(settings)
    prometheus_targets.remove_run(settings)
    assert publisher.calls == [("add", "r1", ["a:1"]), ("remove", "r1"), ("end", "r1")]
    publisher.calls.clear()
    (settings.run_dir / "file").touch()
    broken = config.load_config({}, run_dir=settings.run_dir / "file", run_id="r1")
    prometheus_targets.add_targets(broken, [entry("r1/trainer-0")])
    assert publisher.calls == [("add", "r1", ["a:1"])]


def test_a_session_tells_and_takes_back(tmp_path, publisher):
    """A process that serves is published when its port is open, and removed once when it ends."""
    verl_otel.init(exporters="prometheus", run_dir=tmp_path, run_id="r1", drain_interval=60)
    ((what, run_id, (target,)),) = publisher.calls
    verl_otel.shutdown()
    assert (what, run_id) == ("add", "r1")
    assert target.startswith("127.0.0.1:")
    assert publisher.calls[1:] == [("remove", "r1")]
    assert listed(tmp_path / "targets") == []


def test_a_process_that_ends_before_its_first_drain_is_not_announced(monkeypatch, publisher, tmp_path):
    """A process whose first record is sent at its end, and which therefore serves nothing any more, adds no entry."""
    for name, value in (("ENABLED", "1"), ("RUN_DIR", str(tmp_path)), ("EXPORTERS", "prometheus")):
        monkeypatch.setenv(f"VERL_OTEL_{name}", value)
    monkeypatch.setenv("VERL_OTEL_DRAIN_INTERVAL", "60")
    session.start_lazily()
    with verl_otel.step(1):
        pass
    verl_otel.shutdown()
    assert [call[0] for call in publisher.calls] == ["remove"]


# -- dead processes --


def test_who_starts_removes_the_dead_and_leaves_the_others(settings, own_resource, folder):
    """Processes that were killed on this machine go, of any run; those of other machines and containers, and what a user has added, stay."""
    write(folder, "r0@node-0-1", foreign(DEAD, address="x:1"))
    write(folder, "r00@node-0-2", foreign(os.getppid(), address="y:1"))
    write(folder, "r1@node-0-3", foreign(DEAD, "elsewhere", "z:1"))
    write(folder, "r1@node-7-4", foreign(DEAD, address="c:1", __meta_verl_otel_machine="another"))
    write(folder, "mine", {"targets": ["j:1"]}, foreign(DEAD, address="k:1"))
    prometheus_targets.add_target(settings, own_resource, "n:1")
    assert listed(folder) == ["c:1", "j:1", "n:1", "y:1", "z:1"]


def test_a_killed_trainer_stays_for_a_while(settings, own_resource, folder, monkeypatch):
    """Prometheus is to see that it is gone: who starts in another run lets it stay for a quarter of an hour, and does not write it twice."""
    path = write(folder, "r1@node-0-1", killed_trainer(DEAD))
    write(folder, "r1@node-0-2", foreign(DEAD))
    other = config.load_config({}, run_dir=settings.run_dir, run_id="r2")
    neighbor = prometheus_targets.make_target(own_resource, "n:1", verl_run_id="r2")
    prometheus_targets.add_targets(other, [neighbor])
    assert listed(folder) == ["n:1", "t:1"]
    assert addresses(folder, linger=True) == ["t:1", "n:1"]
    assert addresses(folder) == ["n:1"]
    before = path.stat().st_ino
    (folder / prometheus_targets.CLEANED).unlink()
    prometheus_targets.add_targets(other, [neighbor])
    assert path.stat().st_ino == before
    monkeypatch.setattr(prometheus_targets, "LINGER", 0)
    assert addresses(folder, linger=True) == ["n:1"]
    (folder / prometheus_targets.CLEANED).unlink()
    prometheus_targets.add_targets(other, [neighbor])
    assert not path.exists()


def test_a_resumed_run_forgets_its_killed_trainer(settings, own_resource, folder):
    """As soon as another trainer of the run lives, the one that was killed is off the list."""
    write(folder, "r1@node-0-1", killed_trainer(DEAD))
    prometheus_targets.add_target(settings, own_resource, "n:1")
    assert listed(folder) == ["n:1"]


def test_a_restarted_trainer_that_is_killed_again_stays_again(folder, monkeypatch):
    """It has the same instance, but another process: its time on the list begins with its own death."""
    write(folder, "r1", killed_trainer(DEAD))
    monkeypatch.setattr(prometheus_targets, "_found_dead", {})
    assert addresses(folder, linger=True) == ["t:1"]
    hour_ago = {key: now - 3600 for key, now in prometheus_targets._found_dead.items()}
    monkeypatch.setattr(prometheus_targets, "_found_dead", hour_ago)
    assert addresses(folder, linger=True) == []
    write(folder, "r1", killed_trainer(DEAD - 1))
    assert addresses(folder, linger=True) == ["t:1"]


def test_a_killed_trainer_goes_when_its_address_is_taken(settings, own_resource, folder):
    """A port is given out again: who answers there is not the trainer that was killed. Another machine has a loopback of its own."""
    path = write(folder, "r1@node-0-1", killed_trainer(DEAD))
    write(folder, "r3@node-0-1", foreign(1, host="elsewhere", address="t:1"))
    assert addresses(folder, linger=True) == ["t:1", "t:1"]
    other = config.load_config({}, run_dir=settings.run_dir, run_id="r2")
    prometheus_targets.add_targets(other, [prometheus_targets.make_target(own_resource, "t:1", verl_run_id="r2")])
    assert not path.exists()


@pytest.mark.parametrize(("since", "stays"), [("9999999999", False), ("x", True), ("now", True)])
def test_a_time_of_death_that_cannot_be_is_no_reason_to_stay(folder, since, stays):
    """A clock that was wrong when the trainer was found dead does not keep it on the list; a damaged time is replaced."""
    since = str(int(time.time())) if since == "now" else since
    write(folder, "r1", killed_trainer(DEAD, __meta_verl_otel_gone=since))
    assert addresses(folder, linger=True) == ["t:1"] * stays


# -- what others have written --

HOSTILE = {
    "__address__": "10.0.0.1:22",
    "__scheme__": "https",
    "__param_target": "x",
    "__scrape_interval__": "1ms",
    "__meta_verl_otel_other": "x",
    "___": "x",
    "": "x",
    "a b": "x",
    "a\n": "x",
    "0a": "x",
    "ä": "x",
    "l" * 200: "x",
}
GOOD = {"job": "verl", "instance": "r1/x", "_own": "y", "__meta_verl_otel_pid": "7", "__meta_verl_otel_gone": "9"}


def test_labels_that_configure_a_scrape_are_left_out(tmp_path):
    """Labels that begin with ``__``, but for our own, and names that Prometheus does not have, are left out; the others stay."""
    write(tmp_path, "r1", {"targets": ["a:1"], "labels": {**HOSTILE, **GOOD}})
    assert prometheus_targets.read_folder(tmp_path) == [{"targets": ["a:1"], "labels": GOOD}]


def test_values_are_bounded_text():
    """A value is cut to a length that Prometheus takes, and can be written as UTF-8; there are not too many labels."""
    entry = prometheus_targets.sanitize_target(
        {"targets": ["a:1"], "labels": {"a": "x" * 100_000, "b": "\ud800", "c": "ü\n"}}
    )
    assert entry["labels"] == {"a": "x" * prometheus_targets.MAX_VALUE, "b": "?", "c": "ü\n"}
    many = prometheus_targets.sanitize_target(
        {"targets": ["a:1"], "labels": {f"l{number}": "" for number in range(1_000)}}
    )
    assert len(many["labels"]) == prometheus_targets.MAX_LABELS


GOOD_ADDRESSES = ["a:1", "node_7.example-1.com:9000", "127.0.0.1:65535", "[::1]:80", "[fe80::1%eth0]:80"]
BAD_ADDRESSES = [
    "a", "a:", ":1", "a:0", "a:65536", "a:1/metrics", "http://a:1", "u:p@a:1", "a b:1", "a:1\n", "::1:80", "[a]x:1",
    "a:\uff11", "-a:1", "a" * 300 + ":1", "a\x1b[2J:1",
]  # fmt: skip


def test_addresses_are_kept_and_what_is_none_is_left_out():
    """Names, IPv4 and IPv6 addresses with a port are passed on; a path, a scheme, a user, or what is no port, is no address."""
    entry = prometheus_targets.sanitize_target({"targets": [*BAD_ADDRESSES, *GOOD_ADDRESSES]})
    assert entry == {"targets": GOOD_ADDRESSES, "labels": {}}


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"targets": [BAD_ADDRESSES[0]]},
        {"targets": "a:1"},
        {"targets": [9]},
        {"targets": ["a:1"], "labels": None},
        {"targets": ["a:1"], "labels": {"verl_run_id": {}, "verl_role": "trainer"}},
    ],
)
def test_a_damaged_entry_keeps_no_other_out(folder, entry):
    """Of what is no entry nothing is passed on; the others of the file are."""
    assert prometheus_targets.sanitize_target(entry) is None
    write(folder, "r1", entry, {"targets": ["h:1"]})
    assert addresses(folder) == ["h:1"]


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', "null", "\x00\xff"])
def test_a_damaged_file_hides_no_other(settings, own_resource, folder, text):
    """A file that is no list of targets reads as empty; this process, whose file it was, writes it again."""
    prometheus_targets.targets_path(settings).write_bytes(text.encode("latin-1"))
    write(folder, "mine", {"targets": ["j:1"]})
    assert addresses(folder) == ["j:1"]
    prometheus_targets.add_target(settings, own_resource, "f:1")
    assert addresses(folder) == ["j:1", "f:1"]


def test_of_processes_that_start_at_once_one_looks_for_dead_ones(settings, own_resource, folder, monkeypatch):
    """The files of 1,665 processes are not read by each of them; after ten seconds the next one that starts looks again."""
    reads = []
    read = prometheus_targets.read_targets
    monkeypatch.setattr(prometheus_targets, "read_targets", lambda path: reads.append(path) or read(path))
    monkeypatch.setattr(prometheus_targets, "CLEAN_EVERY", 3600.0)
    for _ in range(5):
        prometheus_targets.add_target(settings, own_resource, "a:1")
    assert len(reads) == 1
    dead = write(folder, "r1@node-0-2", foreign(DEAD))
    before = time.time() - prometheus_targets.CLEAN_EVERY
    os.utime(folder / prometheus_targets.CLEANED, (before, before))
    prometheus_targets.add_target(settings, own_resource, "a:1")
    assert not dead.exists()
