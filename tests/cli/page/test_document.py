# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page as a file: its policy, what stands in it without any script, how it is written and what it says in words."""

import base64
import hashlib
import html
import re

import pytest

from tests.builders import stories
from tests.cli.page import explanations
from verl_otel._internal import printable
from verl_otel._internal.printable import seconds
from verl_otel.cli import headlines, page
from verl_otel.cli.page import assembly, document
from verl_otel.errors import VerlOtelError


def test_the_policy_allows_these_scripts_and_no_request():
    """The hashes in the policy are those of the one script and the one style; everything else is forbidden."""
    text = page.render(explanations.make(2, gpus=1))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    for name, content in (("style-src", style), ("script-src", script)):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def test_no_script_turns_data_into_code_or_markup():
    """No file of the page has a way from a text to markup or code, or asks anybody for anything."""
    for name in (*document.SCRIPTS, "frame.html", "page.html", "page.css"):
        text = assembly.read(name)
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "fetch(",
            "http:",
        ):
            assert word not in text, f"{name}: {word}"
        for address in re.findall(r"https:[^\s)]*", text):
            assert f"({address})" in text, "only as a source in a comment"


def test_what_held_the_run_stands_in_the_page_itself():
    """The first lines need no script: run, state, counts, verdicts with a link to the step, crashes and dead processes."""
    run = explanations.troubled(explanations.make(12))
    text = page.render(run)
    body = text.partition("<main>")[2].partition('<section id="steps"')[0]
    assert "was killed by signal 9" in body
    assert "DEAD: agent_loop-3 (pid 4711 on node-1) stopped writing 42.00 s before the others, with 3 open" in body
    lines = [line.text for line in headlines.find_headlines(run)]
    assert len(lines) > 3
    assert all(html.escape(line) in body for line in lines)
    assert '<a href="#step=7">' in body
    assert "17 spans have a parent in no file" in text
    assert "The clock of node-2 was found to be +0.310 s ahead" in text


def test_sections_without_content_are_left_out():
    """Events and what is missing have a section and a link only where there is any."""
    whole = explanations.make(3, gpus=1, scalars=0)._replace(validations=())
    for run, is_there in ((whole, False), (explanations.troubled(whole), True)):
        text = page.render(run)
        for key in ("events", "missing"):
            assert (f'<section id="{key}"' in text) == is_there
            assert (f'<a href="#{key}">' in text) == is_there


def test_a_run_without_gpus_has_device_time():
    """Nothing that the page says without scripts calls a CPU a GPU."""
    run = explanations.make(3, gpus=1, scalars=0)
    assert '<h2 id="gpu-title">GPU time</h2>' in page.render(run)
    text = page.render(run._replace(has_gpu=False)).partition('<script type="application/json"')[0]
    assert '<h2 id="gpu-title">Device time (CPU)</h2>' in text
    assert '<a href="#gpu">Device time (CPU)</a>' in text
    assert "GPU" not in text


def test_a_run_without_devices_has_no_account_of_them():
    """A loop of one's own without workers has no devices: neither section nor link is shown."""
    run = explanations.make(3, gpus=1, scalars=0)._replace(devices=(), has_gpu=False)
    text = page.render(run)
    assert '<section id="gpu" hidden ' in text
    assert '<a href="#gpu">' not in text
    assert '<section id="gpu" hidden ' not in page.render(run._replace(has_gpu=True))


def test_slow_steps_without_a_cause_are_among_the_first_lines():
    """A step without a verdict that took far longer than the others is named, with a link to it."""
    run = explanations.with_slow_step(explanations.make(12, gpus=1), 5, 40.0)
    body = page.render(run).partition("<main>")[2].partition('<section id="steps"')[0]
    assert f"Slow, and no single cause was found: step 5 ({seconds(run.steps[4].seconds)})." in body
    assert '<a href="#step=5">' in body


def test_a_name_that_looks_like_a_place_is_only_a_name():
    """Braces in a name are not filled in."""
    text = page.render(explanations.make(1, gpus=1, scalars=0, run_id="{{data}}"))
    assert "<bdi>{{data}}</bdi>" in text


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


def test_names_are_bounded_and_what_is_hidden_in_them_is_seen():
    """Controls, halves of characters and marks that turn text around are written out; other scripts and emoji stay."""
    assert printable.show("a\u202eb\x00\ud800") == r"a\u202eb\u0000\ud800"
    assert printable.show("مرحبا 👩‍🔬 数学") == "مرحبا 👩‍🔬 数学"
    assert len(printable.show("x" * 10_000)) == printable.LONGEST


def test_the_command_writes_the_page(call, runs, tmp_path):
    """``verl-otel report RUN --html FILE`` writes the page of a run from its files, with the same first lines as the report."""
    folder = stories.training(runs / "r1").write()
    path = tmp_path / "page.html"
    done = call("report", folder, "--html", path)
    assert (done.code, done.out) == (0, f"{path}: open it in a browser; it needs nothing else\n")
    first = call("report", folder).out.splitlines()[3]
    assert first.startswith("Step 2")
    assert html.escape(first) in path.read_text()
