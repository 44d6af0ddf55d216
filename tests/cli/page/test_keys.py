# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page with keys alone, as a screen reader has it, and for eyes that see few colours."""

import re

import pytest

from tests.cli.page import explanations
from verl_otel.cli.page import assembly
from verl_otel.semconv.kinds import GPU_CAUSES, WORK

pytestmark = pytest.mark.browser


def chosen(opened, number):
    """Wait until a step is shown."""
    opened.locator("#step-title", has_text=f"Step {number}: ").wait_for(timeout=60_000)


def test_keys_choose_a_step(show):
    """Arrows, page keys, ends and the next delayed step; the value is announced in words, the address follows, Enter leads to the step."""
    opened = show(explanations.make(40, slow=(7, 33)), address="#step=7").page
    plot = opened.locator("#steps .plot")
    plot.focus()
    for key, number in (
        ("ArrowRight", 8),
        ("v", 33),
        ("ArrowLeft", 32),
        ("Home", 1),
        ("PageDown", 5),
        ("End", 40),
        ("ArrowRight", 40),
        ("Shift+V", 33),
    ):
        opened.keyboard.press(key)
        chosen(opened, number)
        assert plot.get_attribute("aria-valuenow") == str(number - 1)
        assert plot.get_attribute("aria-valuetext").startswith(f"Step {number}: ")
        assert opened.evaluate("location.hash") == f"#step={number}"
    assert "Delayed by tool python" in plot.get_attribute("aria-valuetext")
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "step-title"


def test_an_address_leads_to_its_step(show):
    """A link that was copied opens the same step; one that is followed within the page leads there."""
    opened = show(explanations.make(12, slow=(7, 9)), address="#step=4").page
    chosen(opened, 4)
    opened.locator("#findings a", has_text="Look at step 9").click()
    chosen(opened, 9)


def test_the_pointer_chooses_a_step(show):
    """A click on a column chooses its step; a drag looks closer."""
    opened = show(explanations.make(20)).page
    box = opened.locator("#steps .plot").bounding_box()
    column = (box["width"] - 56) / 20
    opened.mouse.click(box["x"] + 52 + 14.5 * column, box["y"] + 150)
    chosen(opened, 15)
    opened.mouse.move(box["x"] + 52 + 10 * column, box["y"] + 150)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 52 + 20 * column, box["y"] + 150, steps=5)
    opened.mouse.up()
    opened.mouse.click(box["x"] + 52 + 1, box["y"] + 150)
    chosen(opened, 11)


def test_the_table_of_the_critical_path_is_its_chart(show):
    """What the waterfall shows can be read as rows, opened with a key: they follow each other and sum up to the step."""
    run = explanations.make(8)
    opened = show(run).page
    opened.locator("summary", has_text="The critical path as a table").focus()
    opened.keyboard.press("Enter")
    table = opened.locator("#step table", has_text="Critical path of step 7")
    table.locator("tbody tr").first.wait_for()
    more = opened.locator("#step .as-table .more button")
    while more.count():
        more.first.click()
    rows = [row.split("\t") for row in table.locator("tbody").inner_text().splitlines()]
    step = run.steps[6]
    assert len(rows) == len(step.path)
    assert [row[5] or "" for row in rows] == [
        f"5ee0d1c4/{each.trace_id - 1}" if each.trace_id else "" for each in step.path
    ]
    assert sum(float(row[1]) for row in rows) == pytest.approx(step.seconds, abs=1e-4 * len(rows))


def test_keys_walk_along_the_critical_path(show, wait_for):
    """In the waterfall arrows go from part to part, up and down between lanes, and + looks closer."""
    run = explanations.make(8)
    opened = show(run).page
    plot = opened.locator("#step .plot")
    plot.focus()
    said = lambda: plot.get_attribute("aria-valuetext")  # noqa: E731
    assert said().startswith("Phase gen: ")
    opened.keyboard.press("ArrowDown")
    assert "phase gen" in said()
    first = said()
    opened.keyboard.press("ArrowRight")
    assert said() != first
    opened.keyboard.press("End")
    assert said().startswith("reward math") or "trajectory" in said()
    canvas = opened.locator("#step canvas").first
    before = canvas.evaluate("each => each.toDataURL()")
    opened.keyboard.press("+")
    wait_for(lambda: canvas.evaluate("each => each.toDataURL()") != before)


def test_enter_opens_a_trajectory(show):
    """From the list of the slowest, a trajectory is opened with its turns and tools."""
    opened = show(explanations.make(8)).page
    plot = opened.locator("#trajectories .plot").first
    plot.focus()
    opened.keyboard.press("ArrowDown")
    label = re.match(r"Trajectory (\S+):", plot.get_attribute("aria-valuetext"))[1]
    opened.keyboard.press("Enter")
    assert opened.inner_text("#trajectories .card h3").startswith(f"Trajectory {label}: ")
    assert "tool python" in opened.inner_text("#trajectories .card p")


def test_a_table_sorts_by_its_heads(show):
    """A head is a button; it sorts and says how."""
    opened = show(explanations.make(8)).page
    table = opened.locator("#trajectories table").first
    head = table.locator("th", has_text="score").locator("button")
    head.focus()
    opened.keyboard.press("Enter")
    assert table.locator("th", has_text="score").get_attribute("aria-sort") == "descending"
    place = 1 + table.locator("thead th").all_inner_texts().index("score")  # empty columns are left out
    scores = [float(text) for text in table.locator(f"tbody tr td:nth-child({place})").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)


def test_columns_without_content_are_left_out(show):
    """Each head has at least one cell with text below it."""
    table = show(explanations.make(8)).page.locator("#trajectories table").first
    heads = table.locator("thead th").all_inner_texts()
    assert {"trajectory", "score"} < set(heads)
    for place in range(2, len(heads) + 1):
        assert any(table.locator(f"tbody tr td:nth-child({place})").all_inner_texts()), heads[place - 1]


def test_scalars_are_chosen(show):
    """Every line can be found by its name and shown."""
    opened = show(explanations.make(8, scalars=40)).page
    before = opened.locator(".scalar").count()
    opened.locator("summary", has_text="Choose from 40 scalars").click()
    opened.fill("#filter", "line_31")
    opened.locator(".choices input").check()
    assert opened.locator(".scalar").count() == before + 1
    assert opened.locator(".scalar figcaption").last.inner_text() == "verl.other.line_31"


def test_the_gpu_time_follows_the_choice(show):
    """The ledger is that of the run, or of the chosen step."""
    opened = show(explanations.make(8)).page
    of_run = opened.inner_text("#gpu .big")
    opened.locator("#gpu").get_by_label("the chosen step").check()
    assert opened.inner_text("#gpu .big") != of_run
    assert re.fullmatch(r"productive \d+ % · overhead \d+ % · idle \d+ % of .* GPU time", of_run)


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
    assert len(focusable) > 40
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
    assert len(places) > 40
    assert "none" not in outlines


def test_charts_are_sliders_with_words_and_a_table(show):
    """Each chart has a role, a name and its value in words; below it the same as a table. Headings and tables have their parts."""
    opened = show(explanations.make(8)).page
    for plot in opened.locator(".plot").all():
        assert plot.get_attribute("role") == "slider"
        assert plot.get_attribute("aria-label")
        assert plot.get_attribute("aria-valuetext")
    assert opened.locator("canvas:not([aria-hidden])").count() == 0
    assert opened.locator(".as-table").count() >= 4
    assert opened.locator("h1").count() == 1
    assert opened.locator("section:not([aria-labelledby])").count() == 0
    assert opened.locator("table:not(:has(caption))").count() == 0
    assert opened.locator("input:not([id])").count() == 0
    assert opened.evaluate("document.documentElement.lang") == "en"


def luminance(colour):
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Contrast ratio (WCAG 2.2)."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def schemes():
    """The colours of the style sheet: light, dark."""
    style = assembly.read("page.css")
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", style)
    return [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block)) for block in blocks]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_areas_stand_out(scheme):
    """Text has a contrast of 4.5 to 1 on everything that it stands on, areas and edges of 3 to 1 (WCAG 2.2, 1.4.3 and 1.4.11)."""
    colours = schemes()[scheme]
    for text in ("ink", "soft", "link", "mark"):
        for behind in ("paper", "ground", "note"):
            assert contrast(colours[text], colours[behind]) >= 4.5, (text, behind)
    for area in ("blue", "sky", "green", "yellow", "orange", "vermillion", "purple", "grey", "edge"):
        assert contrast(colours[area], colours["paper"]) >= 3, area


def test_no_two_things_look_alike():
    """Whatever a chart shows together differs in hue or in pattern, and idle GPUs are patterned, productive ones plain."""
    block = re.search(r"const PHASES = \{(.*?)\n\};", assembly.read("colours.js"), re.DOTALL)[1]
    phases = re.findall(r'"?(?:\w[\w ]*)"?: \["(\w+)", "(\w+)"', block)
    work = [each.look[:2] for each in WORK.values()]
    causes = [cause.look[:2] for cause in GPU_CAUSES.values()]
    for looks in (phases, work, causes):
        assert len(set(looks)) == len(looks) > 10
    plain = {name for name, cause in GPU_CAUSES.items() if cause.look[1] == "solid"}
    assert plain == {name for name, cause in GPU_CAUSES.items() if cause.state == "productive"} == {"train", "rollout"}
