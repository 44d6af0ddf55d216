# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The live page in a real Chromium: what is shown, that it grows with the run, keys, roles, and text from outside."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.analysis.test_reader import long_training
from tests.builders import stories
from tests.builders.environments import inherit
from tests.cli.page.painting import FIRST_PAINT, watch
from verl_otel.cli import rollouts
from verl_otel.cli.demo.command import RECORDED
from verl_otel.health import profiles

pytestmark = pytest.mark.browser


def test_the_home_lists_runs_and_leads_to_them(runs, serve, look):
    """By a link that has a name and is reached by keys."""
    story = stories.training(runs / "r1")
    story.status({"state": "finished", "time": stories.T0 + 25, "step": 2})
    story.write()
    page = look(serve())
    row = page.get_by_role("row").filter(has_text="r1")
    assert "finished" in row.inner_text()
    page.get_by_role("link", name="r1").press("Enter")
    page.wait_for_url("**/#/run/r1")
    page.get_by_text("calculator").first.wait_for()
    assert page.title() == "r1 · verl-otel"


def test_home_says_which_run_needs_somebody(runs, serve, look):
    """The finding of each run is there although none was opened; search, filters and the choice of two are in the address."""
    for name in ("slow-tool", "healthy"):
        shutil.copytree(RECORDED / name, runs / name)
    page = look(serve())
    page.get_by_role("row").filter(has_text="slow-tool").get_by_text("tool add").wait_for(timeout=60_000)
    page.get_by_role("row").filter(has_text="nothing unusual").wait_for(timeout=60_000)
    page.get_by_label("Search runs and findings").fill("tool add")
    assert page.locator("tbody tr").count() == 1
    page.get_by_label("Compare slow-tool").check()
    page.reload()
    page.get_by_label("Compare slow-tool").wait_for()
    assert page.get_by_label("Compare slow-tool").is_checked()
    assert page.locator("tbody tr").count() == 1


def test_a_run_grows_while_it_is_looked_at(runs, tmp_path, serve, look):
    """Steps that end meanwhile appear without a reload, in an open table, too, and two viewers see the same."""
    source = long_training(tmp_path / "source", steps=12).write()
    (runs / "r1").mkdir(parents=True)
    for path in source.iterdir():
        data = path.read_bytes()
        (runs / "r1" / path.name).write_bytes(data[: len(data) // 2])
    address = serve()
    pages = [look(f"{address}/#/run/r1") for _ in range(2)]
    pages[0].get_by_text("Steps as a table").click()
    for path in source.iterdir():
        (runs / "r1" / path.name).write_bytes(path.read_bytes())
    for page in pages:
        page.get_by_text("analysed until step 12").wait_for(timeout=60_000)
    pages[0].get_by_role("table", name="Steps, the newest first").get_by_role(
        "rowheader", name="12", exact=True
    ).wait_for()


def test_ten_thousand_steps_are_shown(runs, serve, look):
    """All of them in the chart, and the newest in the table."""
    story = stories.Story(runs / "r1")
    trainer = story.process()
    for number in range(1, 10_001):
        begin = 10.0 * number
        stories.step(
            trainer, number, begin, begin + 9, [("gen", begin, begin + 3), ("update_actor", begin + 3, begin + 9)]
        )
        trainer.scalar("verl.critic.rewards.mean", begin + 9, number / 10_000)
    story.write()
    page = look(f"{serve()}/#/run/r1")
    page.get_by_text("analysed until step 10000").wait_for(timeout=120_000)
    slider = page.get_by_role("slider", name="Time of each step")
    slider.press("Home")
    assert slider.get_attribute("aria-valuetext") == "Step 1: 9.00 s · update_actor 6.00 s · gen 3.00 s"
    slider.press("End")
    assert slider.get_attribute("aria-valuetext") == "Step 10000: 9.00 s · update_actor 6.00 s · gen 3.00 s"
    page.get_by_text("Steps as a table").click()
    table = page.get_by_role("table", name="Steps, the newest first")
    table.get_by_role("rowheader", name="10000", exact=True).wait_for()


@pytest.mark.full
def test_five_hundred_runs_do_not_block_home(runs, serve, look):
    """They are painted within a second, and no task takes 100 ms: at load, while the list is scrolled and searched, and while findings arrive."""
    for number in range(500):
        stories.training(runs / f"run-{number}").write()
    address = serve()
    page = look(address)
    page.get_by_text("500 runs").wait_for(timeout=120_000)
    painted = []
    with watch(page) as longest:
        for _ in range(3):  # the best of them: another process may hold the machine for a moment
            page.goto("about:blank")
            page.goto(address)
            page.locator("tbody tr").nth(49).wait_for()
            painted.append(page.evaluate(FIRST_PAINT))
            for _ in range(10):
                page.mouse.wheel(0, 400)
            page.get_by_label("Search runs and findings").press_sequentially("run-499")
            page.wait_for_timeout(3_000)
            assert page.locator("tbody tr").count() == 1
    print(f"painted after, ms: {painted}; longest tasks, ms: {longest}")
    assert min(painted) < 1_000
    assert 0 < longest[0] <= 100


def test_core_indicators_are_shown_with_their_bands(runs, serve, look):
    """A value outside of its band has a text; the profile is named."""
    story = stories.training(runs / "r1")
    story.manifest(**profiles.to_manifest(profiles.load("math")))
    trainer = story.process()
    trainer.scalar("verl.actor.ppo_kl", 1, 0.3)
    trainer.scalar("verl.critic.rewards.mean", 1, 0.5)
    story.write()
    page = look(f"{serve()}/#/run/r1")
    table = page.get_by_role("table", name="Core indicators, profile math")
    table.get_by_role("row").nth(1).wait_for()
    rows = [" ".join(row.split()) for row in table.get_by_role("row").all_inner_texts()]
    assert "policy KL ▲ above its band (up to 0.05) 0.3" in rows
    assert "mean reward in its band (0.1 to 0.95) 0.5" in rows


def test_a_single_line_of_a_chart_has_a_name(runs, serve, look):
    """The title of a chart, such as Losses, does not tell which loss it shows; the name is that of verl."""
    story = stories.training(runs / "r1")
    trainer = story.process()
    for step in (1, 2):
        trainer.scalar("verl.actor.pg_loss", step, 0.1 * step)
    story.write()
    page = look(f"{serve()}/#/run/r1")
    page.locator(".legend li", has_text="actor/pg_loss").wait_for()


def test_the_pages_of_a_step_lead_to_its_trajectories(runs, serve, look):
    """Step, trajectory and back by the address; each has the verdict or the calls that the analysis found."""
    stories.training(runs / "r1").write()
    page = look(f"{serve()}/#/run/r1/step/2")
    page.locator("#waterfall .lane").nth(2).wait_for(timeout=60_000)
    page.locator(".verdict", has_text="calculator").wait_for()
    page.locator("#waterfall .lane a").first.click()
    page.get_by_role("table", name="Calls of the trajectory").wait_for()
    page.go_back()
    page.locator("#waterfall").wait_for()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(runs, serve, look, width):
    """No page has to be scrolled sideways, nor one of a name of 400 letters."""
    long_training(runs / "r1").write()
    story = long_training(runs / "r2")
    story.manifest(**{"verl.project": "p" * 400, "verl.experiment": "<b>'x" * 80})
    story.write()
    address = serve()
    for path in ("/", "/#/run/r1", "/#/run/r1/step/3", "/#/compare/r1/r2"):
        page = look(address + path, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_siblings_are_shown_side_by_side_and_text_is_not_parsed(runs, tmp_path, serve, look):
    """Prompts and responses may contain markup: it is shown as it is."""
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    lines = [{"input": "2+2?" + hostile, "output": f"answer {index}" + hostile, "gts": "4", "score": float(index), "step": 1,
              "uid": f"u1_{index}_0"} for index in range(2)]  # fmt: skip
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    story = long_training(runs / "r1")
    folder = story.write()
    story.manifest(**{rollouts.TRAINING: str(tmp_path)})
    assert folder.is_dir()
    page = look(f"{serve()}/#/run/r1/samples/training/1")
    page.get_by_role("link", name="u1").click()
    page.get_by_role("article").nth(1).wait_for()
    first, second = page.get_by_role("article").all_inner_texts()
    assert "answer 0" in first
    assert "answer 1" in second
    assert hostile in page.get_by_role("region", name="Prompt").inner_text()


def test_two_runs_are_compared(runs, serve, look):
    """Both are chosen at home; the sentences of the command come first, and their scalars share charts."""
    for name in ("r1", "r2"):
        long_training(runs / name).write()
    page = look(serve())
    page.get_by_label("Compare r1").check()
    page.get_by_label("Compare r2").check()
    page.get_by_role("link", name="Compare the two chosen runs").click()
    page.get_by_text("Not significant: a typical step took 9.00 s in A, 9.00 s in B").wait_for(timeout=60_000)
    slider = page.get_by_role("slider", name="Step without start-up")
    slider.press("End")
    assert re.fullmatch("step 12: A 9.00 s · B 9.00 s", slider.get_attribute("aria-valuetext"))
    row = page.get_by_role("row").filter(has_text="update_actor").first
    first, second, *_ = row.get_by_role("cell").all_inner_texts()
    assert first == second != ""


LOOP = """
import sys, time, verl_otel
verl_otel.init(exporters="file", run_dir=sys.argv[1], run_id="r1")
for number in range(1, 10_000):
    with verl_otel.step(number):
        time.sleep(0.2)
"""


def test_a_run_that_is_killed_while_it_is_looked_at(runs, serve, look, wait_for):
    """Two viewers see it running, and then that it has no end; what was read stays."""
    command = [sys.executable, "-c", LOOP, runs]
    with subprocess.Popen(command, env=inherit("PYTEST", "VERL_OTEL")) as process:
        try:
            wait_for(lambda: list(runs.glob("r1/traces-*")), 30)
            address = serve()
            pages = [look(f"{address}/#/run/r1"), look(address)]
            pages[0].get_by_text("running").first.wait_for(timeout=60_000)
            pages[1].get_by_role("row").filter(has_text="running").wait_for(timeout=60_000)
        finally:
            process.kill()
    pages[0].get_by_text("no end seen").first.wait_for(timeout=90_000)
    pages[1].get_by_role("row").filter(has_text="no end seen").wait_for(timeout=60_000)
    assert pages[0].get_by_role("slider", name="Time of each step").is_visible()


def test_a_run_that_is_deleted_stays_shown(runs, serve, look):
    """What was read is answered on; only the list has it no longer."""
    folder = long_training(runs / "r1").write()
    address = serve()
    page = look(f"{address}/#/run/r1")
    page.get_by_text("analysed until step 12").wait_for(timeout=60_000)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    page.reload()
    page.get_by_text("analysed until step 12").wait_for()
    look(address).get_by_text("There is no run yet.").wait_for(timeout=30_000)
