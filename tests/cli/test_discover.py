# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel discover``: the list, the check of each target, and Prometheus's HTTP service discovery."""

import contextlib
import json
import socket
import threading

import pytest

from tests.fakes.http_server import HttpServer
from verl_otel.cli import discover
from verl_otel.integrations.ray import discovery

PAGE = b'# HELP up x\n# TYPE up gauge\nup 1\nverl_step{a="b c"} 2 \n'


@pytest.fixture
def page():
    """Serve one answer under every path; returns ``host:port``. The default is a page of two samples."""
    with contextlib.ExitStack() as running:

        def serve(body=PAGE, code=200, wait=None):
            def answer(_):
                if wait is not None:
                    wait.wait(60)
                return code, body

            server = running.enter_context(HttpServer(answer))
            if wait is not None:
                running.callback(wait.set)
            return server.address

        yield serve


@pytest.mark.full
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


@pytest.mark.full
def test_each_way_not_to_answer_is_named_and_the_code_is_1(call, listed, page):
    """Refused, silent, an error page, no metrics and an empty page are told apart, and one of them makes the code 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: it refuses
        refused = f"127.0.0.1:{taken.getsockname()[1]}"
        pages = [page(), page(code=404), page(b'[{"iter": 1}]'), page(b""), page(wait=threading.Event())]
        listed("r1", *pages, refused, "no-such-host.invalid:1")
        done = call("discover", "--local", "--json", "--timeout", "0.5")
    assert done.code == 1
    found = {entry["targets"][0]: (entry["state"], entry["detail"]) for entry in json.loads(done.out)}
    assert [found[each][0] for each in pages] == ["ok", "no metrics", "no metrics", "no metrics", "silent"]
    assert "404" in found[pages[1]][1]
    assert "within 0.5 s" in found[pages[4]][1]
    assert found[refused][0] == "refused"
    assert found["no-such-host.invalid:1"][0] == "silent"


@pytest.mark.full
def test_an_engine_that_has_done_nothing_yet_answers(call, listed, page):
    """A page of metrics without a sample is one: an engine counts tokens from its first request on."""
    listed("r1", page(b"# HELP vllm:tokens x\n# TYPE vllm:tokens counter\n"), page(b"# EOF\n"))
    done = call("discover", "--local")
    assert (done.code, done.out.count("0 samples")) == (0, 2)


OFF = b"# TYPE python_info gauge\npython_info 1\n# TYPE http_requests_total counter\nhttp_requests_total 3\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "role", "key"),
    [
        ("vllm", "llm_server", "actor_rollout_ref.rollout.disable_log_stats=False"),
        ("vllm", "reward", "reward.reward_model.rollout.disable_log_stats=False"),
        ("vllm", "teacher", "inference.disable_log_stats=False"),
        ("sglang", "llm_server", "actor_rollout_ref.rollout.prometheus.enable=True"),
    ],
)
def test_an_engine_whose_statistics_are_off_is_no_ok(call, listed, page, engine, role, key):
    """It answers with series of Python and HTTP and none of its own: the state says so, and the text has verl's setting."""
    listed("r1", page(OFF), verl_engine=engine, verl_role=role)
    done = call("discover", "--local")
    assert done.code == 0  # it answers, and off is verl's default
    first, _, last = done.out.splitlines()
    assert first.startswith("statistics off  ")
    assert key in first
    assert last == "All 1 targets answer; of 1 engine the statistics are off."
    (entry,) = json.loads(call("discover", "--local", "--json").out)
    assert entry["state"] == "statistics off"


@pytest.mark.full
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_with_statistics_is_ok(call, listed, page, engine):
    """A series of its own, or the declaration of one before the first request, says that they are on."""
    declared = f"# HELP {engine}:tokens x\n# TYPE {engine}:tokens counter\n".encode()
    sampled = OFF + f'{engine}:num_running{{model="x"}} 1\n'.encode()
    listed("r1", page(declared), page(sampled), verl_engine=engine)
    assert call("discover", "--local").out.splitlines()[-1] == "All 2 targets answer."


@pytest.mark.full
def test_sglang_without_a_page_of_metrics_says_what_switches_it_on(call, listed, page):
    """It serves no /metrics at all while its metrics are off."""
    listed("r1", page(code=404), verl_engine="sglang", verl_role="llm_server")
    done = call("discover", "--local")
    assert done.code == 1
    assert "404" in done.out
    assert "actor_rollout_ref.rollout.prometheus.enable=True" in done.out


@pytest.mark.full
def test_one_run_is_listed_when_asked_for(call, listed, page):
    """--run leaves the others out; a run without targets is a finding that says what makes them; one that does not exist is named."""
    folder = listed("r1", page())
    listed("r2", page())
    assert "r2" not in call("discover", "--local", "--run", "r1").out
    (folder.parent / "r3").mkdir()
    done = call("discover", "--local", "--run", "r3")
    assert (done.code, done.out.partition(" in ")[0]) == (1, "no targets of run r3")
    assert "whose VERL_OTEL_EXPORTERS has prometheus" in done.out
    done = call("discover", "--local", "--run", "r4")
    assert (done.code, done.out.partition(" in ")[0]) == (1, "no run 'r4'")


@pytest.mark.full
def test_the_dead_are_not_listed(call, listed, dead_pid):
    """Processes of this machine that died are left out; the file, which others may still write, is not touched."""
    folder = listed("r1", "127.0.0.1:1", pid=dead_pid)
    before = (folder / "r1.json").read_text()
    assert call("discover", "--local").out.startswith("no targets")
    assert (folder / "r1.json").read_text() == before


@pytest.mark.full
def test_processes_of_another_container_are_listed(call, listed, page, dead_pid):
    """A container that shares name and folder with this machine has process ids of its own: they say nothing here."""
    folder = listed("r1", page(), pid=dead_pid)
    entries = json.loads((folder / "r1.json").read_text())
    entries[0]["labels"]["__meta_verl_otel_pid_space"] = "pid:[1]"
    (folder / "r1.json").write_text(json.dumps(entries))
    assert call("discover", "--local").code == 0


@pytest.mark.full
def test_a_damaged_file_hides_no_other(call, listed, page):
    """A file that is no list of targets is passed over."""
    folder = listed("r1", page())
    (folder / "r0.json").write_text("[{")
    (folder / "r2.json").write_text('[{"targets": [], "labels": {}}, {"targets": ["x"], "labels": null}, 3]')
    assert call("discover", "--local").out.splitlines()[-1] == "All 1 targets answer."


@pytest.mark.full
def test_labels_of_others_cannot_forge_lines(call, listed, page):
    """An instance with line breaks and escape sequences stands in one line of the table, and configures no scrape."""
    folder = listed("r1", page())
    entries = json.loads((folder / "r1.json").read_text())
    entries[0]["labels"] |= {"instance": "x\nok  10.0.0.1:1  y\x1b[2J", "__metrics_path__": "/admin"}
    (folder / "r1.json").write_text(json.dumps(entries))
    done = call("discover", "--local")
    assert len(done.out.splitlines()) == 3
    assert "\x1b" not in done.out
    assert r"x\u000aok" in done.out
    assert "__metrics_path__" not in call("discover", "--local", "--json").out


@pytest.mark.full
def test_proxies_are_not_asked(call, listed, page, monkeypatch):
    """A proxy of the shell would be asked for addresses inside of the cluster; it is not."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    listed("r1", page())
    assert call("discover", "--local").code == 0


@pytest.mark.full
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


@pytest.mark.full
def test_without_a_cluster_this_machine_is_listed_and_it_is_said(call, listed, page, monkeypatch):
    """No Ray here: the list of this machine, and a line that says that it is all."""

    def find(address):
        raise discovery.NoClusterError("no running Ray cluster here")

    monkeypatch.setattr(discovery, "find_cluster", find)
    monkeypatch.setattr(discover, "_printed", set())
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
