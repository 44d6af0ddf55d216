# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page with keys alone, and as a screen reader has it."""

import re

import pytest

from tests.cli.page import explanations
from verl_otel.analysis.steps import pack_lifetimes

pytestmark = pytest.mark.browser


def chosen(opened, number):
    """Wait until a step is shown."""
    opened.locator("#step-title", has_text=f"Step {number}: ").wait_for(timeout=60_000)


def test_keys_choose_a_step(show):
    """Arrows, page keys, ends and the next slow step; the value is announced in words, Enter opens the step, whose address can be kept."""
    run = explanations.make(40, slow=(7, 33))
    opened = show(run).page
    plot = opened.get_by_role("slider", name="Time of each step")
    plot.press("Home")
    for key, number in (
        ("ArrowRight", 2),
        ("v", 7),
        ("v", 33),
        ("ArrowLeft", 32),
        ("PageDown", 36),
        ("End", 40),
        ("ArrowRight", 40),
        ("Shift+V", 33),
    ):
        opened.keyboard.press(key)
        assert plot.get_attribute("aria-valuenow") == str(number - 1)
        assert plot.get_attribute("aria-valuetext").startswith(f"Step {number}: ")
    assert " s longer than usual" in plot.get_attribute("aria-valuetext")
    opened.keyboard.press("Enter")
    chosen(opened, 33)
    assert opened.evaluate("location.hash") == f"#/run/{run.run_id}/step/33"


def test_an_address_leads_to_its_step(show):
    """A link that was copied opens the same step; one that is followed within the page leads there."""
    run = explanations.make(12, slow=(7, 9))
    opened = show(run, address=f"#/run/{run.run_id}/step/4").page
    chosen(opened, 4)
    opened.get_by_role("link", name="The next slow step").click()
    chosen(opened, 7)
    opened.get_by_role("link", name="The next step").click()
    chosen(opened, 8)


def test_the_pointer_chooses_a_step(show):
    """A click on a column opens its step."""
    opened = show(explanations.make(20)).page
    box = opened.locator("#steps .u-over").bounding_box()
    opened.mouse.move(box["x"] + 14.5 * box["width"] / 20, box["y"] + 150)
    opened.mouse.click(box["x"] + 14.5 * box["width"] / 20, box["y"] + 150)
    chosen(opened, 15)


def test_the_table_of_the_critical_path_is_its_chart(show):
    """What the waterfall shows can be read as rows, opened with a key: they follow each other and sum up to the step."""
    run = explanations.make(8)
    opened = show(run, address=f"#/run/{run.run_id}/step/7").page
    opened.locator("summary", has_text="The critical path as a table").press("Enter")
    table = opened.get_by_role("table", name="Critical path")
    table.locator("tbody tr").first.wait_for()
    more = opened.locator("#waterfall button.more:visible")
    while more.count():
        more.first.click()
    rows = [row.split("\t") for row in table.locator("tbody").inner_text().splitlines()]
    step = run.steps[6]
    assert len(rows) == len(step.path)
    assert [row[5] or "" for row in rows] == [
        f"5ee0d1c4/{each.trace_id - 1}" if each.trace_id else "" for each in step.path
    ]
    assert sum(float(row[1]) for row in rows) == pytest.approx(step.seconds, abs=1e-3 * len(rows))


def test_the_trajectories_of_a_step_are_lanes_and_links(show):
    """The one that ended last comes first; a key on its name, or a click on its lane, opens it with its turns and calls."""
    run = explanations.make(8)
    opened = show(run, address=f"#/run/{run.run_id}/step/7").page
    lanes = opened.locator("#waterfall .lane-label").all_inner_texts()
    assert lanes[:2] == ["Phases", "Critical path"]
    last = max(run.steps[6].slowest, key=lambda each: each.end_ns)
    assert lanes[2].startswith(last.label)
    opened.locator("#waterfall .lane a").first.press("Enter")
    heading = opened.locator("h1", has_text=f"Trajectory {last.label}: ")
    heading.wait_for()
    rows = opened.get_by_role("table", name="Calls of the trajectory").locator("tbody tr")
    assert rows.count() == min(40, len(last.activities))
    opened.go_back()
    opened.locator("#waterfall .lane").nth(2).locator(".lane-track").click(position={"x": 40, "y": 6})
    heading.wait_for()


def test_all_trajectories_of_a_step_are_one_picture(show):
    """As lines in the order of their ends, with a text; the last one is named below it."""
    run = explanations.make(8)
    lives = pack_lifetimes(run.steps[6].slowest, run.steps[6].start_ns)
    steps = (*run.steps[:6], run.steps[6]._replace(lifetimes=lives), run.steps[7])
    opened = show(run._replace(steps=steps), address=f"#/run/{run.run_id}/step/7").page
    picture = opened.get_by_role("img", name=re.compile(r"^\d+ trajectories in the order of their ends, the first one"))
    picture.wait_for()
    assert picture.locator("path").first.get_attribute("d").count("M") == len(run.steps[6].slowest) - 1
    last = max(run.steps[6].slowest, key=lambda each: each.end_ns)
    assert re.match(rf"{last.label} .* last$", opened.locator("#waterfall .lane-label").nth(3).inner_text())


def test_a_table_sorts_by_its_heads(show):
    """A head is a button; it sorts and says how."""
    opened = show(explanations.make(8)).page
    table = opened.get_by_role("table", name="Slowest trajectories of the run")
    head = table.locator("th", has_text="Score")
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    place = 1 + table.locator("thead th").all_inner_texts().index("Score ▼".removesuffix(" ▼"))
    scores = [float(text) for text in table.locator(f"tbody tr td:nth-child({place})").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)


def test_columns_without_content_are_left_out(show):
    """Each head has at least one cell with text below it."""
    table = show(explanations.make(8)).page.get_by_role("table", name="Slowest trajectories of the run")
    heads = table.locator("thead th").all_inner_texts()
    assert {"Trajectory", "Score"} < set(heads)
    for place in range(2, len(heads) + 1):
        assert any(table.locator(f"tbody tr td:nth-child({place})").all_inner_texts()), heads[place - 1]


def test_scalars_are_found_by_verls_names_and_stay_in_the_address(show):
    """Every line can be found by a part of its name and shown."""
    opened = show(explanations.make(8, scalars=40)).page
    opened.fill("#scalar-search", "line_31")
    opened.get_by_label("other/line_31").check()
    shown = opened.locator("#scalars figcaption", has_text="other/line_31")
    shown.wait_for()
    opened.reload()
    shown.wait_for()


def test_the_columns_can_be_those_of_gpu_time(show):
    """The choice is a list; the value in words follows it."""
    opened = show(explanations.make(8)).page
    opened.get_by_label("Columns").select_option("by cause of device time")
    plot = opened.get_by_role("slider", name="Time of each step")
    plot.press("End")
    assert re.search(r"· (training|rollout) ", plot.get_attribute("aria-valuetext"))


@pytest.mark.parametrize("width", [1280, 400])
def test_whatever_has_the_focus_has_a_name_and_is_seen(show, width):
    """The Tab key comes by everything in the order of the page, never gets stuck; each stop has a role, a name and an outline."""
    opened = show(explanations.troubled(explanations.make(8)), width=width).page
    tree = opened.context.new_cdp_session(opened).send("Accessibility.getFullAXTree")["nodes"]
    focusable = [
        node
        for node in tree
        if not node.get("ignored")
        and any(each["name"] == "focusable" and each["value"]["value"] for each in node.get("properties", []))
        and node["role"]["value"] != "RootWebArea"
    ]
    assert len(focusable) > 30
    assert [node["role"]["value"] for node in focusable if not node.get("name", {}).get("value")] == []
    places, outlines = [], set()
    for _ in range(400):
        opened.keyboard.press("Tab")
        place, outline = opened.evaluate(
            """() => {
                const at = document.activeElement;
                return [[...document.querySelectorAll("*")].indexOf(at), getComputedStyle(at).outlineStyle];
            }"""
        )
        if places and place <= places[-1]:
            break
        places.append(place)
        outlines.add(outline)
    assert len(places) > 30
    assert "none" not in outlines


def test_charts_are_sliders_with_words(show):
    """Each chart has a role, a name and its value in words. Headings, tables and controls have their parts."""
    opened = show(explanations.make(8)).page
    plots = opened.locator(".plot").all()
    assert len(plots) > 4
    for plot in plots:
        assert plot.get_attribute("role") == "slider"
        assert plot.get_attribute("aria-label")
        assert plot.get_attribute("aria-valuetext")
    assert opened.locator("h1").count() == 1
    assert opened.locator("section:not([aria-labelledby], [aria-label])").count() == 0
    assert opened.locator("table:not(:has(caption))").count() == 0
    assert opened.locator("input:not([id], [aria-label], label > *)").count() == 0
    assert opened.evaluate("document.documentElement.lang") == "en"
