# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The live page in a real Chromium: what is shown, that it grows with the run, keys, roles, and text from outside."""

import json
import subprocess
import sys

import pytest

from tests.analysis.test_reader import long_training
from tests.builders import stories
from tests.builders.environments import inherit
from verl_otel.cli import rollouts
from verl_otel.health import profiles

pytestmark = pytest.mark.browser


def test_the_home_lists_runs_and_leads_to_them(runs, serve, look):
    """By a link that has a name and is reached by keys."""
    stories.training(runs / "r1").write()
    page = look(serve())
    row = page.get_by_role("row").filter(has_text="r1")
    assert "finished" in row.inner_text()
    page.get_by_role("link", name="r1").press("Enter")
    page.wait_for_url("**/run/r1")
    page.get_by_text("calculator").first.wait_for()
    assert page.title() == "r1 · verl-otel"


def test_a_run_grows_while_it_is_looked_at(runs, tmp_path, serve, look):
    """Steps that end meanwhile appear without a reload, in an open table, too, and two viewers see the same."""
    source = long_training(tmp_path / "source", steps=12).write()
    (runs / "r1").mkdir(parents=True)
    for path in source.iterdir():
        data = path.read_bytes()
        (runs / "r1" / path.name).write_bytes(data[: len(data) // 2])
    address = serve()
    pages = [look(f"{address}/run/r1") for _ in range(2)]
    pages[0].get_by_text("Steps as a table").click()
    for path in source.iterdir():
        (runs / "r1" / path.name).write_bytes(path.read_bytes())
    for page in pages:
        page.get_by_text("12 steps").wait_for(timeout=60_000)
    pages[0].get_by_role("table", name="Steps, the newest first").get_by_role(
        "rowheader", name="12", exact=True
    ).wait_for()


def test_ten_thousand_steps_are_shown(runs, serve, look):
    """All of them in the chart, as means of 25, and the newest in the table."""
    story = stories.Story(runs / "r1")
    trainer = story.process()
    for number in range(1, 10_001):
        begin = 10.0 * number
        stories.step(
            trainer, number, begin, begin + 9, [("gen", begin, begin + 3), ("update_actor", begin + 3, begin + 9)]
        )
        trainer.scalar("verl.critic.rewards.mean", begin + 9, number / 10_000)
    story.write()
    page = look(f"{serve()}/run/r1")
    page.get_by_text("10,000 steps").wait_for(timeout=120_000)
    slider = page.get_by_role("slider", name="Time of each step by phase")
    slider.focus()
    slider.press("Home")
    assert slider.get_attribute("aria-valuetext").startswith("steps 1 to 25, mean: 9.00 s: update_actor 6.00 s")
    slider.press("End")
    assert slider.get_attribute("aria-valuetext").startswith("steps 9976 to 10000, mean: 9.00 s: update_actor 6.00 s")
    page.get_by_text("Steps as a table").click()
    table = page.get_by_role("table", name="Steps, the newest first")
    table.get_by_role("rowheader", name="10000", exact=True).wait_for()


def test_core_indicators_are_shown_with_their_bands(runs, serve, look):
    """A value outside of its band has a text; the profile is named."""
    story = stories.training(runs / "r1")
    story.manifest(**profiles.to_manifest(profiles.load("math")))
    trainer = story.process()
    trainer.scalar("verl.actor.ppo_kl", 1, 0.3)
    trainer.scalar("verl.critic.rewards.mean", 1, 0.5)
    story.write()
    page = look(f"{serve()}/run/r1")
    table = page.get_by_role("table", name="Core indicators, profile math")
    table.get_by_role("row").nth(1).wait_for()
    rows = [row.split("\t") for row in table.get_by_role("row").all_inner_texts()]
    assert ["policy KL", "0.3", "up to 0.05", "above its band"] in rows
    assert ["mean reward", "0.5", "0.1 to 0.95", "healthy"] in rows


def test_a_single_line_of_a_chart_has_a_name(runs, serve, look):
    """The title of a chart, such as Losses, does not tell which loss it shows."""
    story = stories.training(runs / "r1")
    trainer = story.process()
    for step in (1, 2):
        trainer.scalar("verl.actor.pg_loss", step, 0.1 * step)
    story.write()
    page = look(f"{serve()}/run/r1")
    page.get_by_text("actor.pg_loss", exact=True).and_(page.locator(".legend *")).first.wait_for()


def test_what_is_over_is_not_called_now(runs, serve, look):
    """Of a run that has ended the last state is shown, and what to do about it."""
    stories.training(runs / "r1").write()
    page = look(f"{serve()}/run/r1")
    for role in ("heading", "link"):
        page.get_by_role(role, name="At its end", exact=True).wait_for()
    page.get_by_text("To do: give the tool a time-out").wait_for()


def test_time_on_a_cpu_is_not_called_gpu_time(runs, serve, look):
    """The section of a run without a GPU has the words of the other pages."""
    stories.training(runs / "r1").write()
    page = look(f"{serve()}/run/r1")
    for role in ("heading", "link"):
        page.get_by_role(role, name="Device time (CPU)", exact=True).wait_for()


def test_a_chart_is_a_slider_with_words(runs, serve, look):
    """Arrow keys move along the steps, and the value is announced with its phases."""
    long_training(runs / "r1").write()
    page = look(f"{serve()}/run/r1")
    slider = page.get_by_role("slider", name="Time of each step by phase")
    slider.focus()
    slider.press("Home")
    slider.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext").startswith("step 2: 9.00 s: update_actor")
    reward = page.get_by_role("slider", name="Reward")
    reward.focus()
    reward.press("End")
    assert reward.get_attribute("aria-valuetext") == "step 12: 1"
    assert page.get_by_role("heading", level=2).all_inner_texts()[:3] == [
        "Now",
        "Steps",
        "Reward, KL and losses",
    ]


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window(runs, serve, look, width):
    """Neither the home nor a run has to be scrolled sideways."""
    long_training(runs / "r1").write()
    address = serve()
    for path in ("/", "/run/r1"):
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
    page = look(f"{serve()}/run/r1/samples/training/1")
    page.get_by_role("link", name="u1").click()
    page.get_by_role("article").nth(1).wait_for()
    first, second = page.get_by_role("article").all_inner_texts()
    assert "answer 0" in first
    assert "answer 1" in second
    assert hostile in page.get_by_role("region", name="Prompt").inner_text()


def test_two_runs_are_compared(runs, serve, look):
    """Both are chosen at home; their scalars share charts."""
    for name in ("r1", "r2"):
        long_training(runs / name).write()
    page = look(serve())
    page.get_by_label("Compare r1").check()
    page.get_by_label("Compare r2").check()
    page.get_by_role("link", name="Compare the two chosen runs").click()
    slider = page.get_by_role("slider", name="seconds of a step")
    slider.focus()
    slider.press("End")
    assert slider.get_attribute("aria-valuetext") == "step 12: r1 9, r2 9"
    row = page.get_by_role("row").filter(has_text="update_actor").first
    row.wait_for()  # the comparison is fetched after the charts are drawn
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[0] == cells[1]
    assert float(cells[0]) > 5


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
            pages = [look(f"{address}/run/r1"), look(address)]
            pages[0].get_by_text("running").first.wait_for(timeout=60_000)
            pages[1].get_by_role("row").filter(has_text="running").wait_for(timeout=60_000)
        finally:
            process.kill()
    pages[0].get_by_text("no end seen").first.wait_for(timeout=90_000)
    pages[1].get_by_role("row").filter(has_text="no end seen").wait_for(timeout=60_000)
    assert pages[0].get_by_role("slider", name="Time of each step by phase").is_visible()


def test_a_run_that_is_deleted_stays_shown(runs, serve, look):
    """What was read is answered on; only the list has it no longer."""
    folder = long_training(runs / "r1").write()
    address = serve()
    page = look(f"{address}/run/r1")
    page.get_by_text("12 steps").wait_for(timeout=60_000)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    page.reload()
    page.get_by_text("12 steps").wait_for()
    look(address).get_by_text("There is no run yet.").wait_for(timeout=30_000)
