# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the live page answers to requests: pages, JSON, and nothing outside of the runs."""

import json
import re
import shutil

import pytest

from tests.analysis.test_reader import long_training
from tests.builders import stories
from verl_otel.analysis import reader
from verl_otel.analysis.reader import RunReader
from verl_otel.cli.demo.command import RECORDED
from verl_otel.cli.page import assembly
from verl_otel.cli.view.access import Access
from verl_otel.cli.view.listing import Listing
from verl_otel.cli.view.site import Site
from verl_otel.cli.view.watching import Catalogue, Watcher
from verl_otel.exporting.http_server import Request
from verl_otel.health import profiles
from verl_otel.semconv.kinds import ADVICE


def make_site(*folders):
    """The site of the runs in some folders."""
    catalogue = Catalogue(folders)
    watcher = Watcher(catalogue)
    return Site(Listing(catalogue, watcher), watcher, Access())


@pytest.fixture
def get(runs, monkeypatch):
    """Ask for a path of the site of all runs."""
    monkeypatch.setattr("verl_otel.cli.view.listing.FRESH_SECONDS", -1.0)
    site = make_site(runs)

    def run(path, **headers):
        path, _, query = path.partition("?")
        return site.answer(Request("GET", path, query, {"host": "127.0.0.1:1", **headers}))

    return run


def test_every_run_of_the_folder_is_listed(runs, get):
    """Also one that was written after the site was made."""
    assert json.loads(get("/api/runs").body) == []
    story = stories.training(runs / "r1")
    held = "step 2 took 15.0 s: phase gen 7.0 s longer than usual"
    story.status({"state": "finished", "time": stories.T0 + 25, "step": 2, "reward": 0.75, "verdict": held})
    story.write()
    (row,) = json.loads(get("/api/runs").body)
    assert (row["run"], row["state"], row["last_step"]) == ("r1", "finished", 2)
    assert (row["reward"], row["verdict"]) == (0.75, held)


def test_a_run_of_two_nodes_is_one(tmp_path):
    """The trainer wrote on one node, agents and servers on the other: what is shown is that of one folder with all files."""
    whole = long_training(tmp_path / "whole" / "r1").write()
    nodes = [tmp_path / name / "r1" for name in ("node-1", "node-2")]
    for folder in nodes:
        folder.mkdir(parents=True)
    for path in whole.iterdir():
        shutil.copy(path, nodes["trainer" not in path.name])

    def ask(*folders):
        site = make_site(*folders)
        paths = ("/api/runs/r1", "/api/runs/r1/steps", "/api/runs/r1/scalars?name=verl.critic.rewards.mean")
        return [
            json.loads(site.answer(Request("GET", *path.partition("?")[::2], {"host": "127.0.0.1:1"})).body)
            for path in paths
        ]

    shown = ask(*nodes)
    assert shown == ask(whole)
    assert (shown[0]["steps"], len(shown[1]["seconds"]), len(shown[2][0]["x"])) == (12, 12, 12)
    assert {trajectory["step"] for trajectory in shown[0]["slowest"]} >= {5, 10}


def test_findings_say_what_to_do(runs, get):
    """A stall, and the cause of a slow step: as in `explain`."""
    folder = stories.training(runs / "r1").write()
    stall = {"kind": "stall", "time_ns": stories.at(9), "text": "STALL in agent_loop-0", "detail": {"resolved": 3.0}}
    (folder / "events.jsonl").write_text(json.dumps(stall) + "\n")
    first, second, *_ = json.loads(get("/api/runs/r1").body)["findings"]
    assert first["text"].startswith("STALL: in agent_loop-0")
    assert first["next"].endswith("verl-otel explain r1 --events shows all of it")
    assert (second["step"], second["next"]) == (2, ADVICE["slow tool"])


def test_the_log_of_a_run_begins_with_its_newest_line(runs, get):
    """Of all processes, and of many lines the last ones: the warnings of the start go."""
    folder = stories.training(runs / "r1").write()

    def record(number, text):
        return json.dumps({"timestamp": f"2026-11-24T00:{number:02d}:00.000Z", "level": "INFO", "scope": text}) + "\n"

    (folder / "verl_logs.jsonl").write_text("".join(record(number, "ppo") for number in range(59)))
    (folder / "verl_logs-agent-n-2.jsonl").write_text(record(0, "log") + record(59, "sample"))
    log = json.loads(get("/api/runs/r1").body)["log"]
    assert [line.split()[1:4:2] for line in log[:2]] == [["00:59:00Z", "sample"], ["00:58:00Z", "ppo"]]
    assert (len(log), log[-1].split()[1]) == (50, "00:10:00Z")


def test_the_page_of_a_run_is_that_of_the_report(runs, get):
    """It names the run, and what delayed it."""
    stories.training(runs / "r1").write()
    reply = get("/run/r1/report")
    assert reply.status == 200
    assert b"calculator" in reply.body


def test_two_runs_are_compared_as_by_the_command(runs, get, call):
    """The answer is that of ``compare --json``, with the sentences of the command."""
    for name in ("r1", "r2"):
        stories.training(runs / name, name).write()
    shown = json.loads(get("/api/compare/r1/r2").body)
    sentences = shown.pop("texts")["sentences"]
    assert shown == json.loads(call("compare", "r1", "r2", "--json").out)
    assert sentences[0] in call("compare", "r1", "r2").out


def test_a_run_has_its_indicators_with_the_bands_of_its_profile(runs, get):
    """Every answer is JSON without NaN, whatever was recorded."""
    story = stories.Story(runs / "r1", "r1")
    story.manifest(**profiles.to_manifest(profiles.load("rlhf")))
    trainer = story.process()
    trainer.scalar("verl.actor.ppo_kl", 1, 0.3)
    trainer.scalar("verl.critic.rewards.mean", 1, float("nan"))
    story.write()
    document = json.loads(get("/api/runs/r1").body, parse_constant=pytest.fail)
    assert document["explain"]["profile"] == "rlhf"
    rows = {row["name"]: row for row in document["indicators"]}
    kl = {"name": "policy KL", "value": 0.3, "low": 0.01, "high": 0.05, "state": "above", "is_share": False,
          "scalar": "verl.actor.ppo_kl"}  # fmt: skip
    assert rows["policy KL"] == kl
    assert (rows["mean reward"]["value"], rows["mean reward"]["state"]) == (None, "unknown")


@pytest.mark.parametrize(
    "path", ["/run/..", "/run/%2e%2e", "/run/..%2fr1", "/run/", "/run/none", "/etc/passwd", "/%00"]
)
def test_nothing_but_the_runs_can_be_asked_for(runs, get, path):
    """A name that is not in the list is answered by 404, whatever it looks like."""
    stories.training(runs / "r1").write()
    assert get(path).status == 404


def test_a_run_that_is_being_read_says_so(runs, get, monkeypatch):
    """Its counts are those of a part of its files; they are complete when all are read."""
    monkeypatch.setattr(RunReader.read, "__defaults__", (1,))
    monkeypatch.setattr("verl_otel.analysis.io.followed_files.CHUNK_BYTES", 4096)
    long_training(runs / "r1", steps=100).write()
    described = json.loads(get("/api/runs/r1").body)
    assert described["read"] < 1
    assert described["explain"]["progress"] == ""
    stories.training(runs / "r2").write()
    monkeypatch.undo()
    assert json.loads(get("/api/runs/r2").body)["read"] == 1


def test_an_explanation_of_a_part_of_a_run_says_so(runs, get, monkeypatch, tmp_path):
    """The reward of a run is no matter of a part of it: the sentence comes when all files are read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("part", "whole"):
        long_training(runs / name, steps=30).write()
    reader.read([runs / "whole"], keep_after=0)
    part, whole = (json.loads(get(f"/api/runs/{name}").body) for name in ("part", "whole"))
    assert (part["read"] < 1, part["explain"]["progress"]) == (True, "")
    assert whole["read"] == 1
    assert "mean reward" in whole["explain"]["progress"]


def test_a_step_is_that_of_explain(runs, get, call):
    """By its index, with everything that ``explain --json`` prints of it; an index that is none is answered by 400."""
    stories.training(runs / "r1").write()
    shown = json.loads(get("/api/runs/r1/steps/1").body)
    (explained,) = json.loads(call("explain", "r1", "--step", 2, "--json").out)["steps"]
    assert {key: shown[key] for key in explained} == explained
    assert get("/api/runs/r1/steps/99").status == get("/api/runs/r1/steps/x").status == 400


def test_a_run_that_was_never_opened_has_its_finding(runs, monkeypatch, tmp_path):
    """The first line of the report, made once for a run that has ended and kept until one of its files changes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("verl_otel.cli.view.listing.FRESH_SECONDS", -1.0)
    story = stories.training(runs / "r1")
    story.status({"state": "finished", "time": stories.T0 + 25, "step": 2, "total_steps": 40})
    story.write()

    def list_runs():
        catalogue = Catalogue([runs])
        return Listing(catalogue, Watcher(catalogue))

    listing = list_runs()
    assert listing.read()[0]["finding"] is None
    assert any(not has_more for has_more in listing.analyse())
    (row,) = listing.read()
    assert row["finding"]["text"].startswith("Step 2")
    assert (row["planned"], len(row["seconds_line"])) == (40, 2)
    assert list_runs().read() == [row]
    (runs / "r1" / "events.jsonl").write_text("")
    assert list_runs().read()[0]["finding"] is None


def test_runs_that_need_somebody_come_first(runs, monkeypatch, tmp_path):
    """One that failed, or trains with a finding, before one that ended with a finding, before the others, whatever their age."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("healthy", "slow-tool"):
        shutil.copytree(RECORDED / name, runs / name)
    for state in ("running", "failed"):
        story = stories.training(runs / state)
        story.status({"state": state, "time": stories.T0 + 25, "step": 2})
        story.write()
    stall = {"kind": "stall", "time_ns": stories.at(9), "text": "STALL in agent_loop-0", "detail": {}}
    (runs / "running" / "events.jsonl").write_text(json.dumps(stall) + "\n")
    catalogue = Catalogue([runs])
    listing = Listing(catalogue, Watcher(catalogue))
    listing.read()
    assert any(not has_more for has_more in listing.analyse())
    assert [(row["run"], row["attention"]) for row in listing.read()] == [
        ("running", 2),
        ("failed", 2),
        ("slow-tool", 1),
        ("healthy", 0),
    ]


def test_a_step_has_the_lifetimes_of_all_its_trajectories(runs, get):
    """Begin and end of each in seconds from the start of the step, in the order of their ends: not only of those that are named."""
    story = stories.Story(runs / "r1", "r1")
    trainer, agent = story.process(), story.process("agent_loop")
    lives = [(100 + 0.5 * index, 103 + (7 * index) % 5 + index / 100) for index in range(9)]
    members = [stories.trajectory(agent, *life, index=index) for index, life in enumerate(lives)]
    stories.step(trainer, 1, 100, 120, [("gen", 100, 110)], members)
    story.write()
    document = json.loads(get("/api/runs/r1/steps/0").body)
    ordered = [at - 100 for life in sorted(lives, key=lambda life: life[1]) for at in life]
    assert document["lifetimes"] == pytest.approx(ordered, abs=1e-3)
    assert document["trajectories"][0]["after"] == pytest.approx(ordered[-2])
    assert len(document["trajectories"]) < document["members"] == len(lives)


def test_the_page_loads_only_its_own_files(get):
    """Page, modules, library and style come from the server, with a policy that allows nothing else, nor anything inline."""
    page = get("/")
    names = re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]*)"', page.body.decode())
    assert names == ["data:,", "app/vendor/uplot.css", "app/app.css", "app/vendor/uplot.js", "app/app.js"]
    for name in assembly.list_files():
        reply = get(f"/app/{name}")
        policy = dict(reply.headers)["Content-Security-Policy"]
        assert reply.status == 200
        assert dict(reply.headers)["Content-Type"].startswith("text/css" if name.endswith("css") else "text/javascript")
        assert policy == dict(page.headers)["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert get("/app/data.py").status == get("/app/../data.py").status == 404


def test_no_address_leaves_the_path_of_a_proxy():
    """Behind a proxy the page is below a path of its own, as below /user/me/proxy/9466/: it names no address from the root."""
    texts = [assembly.render_served(), *map(assembly.read, assembly.list_modules())]
    assert not [
        found for text in texts for found in re.findall(r"""["'`]/(?:api|app|run)\b[^"'`]*|href="/[^"]*""", text)
    ]
