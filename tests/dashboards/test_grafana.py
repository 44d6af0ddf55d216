# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``make boards PICTURES=grafana`` with a stand-in for Grafana, whose HTTP API and pages have the shapes of the real ones."""

import json
import subprocess
import sys
import urllib.parse
from pathlib import Path
from types import SimpleNamespace

import pytest

from dashboards import loader
from dashboards.evaluation import recording
from dashboards.grafana import __main__ as command
from dashboards.grafana import client, server
from verl_otel.errors import VerlOtelError

HERE = Path(__file__).resolve().parent
RUN = HERE / "recorded" / "20261121-191056-398b"
BOARDS = loader.read()
NOWHERE = "127.0.0.1:9"


@pytest.fixture
def make_home(tmp_path):
    """Return a function that makes a folder as an unpacked Grafana is one; its words say what goes wrong."""

    def make(**plan):
        home = tmp_path / "home"
        program = home / "bin" / "grafana"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!{sys.executable}\n{(HERE / 'fake_grafana.py').read_text('utf-8')}")
        program.chmod(0o755)
        (home / "fake.json").write_text(json.dumps(plan))
        return home

    return make


def read(home):
    """Return how the stand-in was started, and what it was asked for."""
    asked = [json.loads(line) for line in (home / "asked.jsonl").read_text().splitlines()]
    return SimpleNamespace(**json.loads((home / "started.json").read_text()), asked=asked)


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("name", ["GRAFANA_HOME", "nothing"])
def test_without_a_grafana_one_line_says_how_to_get_it(name, tmp_path, monkeypatch, capsys):
    """The exit code is 2; a folder without the program is told by its name."""
    monkeypatch.delenv("GRAFANA_HOME", raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    assert command.main([str(tmp_path / "pictures"), "--recorded", str(RUN)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"GRAFANA_HOME={tmp_path} has no bin/grafana" in line if name == "GRAFANA_HOME" else "is not set" in line
    assert "grafana.com/grafana/download" in line
    assert not (tmp_path / "pictures").exists()


def test_every_board_is_provisioned_and_whole(make_home, tmp_path):
    """Grafana is started with the committed boards, lists all of them, has every panel, and is gone at the end."""
    home = make_home()
    with server.serve(home, NOWHERE, tmp_path) as grafana:
        assert grafana.read_version() == "12.4.0"
        assert grafana.wait_for([board["uid"] for board in BOARDS.values()]) == set()
        assert [grafana.check(board) for board in BOARDS.values()] == [[]] * len(BOARDS)
        assert is_alive(read(home).pid)
    started = read(home)
    assert not is_alive(started.pid)
    assert started.words == ["server", "--homepath", str(home)]
    assert started.environ["PROMETHEUS_URL"] == f"http://{NOWHERE}"
    assert Path(started.environ["GF_PATHS_DATA"]).parent == tmp_path
    assert {path for path in started.asked if "uid" in path} == {
        f"/api/dashboards/uid/{board['uid']}" for board in BOARDS.values()
    }


def test_a_board_that_is_not_there_or_is_another_is_told(make_home, tmp_path):
    """Missing from the list, unknown by its uid, with another title, without a panel: each is said."""
    home = make_home(missing="verl-gpus")
    with server.serve(home, NOWHERE, tmp_path) as grafana:
        assert grafana.wait_for(["verl-gpus", "verl-engines"], seconds=0.1) == {"verl-gpus"}
        board = BOARDS["engines"]
        other = {**board, "title": "Other", "panels": board["panels"][1:]}
        title, panels = grafana.check(other)
        assert title == "its title is 'verl / Inference engines' instead of 'Other'"
        assert panels.startswith("its panels are")
        with pytest.raises(client.GrafanaError, match="404 Dashboard not found"):
            grafana.check({**board, "uid": "nobody"})


def test_a_grafana_that_dies_is_told_with_its_log(make_home, tmp_path):
    """It is not waited for; the end of its log is in the message."""
    with (
        pytest.raises(VerlOtelError, match=r"(?s)Grafana has ended with code 1.*msg=planted"),
        server.serve(make_home(dies=True), NOWHERE, tmp_path),
    ):
        pass


def test_words_of_refused_queries_are_read():
    """Those of each query once, those of Grafana itself, and those of whoever answers in its place."""
    results = {"A": {"error": "bad_data"}, "B": {"error": "bad_data"}, "C": {"status": 200, "frames": []}}
    assert client.read_message(json.dumps({"results": results}).encode()) == "bad_data"
    assert client.read_message(b'{"message": "Data source not found", "statusCode": 404}') == "Data source not found"
    assert client.read_message(b"<html>Bad gateway") == "<html>Bad gateway"
    assert client.read_message(b'{"results": {"A": {"status": 200, "frames": []}}}') == ""


@pytest.fixture
def photograph(make_home, tmp_path, monkeypatch, capsys, promtool):
    """Return a function that runs the command with a recorded run; returns the exit code, what it said, and the stand-in."""
    pytest.importorskip("playwright.sync_api")
    found = subprocess.run(["sh", HERE.parent / "chromium.sh", "--look"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip())

    def run(*arguments, **plan):
        last = max(points[-1].time for points in recording.read_run(RUN).values())
        home = make_home(time=last - 5, **plan)
        monkeypatch.setenv("GRAFANA_HOME", str(home))
        words = [str(tmp_path / "pictures"), "--recorded", str(RUN), "--scrape", "1", "--set", "window=30s", *arguments]
        code = command.main(words)
        return SimpleNamespace(
            code=code, **vars(read(home)), said=capsys.readouterr().out, pictures=tmp_path / "pictures"
        )

    return run


@pytest.mark.browser
def test_every_board_is_photographed(photograph):
    """A picture as high as the board for each, at the time of the recording and with the variables; the Prometheus behind it has the run."""
    done = photograph()
    assert done.code == 0, done.said
    pages = [urllib.parse.urlsplit(path) for path in done.asked if path.startswith("/d/")]
    assert [page.path for page in pages] == [f"/d/{board['uid']}" for board in BOARDS.values()]
    for page in pages:
        query = urllib.parse.parse_qs(page.query, keep_blank_values=True)
        assert query["var-window"] == ["30s"]
        assert "kiosk" in query
        assert 10_000 < int(query["to"][0]) - int(query["from"][0]) < 600_000
    for name, board in BOARDS.items():
        picture = (done.pictures / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
        assert int.from_bytes(picture[20:24], "big") > lines * 38
        assert f"{name}.png: 0 panels without data, 0 errors" in done.said
    assert not is_alive(done.pid)


@pytest.mark.browser
def test_a_panel_that_shows_an_error_is_told(photograph):
    """With its title and Prometheus' words; panels without data are named and are no error; the board is photographed all the same."""
    done = photograph("--board", "training", refused="Entropy", empty="Gradient norm")
    assert done.code == 1
    assert "training.png: 1 panels without data, 1 errors" in done.said
    assert "  error: Entropy: 400 bad_data: planted" in done.said
    assert "  no data: Gradient norm" in done.said
    assert (done.pictures / "training.png").exists()
    assert not is_alive(done.pid)


@pytest.mark.browser
def test_a_panel_that_does_not_appear_is_told(photograph, monkeypatch):
    """A board is not waited for without end."""
    monkeypatch.setattr(command.screenshots.capture, "__defaults__", (3.0,))
    done = photograph("--board", "training", lost="Entropy")
    assert done.code == 1
    wanted = sum(panel["type"] != "row" for panel in BOARDS["training"]["panels"])
    assert f"  error: {wanted - 1} of {wanted} panels are there after 3 s" in done.said
