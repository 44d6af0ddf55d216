# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel discover``: the list, the check of each target, and Prometheus's HTTP service discovery."""

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from verl_otel.cli import service_discovery
from verl_otel.integrations.ray import discovery

PAGE = b'# HELP up x\n# TYPE up gauge\nup 1\nverl_step{a="b c"} 2 \n'


@pytest.fixture
def page():
    """Serve one answer under every path; returns ``host:port``. The default is a page of two samples."""
    servers = []

    def serve(body=PAGE, code=200, wait=None):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if wait is not None:
                    wait.wait(20)
                self.send_response(code)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append((server, wait))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield serve
    for server, wait in servers:
        if wait is not None:
            wait.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def listed(runs):
    """Write the targets file of a run, with one entry per address, of a process that lives."""

    def write(run_id, *addresses, pid=None):
        folder = runs / "targets"
        folder.mkdir(parents=True, exist_ok=True)
        found = [
            {
                "targets": [address],
                "labels": {
                    "job": "verl",
                    "instance": f"{run_id}/trainer-{number}",
                    "verl_role": "trainer",
                    "verl_run_id": run_id,
                    "__meta_verl_otel_pid": str(pid or os.getpid()),
                    "__meta_verl_otel_host": socket.gethostname(),
                },
            }
            for number, address in enumerate(addresses)
        ]
        (folder / f"{run_id}.json").write_text(json.dumps(found))
        return folder

    return write


def dead_pid():
    """The id of a process that has just ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_targets_that_answer_are_listed_and_the_code_is_0(call, listed, page):
    """Each target has a line with its state, address and instance; all of them answer."""
    addresses = [page(), page()]
    listed("r1", *addresses)
    done = call("discover", "--local")
    assert done.code == 0, done.out
    lines = done.out.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [
        ["ok", addresses[0], "r1/trainer-0"],
        ["ok", addresses[1], "r1/trainer-1"],
    ]
    assert lines[0].endswith("2 samples")
    assert lines[-1] == "All 2 targets answer."


def test_each_way_not_to_answer_is_named_and_the_code_is_1(call, listed, page):
    """Refused, silent, an error page, no metrics and an empty page are told apart, and one of them makes the code 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: it refuses
        refused = f"127.0.0.1:{taken.getsockname()[1]}"
        pages = [page(), page(code=404), page(b'[{"iter": 1}]'), page(b""), page(wait=threading.Event())]
        listed("r1", *pages, refused, "no such host:1")
        done = call("discover", "--local", "--json", "--timeout", "0.5")
    assert done.code == 1
    found = {entry["targets"][0]: (entry["state"], entry["detail"]) for entry in json.loads(done.out)}
    assert [found[each][0] for each in pages] == ["ok", "no metrics", "no metrics", "no metrics", "silent"]
    assert "404" in found[pages[1]][1]
    assert "within 0.5 s" in found[pages[4]][1]
    assert found[refused][0] == "refused"
    assert found["no such host:1"][0] == "silent"


def test_json_keeps_the_labels(call, listed, page):
    """A script gets what Prometheus gets, with state and detail."""
    listed("r1", page())
    (entry,) = json.loads(call("discover", "--local", "--json").out)
    assert entry["labels"]["verl_run_id"] == "r1"
    assert entry["state"] == "ok"


def test_one_run_is_listed_when_asked_for(call, listed, page):
    """--run leaves the others out; a run that nobody knows has no target, which is a finding."""
    listed("r1", page())
    listed("r2", page())
    assert "r2" not in call("discover", "--local", "--run", "r1").out
    done = call("discover", "--local", "--run", "r3")
    assert (done.code, done.out.partition(" in ")[0]) == (1, "no targets")


def test_the_dead_are_not_listed(call, listed):
    """Processes of this machine that died are left out; the file, which others may still write, is not touched."""
    folder = listed("r1", "127.0.0.1:1", pid=dead_pid())
    before = (folder / "r1.json").read_text()
    assert call("discover", "--local").out.startswith("no targets")
    assert (folder / "r1.json").read_text() == before


def test_processes_of_another_container_are_listed(call, listed, page):
    """A container that shares name and folder with this machine has process ids of its own: they say nothing here."""
    folder = listed("r1", page(), pid=dead_pid())
    entries = json.loads((folder / "r1.json").read_text())
    entries[0]["labels"]["__meta_verl_otel_pid_space"] = "pid:[1]"
    (folder / "r1.json").write_text(json.dumps(entries))
    assert call("discover", "--local").code == 0


def test_a_damaged_file_hides_no_other(call, listed, page):
    """A file that is no list of targets is passed over."""
    folder = listed("r1", page())
    (folder / "r0.json").write_text("[{")
    (folder / "r2.json").write_text('[{"targets": [], "labels": {}}, {"targets": ["x"], "labels": null}, 3]')
    assert call("discover", "--local").out.splitlines()[-1] == "All 1 targets answer."


def test_proxies_are_not_asked(call, listed, page, monkeypatch):
    """A proxy of the shell would be asked for addresses inside of the cluster; it is not."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    listed("r1", page())
    assert call("discover", "--local").code == 0


def test_cluster_and_file_are_one_list(call, listed, page, monkeypatch):
    """What both the cluster and this machine's file know is listed once; what only one knows is listed, too."""
    both, here, there = page(), page(), page()
    folder = listed("r1", both, here)
    entries = json.loads((folder / "r1.json").read_text())
    far = {"targets": [there], "labels": {**entries[0]["labels"], "instance": "r1/agent_loop-0"}}
    note = discovery.Note(b"k", "r1", [entries[0], far], "/f", "n", "j", "w", driver=False)
    monkeypatch.setattr(discovery, "find_cluster", lambda address: "head:1")
    monkeypatch.setattr(discovery, "read_notes", lambda cluster: [note])
    found = [entry["targets"][0] for entry in json.loads(call("discover", "--json").out)]
    assert found == [there, both, here]


def test_without_a_cluster_this_machine_is_listed_and_it_is_said(call, listed, page, monkeypatch):
    """No Ray here: the list of this machine, and a line that says that it is all."""

    def find(address):
        raise discovery.NoClusterError("no running Ray cluster here")

    monkeypatch.setattr(discovery, "find_cluster", find)
    monkeypatch.setattr(service_discovery, "_said", set())
    listed("r1", page())
    done = call("discover")
    assert (done.code, done.err) == (
        0,
        "verl-otel: no running Ray cluster here; only the targets of this machine are listed\n",
    )
    assert call("discover", "--address", "head:1").code == 2


def test_a_cluster_that_does_not_answer_is_an_error(call, runs):
    """A head that nobody listens at is said within seconds and ends with code 2."""
    pytest.importorskip("ray", reason="Ray is not installed in this environment")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = call("discover", "--address", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == 2
    assert "no Ray cluster at" in done.err
    done = call("discover", "--address", "ray://127.0.0.1:1")
    assert done.code == 2
    assert "use HOST:PORT" in done.err
    assert call("discover", "--address", "a:1", "--local").code == 2


# -- HTTP service discovery -------------------------------------------------------------------------------------------


@pytest.fixture
def served(runs, tmp_path, wait_for):
    """Start ``verl-otel discover --serve`` as a process; returns its URL, the process, and what it said."""
    started = []

    def start(*arguments, local=True):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        process = subprocess.Popen(
            [Path(sys.executable).with_name("verl-otel"), "discover", "--serve", "--port", "0", *map(str, arguments)]
            + ["--local"] * local,
            env=inherited,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("serving the targets at http"), line + process.stderr.read()
        return line.split()[4], process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ask(url, user=None, context=None):
    """Ask for the targets; returns the code and the answer."""
    request = urllib.request.Request(url)
    if user is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    handlers = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def test_prometheus_gets_the_targets_of_this_moment(served, listed):
    """The answer is the JSON list that Prometheus asks for; a run that began later is in the next one."""
    url, _ = served()
    assert url.startswith("http://127.0.0.1:")
    assert ask(url) == (200, "application/json", b"[]")
    listed("r1", "127.0.0.1:1", "127.0.0.1:2")
    listed("r2", "127.0.0.1:3")
    deadline = threading.Event()
    for _ in range(200):
        code, kind, body = ask(url)
        if body != b"[]":
            break
        deadline.wait(0.05)
    assert (code, kind) == (200, "application/json")
    assert [entry["targets"] for entry in json.loads(body)] == [["127.0.0.1:1"], ["127.0.0.1:2"], ["127.0.0.1:3"]]
    assert {"job", "instance", "verl_role", "verl_run_id"} <= json.loads(body)[0]["labels"].keys()
    assert [entry["targets"] for entry in json.loads(ask(f"{url}?run=r2")[2])] == [["127.0.0.1:3"]]
    assert ask(f"{url}-/healthy")[0] == 200
    assert ask(f"{url}metrics")[0] == 404


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(served, number):
    """SIGTERM and Ctrl-C end the server with code 0 and without a traceback, also while a client holds a connection."""
    url, process = served()
    host, port = url.removeprefix("http://").strip("/").split(":")
    with socket.create_connection((host, int(port))):
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    with pytest.raises(OSError):
        ask(url)


def test_a_silent_client_keeps_nobody_waiting(served):
    """Clients that connect and say nothing do not keep Prometheus from its answer, under TLS neither."""
    url, _ = served()
    host, port = url.removeprefix("http://").strip("/").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert ask(url)[0] == 200


def test_only_users_of_the_file_may_ask(served, tmp_path):
    """With --basic-auth-file the right password is asked for; the file may change while the server runs."""
    users = tmp_path / "users.txt"
    users.write_text("# who\nprometheus:s3cret:with:colons\nother:x\n")
    users.chmod(0o600)
    url, _ = served("--basic-auth-file", users)
    assert ask(url)[0] == 401
    assert ask(url, "prometheus:wrong")[0] == 401
    assert ask(url, "prometheus")[0] == 401
    assert ask(url, "prometheus:s3cret:with:colons")[0] == 200
    assert ask(url, "other:x")[0] == 200
    assert ask(f"{url}-/healthy")[0] == 200
    users.write_text("other:y\n")
    assert ask(url, "other:x")[0] == 401
    assert ask(url, "other:y")[0] == 200


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """Return the files of a self-signed certificate for the loopback."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the test's certificates, is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x"
    extra = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*command.split(), *extra], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_tls_from_files(served, certificate, listed):
    """With --tls-cert and --tls-key a client that trusts the certificate gets the list; plain HTTP and silence get nothing."""
    listed("r1", "127.0.0.1:1")
    url, _ = served("--tls-cert", certificate[0], "--tls-key", certificate[1])
    assert url.startswith("https://")
    context = ssl.create_default_context(cafile=str(certificate[0]))
    host, port = url.removeprefix("https://").strip("/").split(":")
    with socket.create_connection((host, int(port))):
        code, _, body = ask(url, context=context)
    assert (code, len(json.loads(body))) == (200, 1)
    with pytest.raises(OSError):
        ask(url.replace("https", "http"))
    assert ask(url, context=context)[0] == 200


def test_what_cannot_be_served_is_said(shell, tmp_path, certificate):
    """A port that is taken, half of a TLS pair, a missing or open password file: code 2 and what is wrong."""
    users = tmp_path / "users.txt"
    users.write_text("a:b")
    users.chmod(0o644)
    empty = tmp_path / "empty.txt"
    empty.touch(0o600)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases = {
            ("--port", taken.getsockname()[1]): "cannot be bound",
            ("--port", 0, "--tls-cert", certificate[0]): "go together",
            ("--port", 0, "--tls-cert", certificate[0], "--tls-key", users): "cannot be used for TLS",
            ("--port", 0, "--basic-auth-file", tmp_path / "none"): "No such file",
            ("--port", 0, "--basic-auth-file", users): "chmod 600",
            ("--port", 0, "--basic-auth-file", empty): "user:password",
        }
        for arguments, text in cases.items():
            done = shell("discover", "--serve", "--local", *arguments)
            assert done.code == 2, done
            assert text in done.err
            assert "Traceback" not in done.err


def test_targets_that_cannot_be_read_leave_prometheus_what_it_has(monkeypatch):
    """While the cluster does not answer the server says 503, on which Prometheus keeps its list; then it goes on."""
    state = {"fails": True}

    def find():
        if state["fails"]:
            raise discovery.ClusterError("the Ray cluster at head:1 does not answer")
        return []

    monkeypatch.setattr(service_discovery, "_said", set())
    server = service_discovery.Server(("127.0.0.1", 0), service_discovery.Access(), service_discovery.TargetList(find))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        code, _, body = ask(server.url)
        assert (code, body) == (503, b"the Ray cluster at head:1 does not answer\n")
        state["fails"] = False
        assert ask(server.url)[0] == 200
    finally:
        server.shutdown()
        server.server_close()


def test_an_open_port_without_a_password_is_pointed_out(served):
    """Bound to every address, the server says who can read it."""
    _, process = served("--host", "0.0.0.0")
    process.terminate()
    assert "--basic-auth-file" in process.communicate(timeout=20)[1]
