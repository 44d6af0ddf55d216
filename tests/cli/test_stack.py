# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel stack`` before anything is started: what is missing, taken or wrong is said plainly."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from verl_otel.cli import serving, stack, stack_components
from verl_otel.cli.stack_components import Plan
from verl_otel.errors import VerlOtelError
from verl_otel.health import profiles, rules_file
from verl_otel.session.prometheus_job import make_pattern


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch, runs):
    """A machine with none of the programs, and nothing in the environment that speaks of them."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for listener in stack_components.LISTENERS.values():
        monkeypatch.delenv(listener.variable, raising=False)


@pytest.fixture
def programs(tmp_path):
    """Programs that exist, and are never started here."""
    for name in ("otelcol", "prometheus"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    return "--otelcol", tmp_path / "otelcol", "--prometheus", tmp_path / "prometheus"


def test_missing_programs_are_named_with_the_ways_to_them(call, tmp_path):
    """Without programs the code is 2 and one message says of each where was looked, how to get it, and which option names it."""
    done = call("stack", "--data", tmp_path / "data")
    assert done.code == 2
    for names, option in (("otelcol-verl or otelcol-contrib", "--otelcol"), ("prometheus", "--prometheus")):
        assert f"no {names} in the path or in {tmp_path / 'cache'}" in done.err
        assert f"{option} PATH" in done.err
    assert "make collector" in done.err


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_program_that_another_user_may_have_put_into_the_cache_is_not_run(tmp_path, monkeypatch, mode):
    """The cache of a user without a home folder is below ``/tmp``, where others may make its folder first."""
    home = tmp_path / f"verl-otel-{os.getuid()}"
    monkeypatch.setattr(stack.safe_files, "find_cache", lambda: home / "cache")
    path = stack.cache_folder() / "prometheus"
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    home.chmod(mode)
    with nullcontext() if mode == 0o700 else pytest.raises(VerlOtelError, match="Prometheus is missing"):
        assert stack.find_program(stack.PROMETHEUS) == path


@pytest.mark.parametrize("status", [200, 500])
def test_a_prometheus_without_web_pages_is_shown_as_an_api(status):
    """The pages of a Prometheus that was built without them answer 500."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/query" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert stack_components.has_web_pages(url) == (status == 200)
        server.shutdown()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--data", "file/below"), "--data {tmp}/file/below"),
        (("--run-dir", "file/below"), "--run-dir {tmp}/file/below"),
        (("--otelcol", "no"), "--otelcol no: there is no program"),
        (("--grafana-home", "."), "no bin/grafana"),
        *(
            (("--alertmanager", address), f"--alertmanager {address}: give HOST:PORT")
            for address in ("http://127.0.0.1:9093", "alertmanager", ":9093", "10.0.0.1:9093/alerts")
        ),
        *((("--" + name, "x"), f"--{name} goes with --cluster") for name in ("address", "host", "tls-cert", "tls-key", "tls-ca")),
        (("--cluster", "--address", "127.0.0.1:1", "--tls-cert", "x"), "--tls-cert and --tls-key go together"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_before_anything_is_started(call, tmp_path, programs, monkeypatch, options, text):
    """A folder that cannot be made, a program or address that is none, an option without effect: code 2, and the option is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = call("stack", "--data", tmp_path / "data", "--free-ports", *programs, *options)
    assert done.code == 2
    assert text.format(tmp=tmp_path) in done.err


def test_a_taken_port_is_named_with_what_moves_it(call, tmp_path, programs, monkeypatch):
    """When somebody listens already, the code is 2 and the message names the port, its use and its variable."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("OTELCOL_HTTP", f"127.0.0.1:{port}")
        done = call("stack", "--data", tmp_path / "data", *programs)
    assert done.code == 2
    assert f"127.0.0.1:{port} (OTLP/HTTP)" in done.err or "OTLP/gRPC" in done.err  # a Collector may run on this machine
    assert "--free-ports" in done.err


@pytest.mark.full
def test_a_part_that_cannot_run_is_told_with_its_log(call, tmp_path, programs):
    """A program that ends at once is said to have, with its code; the code of the command is 1."""
    done = call("stack", "--data", tmp_path / "data", "--free-ports", *programs)
    assert done.code == 1
    assert "the Collector has ended with code 3" in done.err
    assert str(tmp_path / "data" / "otelcol.log") in done.err


@pytest.mark.full
def test_a_folder_that_is_in_use_is_refused_with_its_holder(call, tmp_path, programs):
    """A second stack on the folder of a running one is code 2; it says who holds it and has written nothing there."""
    data = tmp_path / "data"
    data.mkdir()
    with stack.hold_folder(data):
        (data / "prometheus.yml").write_text("of the running one")
        done = call("stack", "--data", data, "--free-ports", *programs)
        assert done.code == 2
        assert f"--data {data} is in use by process {os.getpid()} on {socket.gethostname()}" in done.err
        assert (data / "prometheus.yml").read_text() == "of the running one"
    assert (
        call("stack", "--data", data, "--free-ports", *programs).code == 1
    )  # free again: the programs are run, and end


def test_a_folder_without_locks_is_taken(tmp_path, monkeypatch):
    """On a disk that knows no locks the stack runs all the same."""

    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with stack.hold_folder(tmp_path):
        assert (tmp_path / ".lock").exists()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_more_is_started_once_it_is_to_end(tmp_path, programs, wait_for, number):
    """A signal while the Collector is not ready yet, of a closed terminal as well: it is ended, Prometheus never begins, the code is 0."""
    _, otelcol, _, prometheus = programs
    otelcol.write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/otelcol.pid\nexec {sys.executable} -c 'import time; time.sleep(600)'\n"
    )
    prometheus.write_text(f"#!/bin/sh\n: >{tmp_path}/began\nexit 3\n")
    command = [Path(sys.executable).with_name("verl-otel"), "stack", "--data", tmp_path / "data", "--free-ports"]
    process = subprocess.Popen(
        [*command, *programs],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509 - tests may run under nohup
    )
    pid = wait_for(lambda: (tmp_path / "otelcol.pid").exists() and (tmp_path / "otelcol.pid").read_text().strip(), 60)
    process.send_signal(number)
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (0, "")
    assert not Path(f"/proc/{pid}").exists()
    assert not (tmp_path / "began").exists()


@pytest.mark.full
def test_nohup_is_heeded():
    """A SIGHUP that is ignored stays ignored: the stack outlives its terminal if somebody wants that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serving.catch_signals() as ended:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not ended.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(10)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("text", ["http", "0", "65536", "127.0.0.1:", "localhost"])
def test_a_wrong_address_is_refused(text):
    """What has no port in it is not taken for one."""
    with pytest.raises(VerlOtelError, match="OTELCOL_GRPC"):
        stack_components.choose_addresses({"OTELCOL_GRPC": text})


def test_addresses_are_the_usual_ones_on_the_loopback():
    """Without variables every part listens on its usual port, on the loopback; a bare port is one there, too."""
    usual = stack_components.choose_addresses({})
    assert usual["http"] == "127.0.0.1:4318"
    assert all(address.startswith("127.0.0.1:") for address in usual.values())
    assert stack_components.choose_addresses({"OTELCOL_HTTP": "5000"})["http"] == "127.0.0.1:5000"


def test_a_host_is_told_to_its_part(tmp_path):
    """Where a variable names a host, the part listens there, as the printed address says; nothing else leaves the loopback."""
    environ = {"OTELCOL_SELF_PORT": "10.0.0.7:5001", "STACK_TEMPO": "10.0.0.8:5002", "STACK_TEMPO_GRPC": "5003"}
    plan = Plan(stack_components.choose_addresses(environ), tmp_path, tmp_path / "targets", tempo=True)
    collector = stack_components.make_collector(Path("otelcol"), plan)._environ
    assert (collector["OTELCOL_SELF_HOST"], collector["OTELCOL_SELF_PORT"]) == ("10.0.0.7", "5001")
    tempo = stack_components.make_tempo(Path("tempo"), plan)._environ
    assert (tempo["TEMPO_HTTP_HOST"], tempo["TEMPO_HTTP_PORT"]) == ("10.0.0.8", "5002")
    assert (tempo["TEMPO_GRPC_HOST"], tempo["TEMPO_GRPC_PORT"]) == ("127.0.0.1", "5003")


def test_free_ports_are_all_different():
    """No two listeners get the same port."""
    found = list(stack_components.choose_addresses({}, free=True).values())
    assert len(set(found)) == len(found) == len(stack_components.LISTENERS)


def test_prometheus_is_told_of_this_stack(tmp_path):
    """Its settings name the addresses, the targets and the rules of this stack, whatever characters are in a path."""
    folder = tmp_path / 'a "b" \\c'
    plan = Plan(stack_components.choose_addresses({}, free=True), folder, folder / "targets", tempo=False)
    text = stack_components.write_settings(plan)
    assert f'targets: ["{plan.addresses["metrics"]}"]' in text
    assert f'targets: ["{plan.addresses["self"]}"]' in text
    assert json.dumps(make_pattern(str(folder / "targets"))) in text
    assert "127.0.0.1:8889" not in text


@pytest.mark.parametrize("addresses", [(), ("127.0.0.1:9093",), ("am-0.example.org:9093", "[::1]:9093")])
def test_alerts_are_sent_to_the_alertmanagers_of_the_options(tmp_path, addresses):
    """Without one Prometheus has no target for alerts; nothing listens on a port that was only guessed."""
    chosen = stack_components.choose_addresses({}, free=True)
    plan = Plan(chosen, tmp_path, tmp_path / "targets", tempo=False, alertmanagers=addresses)
    settings = yaml.safe_load(stack_components.write_settings(plan))
    assert settings["alerting"] == {"alertmanagers": [{"static_configs": [{"targets": [*addresses]}]}]}


def test_alerts_have_the_thresholds_of_the_profile(tmp_path):
    """Prometheus loads the file of this stack instead of the committed one, and every other rule file."""
    plan = Plan(
        stack_components.choose_addresses({}, free=True),
        tmp_path,
        tmp_path / "targets",
        tempo=False,
        profile=profiles.load("math"),
    )
    stack_components.make_prometheus(Path("prometheus"), plan)
    line = next(
        line for line in (tmp_path / stack_components.SETTINGS_FILE).read_text().splitlines() if "rule_files" in line
    )
    loaded = json.loads(line.partition(":")[2])
    assert sorted(Path(path).name for path in loaded) == [path.name for path in stack_components.find_rules()]
    (thresholds,) = [Path(path) for path in loaded if path.endswith(rules_file.FILE)]
    assert thresholds.read_text() == rules_file.render(profiles.load("math"))
    assert "name: reward_low}, expr: vector(0.02)" in thresholds.read_text()


@pytest.mark.parametrize("password", ["", "GF_SECURITY_ADMIN_PASSWORD", "GF_SECURITY_ADMIN_PASSWORD__FILE"])
def test_grafana_has_no_password_that_everybody_knows(tmp_path, monkeypatch, password):
    """Without a password of the user there is no administrator and no login, only viewers; with one the user's settings are left alone."""
    for name in [name for name in os.environ if name.startswith("GF_")]:
        monkeypatch.delenv(name)
    if password:
        monkeypatch.setenv(password, "of-the-user")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "grafana").touch()
    plan = Plan(stack_components.choose_addresses({}, free=True), tmp_path, tmp_path / "targets", tempo=False)
    environ = stack_components.make_grafana(tmp_path, plan)._environ
    closed = {
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
    }
    assert {name: environ.get(name) for name in closed} == (dict.fromkeys(closed) if password else closed)
    assert not password or environ[password] == "of-the-user"
