# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of accessibility that every view of the app keeps, each with its number in WCAG 2.2, and what keys alone reach."""

import shutil

import pytest

from tests.analysis.test_reader import long_training
from verl_otel._internal import printable
from verl_otel.cli.demo.command import RECORDED

pytestmark = pytest.mark.browser

BROKEN = """() => {
    const all = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility());
    const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
    const name = (each) => each.getAttribute("aria-label") || each.labels?.[0]?.innerText || each.innerText.trim()
        || document.getElementById(each.getAttribute("aria-labelledby"))?.innerText || "";
    const levels = all("h1, h2, h3").map((each) => Number(each.tagName[1]));
    const colour = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => rgb.slice(0, 3).map((each) => each / 255)
        .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = (each) => {
        for (let at = each; at; at = at.parentElement) {
            const found = colour(getComputedStyle(at).backgroundColor);
            if (found.length === 3 || found[3] === 1) return found;
        }
        return [255, 255, 255];
    };
    const contrast = (each) => {
        const [a, b] = [light(colour(getComputedStyle(each).color)), light(behind(each))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    };
    const own = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const rules = {
        "2.4.2 a title": document.title ? [] : ["title"],
        "3.1.1 a language": document.documentElement.lang ? [] : ["lang"],
        "1.3.1 one main, one h1": all("main").length === 1 && all("h1").length === 1 ? [] : ["main or h1"],
        "1.3.1 no level of headings is left out": levels.filter((level, place) => level > (levels[place - 1] ?? 0) + 1),
        "4.1.1 ids are unique": ids.filter((id, place) => ids.indexOf(id) !== place),
        "4.1.2 what can be used has a name": all("a, button, input, select, summary, [role=slider], [role=region]")
            .filter((each) => !name(each)),
        "1.1.1 images have a text": all("img, [role=img]").filter((each) => !each.getAttribute("aria-label")),
        "1.3.1 tables have a caption and heads": all("table")
            .filter((each) => !each.caption || (each.tHead && [...each.tHead.rows[0].cells].some((cell) => cell.scope !== "col"))),
        "1.3.1 sections have a name": all("section").filter((each) => !name(each)),
        "1.4.3 text has a contrast of 4.5": all("body *").filter((each) => own(each) && !each.closest("svg, .bar, .unseen") && contrast(each) < 4.5),
        "2.5.8 targets are 24 pixels high": all("button, select, input:not([type=checkbox], [type=radio])")
            .filter((each) => each.getBoundingClientRect().height < 24),
        "1.4.10 no run is cut at the side": all(".runs th, .runs td").filter((each) => each.getBoundingClientRect().right > innerWidth),
        "2.1.1 no order of its own": all("[tabindex]").filter((each) => each.tabIndex > 0),
        "2.1.1 what scrolls takes keys": all("*").filter((each) => each.scrollWidth > each.clientWidth + 1
            && /auto|scroll/.test(getComputedStyle(each).overflowX) && each.tabIndex < 0),
    };
    const show = (each) => typeof each === "object" ? each.outerHTML.slice(0, 160) : String(each);
    return Object.entries(rules).filter(([, found]) => found.length).map(([rule, found]) => [rule, found.length, show(found[0])]);
}"""


@pytest.fixture
def address(runs, serve):
    """The live page of recorded runs."""
    for name in ("slow-tool", "healthy", "crash"):
        shutil.copytree(RECORDED / name, runs / name)
    return serve()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_no_view_breaks_a_rule(address, look, width, scheme):
    """Home, a run, a step, a trajectory and a comparison: with all their parts open."""
    page = look(address, width=width)
    page.emulate_media(color_scheme=scheme)
    page.get_by_text("died").first.wait_for(timeout=60_000)
    broken = {"home": page.evaluate(BROKEN)}
    for view, place, ready in (
        ("run", "#/run/slow-tool", "#about dt"),
        ("crash", "#/run/crash", "#about dt"),
        ("step", "#/run/slow-tool/step/4", "#waterfall .lane"),
        ("compare", "#/compare/healthy/slow-tool", "#differences tbody tr"),
    ):
        page.goto(f"{address}/{place}")
        page.locator(ready).nth(1).wait_for(timeout=60_000)
        for part in page.locator("details > summary").all():
            part.click()
        broken[view] = page.evaluate(BROKEN)
        if view == "step":
            page.locator("#waterfall .lane a").first.press("Enter")
            page.locator("#calls tbody tr").first.wait_for()
            broken["trajectory"] = page.evaluate(BROKEN)
    assert {view: found for view, found in broken.items() if found} == {}


@pytest.mark.full
def test_all_views_are_reached_by_keys(address, look):
    """From home to a run, a step, a trajectory and back, and two runs chosen and compared, without a pointer."""
    page = look(address)
    page.get_by_label("Compare healthy").wait_for()
    for name in ("healthy", "slow-tool"):
        page.get_by_label(f"Compare {name}").press("Space")
    page.get_by_role("link", name="Compare the two chosen runs").press("Enter")
    page.locator("#differences tbody tr").first.wait_for(timeout=60_000)
    page.locator("h1").get_by_role("link", name="slow-tool").press("Enter")
    page.get_by_role("link", name="Look at step 4").press("Enter")
    page.locator("#waterfall .lane a").first.press("Enter")
    page.locator("#calls tbody tr").first.wait_for()
    page.get_by_role("navigation", name="Where you are").get_by_role("link", name="slow-tool").press("Enter")
    page.locator("#verdict .verdict-line").first.wait_for()
    page.get_by_role("link", name="verl-otel", exact=True).press("Enter")
    page.get_by_label("Search runs and findings").wait_for()


@pytest.mark.full
def test_hostile_facts_of_a_run_are_text_on_every_view(runs, serve, look):
    """Script, quotes, right-to-left marks, 400 characters: at home, on the page of the run and in a comparison, which stay in the window."""
    hostile = [
        "</script><script>window.hacked = 1</script>",
        '"><img src=x onerror="window.hacked = 1">',
        "\u202eevil",
        "x" * 400,
    ]
    for place, name in enumerate(hostile):
        story = long_training(runs / f"r{place}", steps=4)
        story.manifest(**{"verl.project": name, "verl.experiment": f"e{name}"})
        story.write()
    address = serve()
    for path in ("/", *(f"/#/run/r{place}" for place in range(4)), "/#/compare/r0/r3"):
        page = look(address + path)
        page.get_by_text("r0").or_(page.locator("#about dt")).first.wait_for(timeout=60_000)
        assert page.evaluate("[window.hacked ?? 0, document.images.length, document.scripts.length]") == [0, 0, 3], path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path
    home = look(address).locator(".runs").text_content()
    assert [name for name in hostile if printable.show(name)[:200] not in home] == []
