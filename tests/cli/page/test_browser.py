# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The page in a real Chromium: it asks for nothing, shows what it should at every width and in both schemes, and is quick."""

import re

import pytest

from tests.cli.page import explanations
from tests.fakes.http_server import HttpServer
from verl_otel._internal import printable
from verl_otel.cli import headlines, page

pytestmark = pytest.mark.browser

SECTIONS = ["What delayed the run", "Steps", "Slowest trajectories", "GPU time", "Verdicts and stragglers"]
INKED = """plot => {
    const canvas = plot.querySelector("canvas");
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) seen.add((data[at] << 16) + (data[at + 1] << 8) + data[at + 2]);
    return seen.size;
}"""
"""How many colours are drawn on a chart."""

DRAWN = """() => new Promise(end => requestAnimationFrame(() => requestAnimationFrame(() => end(performance.now()))))"""
"""Milliseconds since the page was asked for, after everything has been drawn once."""


@pytest.fixture
def listener():
    """A web server that remembers who asked for what."""
    asked = []

    with HttpServer(lambda call: asked.append(call.path) or 204) as server:
        yield server.url, asked


def test_the_verdict_and_every_section_are_shown(show):
    """Whoever opens the page reads what held the run, as a sentence, and sees the step that it was."""
    run = explanations.make(12)
    opened = show(run).page
    assert opened.title() == f"{run.run_id} · verl-otel"
    (verdict,) = run.steps[6].verdicts
    first, *_ = headlines.find_headlines(run)
    assert first.text in opened.inner_text("#findings")
    assert headlines.verdict_line(verdict) in opened.inner_text("#step")
    assert opened.inner_text("#step h2").startswith("Step 7: ")
    headings = opened.locator("h2").all_inner_texts()
    assert [each for each in headings if each in SECTIONS] == SECTIONS


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_window(show, wait_for, width, scheme):
    """Each canvas has several colours; no part of the page has to be reached by scrolling sideways."""
    opened = show(explanations.troubled(explanations.make(60)), width=width, scheme=scheme).page
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    charts = opened.locator(".plot")
    assert charts.count() >= 12
    for chart in charts.all():
        assert wait_for(lambda chart=chart: chart.evaluate(INKED) > 3)


HEIGHT = """([plot, column, steps, share]) => {
    const canvas = plot.querySelector("canvas"), ratio = window.devicePixelRatio || 1;
    const [left, right, top, bottom] = [52, plot.clientWidth - 4, 20, canvas.height / ratio - 20];
    const at = [left + ((column + 0.5) * (right - left)) / steps, bottom - share * (bottom - top)];
    const copy = document.createElement("canvas");
    copy.width = canvas.width;
    copy.height = canvas.height;
    const pen = copy.getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    return pen.getImageData(...at.map(value => Math.round(value * ratio)), 1, 1).data[3];
}"""
"""Whether the column of a step reaches a share of the height of the chart: the opacity of the pixel there."""


def test_start_up_does_not_flatten_the_other_steps(show, wait_for):
    """A first step of 4 minutes is drawn broken with its value in words; the slow step stays high, unless full height is asked for."""
    opened = show(explanations.with_start_up(explanations.make(12, gpus=1), 200.0)).page
    assert re.search(
        r"Drawn broken, so that the others can be compared: step 1 \(3 m \d\d s, with start-up\)\.",
        opened.inner_text("#steps"),
    )
    plot = opened.locator("#steps .plot").element_handle()
    assert wait_for(lambda: opened.evaluate(HEIGHT, [plot, 0, 12, 0.6]) and opened.evaluate(HEIGHT, [plot, 6, 12, 0.6]))
    assert not opened.evaluate(HEIGHT, [plot, 5, 12, 0.6])
    opened.locator("#steps").get_by_label("full height").check()
    assert wait_for(lambda: not opened.evaluate(HEIGHT, [plot, 6, 12, 0.6]))
    assert "Drawn broken" not in opened.inner_text("#steps")
    for kind in ("critical path", "GPU time"):
        opened.locator("#steps").get_by_label("full height").uncheck()
        opened.locator("#steps").get_by_label(kind).check()
    even = show(explanations.make(12, gpus=1)).page
    assert "Drawn broken" not in even.inner_text("#steps")
    assert even.locator("#steps").get_by_label("full height").count() == 0


def test_a_slow_step_without_a_cause_is_reached_by_key(show):
    """The key for the next delayed step stops at it, and it is described as such."""
    opened = show(explanations.with_slow_step(explanations.make(12, gpus=1), 5, 40.0), address="#step=1").page
    opened.focus("#steps .plot")
    opened.keyboard.press("v")
    opened.locator("#step-title", has_text="Step 5: ").wait_for()
    assert ", slow without a known cause." in opened.locator("#steps .plot").get_attribute("aria-valuetext")


def test_a_run_on_a_cpu_is_not_about_gpus(show):
    """One device is in the singular, has no lane for all devices, and is not called a GPU."""
    run = explanations.make(4, gpus=1, scalars=0, has_gpu=False)
    opened = show(run).page
    assert re.search(r"of .* device time \(CPU\)", opened.inner_text("#gpu .big"))
    assert "device ms a token" in opened.inner_text("#cost") or "device s a token" in opened.inner_text("#cost")
    for place in ("#steps", "#step", "#gpu", "#cost"):
        assert "GPU" not in opened.inner_text(place), place
    assert "all 1" not in opened.inner_text("body")
    assert opened.locator("#gpu .plot").get_attribute("aria-label") == "Device time (CPU) by cause"


def test_the_page_cannot_ask_anybody_for_anything(browser, tmp_path, listener):
    """Even code that somebody brought into the page reaches no server: the policy forbids it. Nor does a script that is put in run."""
    address, asked = listener
    path = tmp_path / "page.html"
    page.write(explanations.make(2, gpus=1), path)
    opened = browser.new_page()
    opened.goto(path.as_uri())
    opened.wait_for_selector("html[data-ready]")
    refused = opened.evaluate(
        """async address => {
            const found = [await fetch(address + "/fetch").then(() => "reached", () => "refused")];
            const image = new Image();
            found.push(await new Promise(end => { image.onload = () => end("reached"); image.onerror = () => end("refused"); image.src = address + "/image"; }));
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            return [...found, window.ran ?? "refused"];
        }""",
        address,
    )
    opened.close()
    assert refused == ["refused"] * 3
    assert asked == []


HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "<!-- <script></script x",
    "\u2028\u2029 line",
    "مرحبا بالعالم 👩‍🔬",
    "\u202eevil\ud800",
    "{{data}} & 'quotes'",
    "__proto__",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_as_text(show, name):
    """Names of runs, tools, phases, processes, scalars and in crash records are text, whatever they contain."""
    run = explanations.troubled(explanations.make(4, gpus=2, slow=(2,), label=name))
    steps = []
    for step in run.steps:
        path = tuple(each._replace(name=name, instance=name, phase=name) for each in step.path)
        phases = (step.phases[0]._replace(key=name), *step.phases[1:])
        groups = tuple((kind, name, nanos) for kind, _, nanos in step.groups[:1])
        devices = tuple(each._replace(device=name) for each in step.devices)
        steps.append(step._replace(path=path, phases=phases, groups=groups, devices=devices))
    event = run.events[0]._replace(text=name, detail={name: [name, f"{name}\nsecond line"]})
    series = tuple(each._replace(name=name, labels=((name, name),)) for each in run.series[1:3])
    seen = show(
        run._replace(
            run_id=name,
            steps=tuple(steps),
            events=(event,),
            series=series,
            manifest={name: name},
            problems=(name,),
            state=name,
        )
    )
    shown = re.sub(r"\s+", " ", printable.show(name)).strip()
    flat = "t => t.textContent.replace(/\\s+/g, ' ')"
    for place in (
        "h1 bdi",
        "#missing li",
        ".event bdi",
        ".scalar figcaption",
        "#step .bartable th bdi",
        "#steps .legend li",
    ):
        texts = [seen.page.locator(place).nth(at).evaluate(flat) for at in range(seen.page.locator(place).count())]
        assert any(shown in text for text in texts), place
    for summary in seen.page.locator("details > summary").all():
        summary.evaluate("each => { each.parentElement.open = true; }")
    assert seen.page.evaluate("window.hacked ?? 'safe'") == "safe"
    assert seen.page.locator("img").count() == 0
    assert seen.page.locator("script").count() == 2


def test_a_long_run_opens_as_a_short_one_does(show, big):
    """10,000 steps of 1,000 trajectories: below 5 MB, hardly more elements than a run of 12 steps, each step can be reached.

    It has to be open within 2 s on a quiet machine; what is asked here leaves room for a busy one, and is measured as the best of three.
    """
    small, seen = show(explanations.make(12)), show(big)
    assert seen.path.stat().st_size < 5_000_000
    elements = "document.querySelectorAll('*').length"
    assert seen.page.evaluate(elements) < 1.5 * small.page.evaluate(elements)
    times = []
    for _ in range(3):
        seen.page.goto("about:blank")
        seen.page.goto(seen.path.as_uri())
        seen.page.wait_for_selector("html[data-ready]")
        times.append(seen.page.evaluate(DRAWN))
    print(f"opened and drawn in {min(times):.0f} ms of {[round(each) for each in times]}")
    assert min(times) < 4_000
    seen.page.focus("#steps .plot")
    seen.page.keyboard.press("End")
    seen.page.locator("#step-title", has_text="Step 10000: ").wait_for()


def test_a_run_without_a_step_has_a_page(show):
    """Nothing is drawn, and it is said."""
    empty = explanations.make(1, gpus=1, scalars=0)._replace(
        steps=(), slowest=(), devices=(), series=(), state="", validations=()
    )
    opened = show(empty).page
    assert "No step has ended yet." in opened.inner_text("#steps")
    for place, said in {
        "#step": "There is no step to choose.",
        "#gpu": "is not known",
        "#scalars": "logged no scalar",
        "#cost": "is not known",
        "#trajectories": "No trajectory was kept",
    }.items():
        assert said in opened.inner_text(place)


def test_troubles_are_shown(show):
    """Stall, crash, dead process, holes in the files and clocks have their places, with everything that was written down."""
    opened = show(explanations.troubled(explanations.make(8))).page
    assert "failed" in opened.inner_text("h1")
    events = opened.inner_text("#events")
    assert "◆ stall" in events
    assert "✕ crash" in events
    assert "agent_loop-3 (pid 4711 on node-1): dead, silent for 42.00 s" in events
    opened.locator(".event summary").first.click()
    assert opened.locator(".event pre").first.inner_text() == "File a.py, line 3\n  wait()\nFile b.py"
    assert "only 3 of 4 ranks" in opened.inner_text("#missing")


def test_it_is_white_on_paper(show):
    """Printed from a dark screen the page is dark on white, without controls, and its charts with it."""
    opened = show(explanations.make(8), scheme="dark").page
    look = "getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()"
    assert opened.evaluate(look) != "#ffffff"
    opened.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.evaluate(look) == "#ffffff"
    opened.emulate_media(media="print")
    assert not opened.locator(".tools").first.is_visible()
    assert len(opened.pdf(format="A4")) > 20_000
    opened.emulate_media(media="screen")
    opened.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.evaluate(look) != "#ffffff"
