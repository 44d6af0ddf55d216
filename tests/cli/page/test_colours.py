# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The colours of the page: each can be distinguished from the background and from the others, also with colour blindness."""

import itertools
import math
import re

import pytest

from verl_otel.cli.page import assembly
from verl_otel.semconv.kinds import GPU_CAUSES, PHASES, WORK

HUES = ("blue", "sky", "green", "yellow", "orange", "vermillion", "purple", "grey")
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What an eye sees of linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""
OKLAB = (
    ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566), (0.0883024619, 0.2817188376, 0.6299787005)),
    ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099), (0.0259040371, 0.7827717662, -0.8086757660)),
)  # fmt: skip
"""From linear RGB to cones, and from their cube roots to a space of even distances (Ottosson 2020)."""


def apply(matrix, values):
    return [sum(weight * value for weight, value in zip(row, values, strict=True)) for row in matrix]


def linear(colour):
    """Linear RGB (IEC 61966-2-1)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]


def contrast(one, other):
    """Contrast ratio (WCAG 2.2)."""
    low, high = sorted(sum(apply([(0.2126, 0.7152, 0.0722)], linear(colour))) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def seen(colour, sight):
    """Where a colour is for an eye, in steps of about a just noticeable difference."""
    light = [min(1, max(0, each)) for each in apply(SIGHTS[sight], linear(colour))]
    return [100 * each for each in apply(OKLAB[1], [each ** (1 / 3) for each in apply(OKLAB[0], light)])]


@pytest.fixture(params=[0, 1], ids=["light", "dark"])
def colours(request):
    """The colours of a scheme of the style sheet."""
    block = re.findall(r":root[^{]*\{([^}]*)\}", assembly.read("app.css"))[request.param]
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))


def test_text_and_areas_stand_out(colours):
    """Text has a contrast of 4.5 to 1 on everything that it stands on, areas and edges of 3 to 1 (WCAG 2.2, 1.4.3 and 1.4.11)."""
    for text in ("ink", "soft", "accent", "finding", "bad"):
        for behind in ("paper", "ground", "sunken"):
            assert contrast(colours[text], colours[behind]) >= 4.5, (text, behind)
    for area in (*HUES, "edge"):
        assert contrast(colours[area], colours["paper"]) >= 3, area


@pytest.mark.parametrize("sight", SIGHTS)
def test_every_eye_tells_the_hues_apart(colours, sight):
    """No two hues are closer than ten steps that an eye just notices."""
    for one, other in itertools.combinations(HUES, 2):
        assert math.dist(seen(colours[one], sight), seen(colours[other], sight)) >= 10, (one, other)


def test_no_two_things_look_alike():
    """Whatever a chart shows together differs in hue or in pattern, and idle GPUs are patterned, productive ones plain."""
    work = [each.look[:2] for each in WORK.values()]
    causes = [cause.look[:2] for cause in GPU_CAUSES.values()]
    for looks in (PHASES.values(), work, causes):
        assert len(set(looks)) == len(looks) > 10
    assert {hue for hue, _ in (*PHASES.values(), *work, *causes)} <= set(HUES)
    plain = {name for name, cause in GPU_CAUSES.items() if cause.look[1] == "solid"}
    assert plain == {name for name, cause in GPU_CAUSES.items() if cause.state == "productive"} == {"train", "rollout"}
    # a waterfall has phases above kinds of work
    script = assembly.read("colours.js")
    spare = re.findall(r'\["(\w+)", "(\w+)"\]', script.partition("const SPARE = [")[2].partition("];")[0])
    assert len(spare) == 6
    assert not set(spare) & {*PHASES.values(), *work}
    kinds = {each.look[:2]: kind for kind, each in WORK.items()}
    assert {(phase, kinds[look]) for phase, look in PHASES.items() if look in kinds} == {
        ("gen", "server"),
        ("update_weights", "weight_sync"),
        ("save_checkpoint", "checkpoint"),
        ("testing", "validation"),
        ("submit", "start"),
        ("no phase", "step"),
        ("other", "poll"),
    }


def test_plain_phases_have_hues_of_their_own():
    """A phase that verl runs in each step is distinguished from the others by its hue alone; what has the same hue has a pattern."""
    plain = [hue for hue, pattern in PHASES.values() if pattern == "solid"]
    assert sorted(plain) == sorted({*plain}) == sorted(set(HUES) - {"vermillion"})
