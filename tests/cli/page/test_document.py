# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page as a file: its policy, what stands in it without any script, how it is written, and the library that it contains."""

import base64
import hashlib
import html
import json
import re
import shutil

import pytest

from tests.builders import stories
from tests.cli.page import embedded, explanations
from verl_otel.analysis import reader
from verl_otel.cli import headlines, page, rollouts
from verl_otel.cli.demo.command import RECORDED
from verl_otel.cli.page import assembly
from verl_otel.errors import VerlOtelError

LIBRARIES = {
    "vendor/uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "vendor/uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of `dist/uPlot.iife.min.js` and `dist/uPlot.min.css` of https://registry.npmjs.org/uplot/-/uplot-1.6.32.tgz."""


def test_the_policy_allows_these_scripts_and_no_request():
    """The hashes in the policy are those of the two scripts and the one style; everything else is forbidden."""
    text = page.render(explanations.make(2, gpus=1))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    for name, pattern in (("style-src", r"<style>(.*?)</style>"), ("script-src", r"<script>(.*?)</script>")):
        contents = re.findall(pattern, text, re.DOTALL)
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in contents]
        assert rules[name].split() == hashes


def test_no_script_turns_data_into_code_or_markup():
    """No own file of the page has a way from a text to markup or code, or an address of anybody."""
    for name in (*assembly.list_modules(), "app.html", "app.css"):
        text = assembly.read(name)
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in text, f"{name}: {word}"
        for address in re.findall(r"https?:[^\s)\"]*", text):
            assert f"({address})" in text or address == "http://www.w3.org/2000/svg", f"{name}: {address}"
    assert [name for name in assembly.list_modules() if "fetch(" in assembly.read(name)] == ["source.js"]


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_the_library_is_the_published_one(name):
    """Byte for byte; its licence lies beside it."""
    assert hashlib.sha256(assembly.read(name).encode()).hexdigest() == LIBRARIES[name]
    assert "MIT" in assembly.read("vendor/LICENSE")


def test_what_held_the_run_stands_in_the_page_itself():
    """The first lines need no script: counts, crashes, dead processes and verdicts."""
    run = explanations.troubled(explanations.make(12))
    body = page.render(run).partition("<noscript>")[2].partition("</noscript>")[0]
    assert "was killed by signal 9" in body
    assert "DEAD: agent_loop-3 (pid 4711 on node-1) stopped writing 42.00 s before the others, with 3 open" in body
    lines = [line.text for line in headlines.find_headlines(run)]
    assert len(lines) > 3
    assert all(html.escape(line) in body for line in lines)


def test_a_name_that_looks_like_a_place_is_only_a_name():
    """Braces in a name are not filled in."""
    text = page.render(explanations.make(1, gpus=1, scalars=0, run_id="{{data}}"))
    assert "<title>{{data}} · verl-otel</title>" in text


@pytest.mark.parametrize("name", ["stall", "crash"])
def test_the_file_does_not_have_the_folders_of_the_user(tmp_path, name):
    """That of the run, and those of the samples: a user may give the file to others."""
    folder = shutil.copytree(RECORDED / name, tmp_path / name)
    run = reader.read([folder])[0]
    samples = {key: str(tmp_path / "samples") for key in (rollouts.TRAINING, rollouts.VALIDATION)}
    documents = embedded.read(page.render(run._replace(manifest={**run.manifest, **samples})))
    assert "verl-otel explain RUN --events" in json.dumps(documents)
    assert str(tmp_path) not in json.dumps(documents)


def test_a_failed_writing_leaves_nothing_behind(tmp_path, monkeypatch):
    """Either the whole page is there or what was there before."""
    path = tmp_path / "page.html"
    path.write_text("before")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(VerlOtelError, match=r"page\.html cannot be written: No space"):
        page.write(explanations.make(1, gpus=1), path)
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "before"


def test_the_command_writes_the_page(call, runs, tmp_path):
    """``verl-otel report RUN --html FILE`` writes the page of a run from its files, with the same first lines as the report."""
    folder = stories.training(runs / "r1").write()
    path = tmp_path / "page.html"
    done = call("report", folder, "--html", path)
    assert (done.code, done.out) == (0, f"{path}: open it in a browser; it needs nothing else\n")
    first = call("report", folder).out.splitlines()[3]
    assert first.startswith("Step 2")
    assert html.escape(first) in path.read_text()
