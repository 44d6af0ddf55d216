# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents: their code runs, their commands exist, their links lead somewhere, generated pages are fresh."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verl_otel.cli import COMMANDS

pytestmark = pytest.mark.gate

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", TOP / "CHANGELOG.md", *sorted((TOP / "docs").rglob("*.md"))]


def blocks(kind):
    return [
        pytest.param(code, id=f"{page.relative_to(TOP)}-{number}")
        for page in PAGES
        for number, code in enumerate(re.findall(rf"```{kind}\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code, tmp_path):
    """Each Python block of a document runs by itself, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", blocks("console"))
def test_commands_exist(code):
    """Each ``make`` target, each ``verl-otel`` command and each of its options in a document exists."""
    makefile = (TOP / "Makefile").read_text()
    for line in code.splitlines():
        command = line.removeprefix("$ ").partition("#")[0]
        for target in re.findall(r"\bmake ([a-z-]+)", command):
            assert f"\n{target}:" in makefile, line
        for name, rest in re.findall(r"\bverl-otel ([a-z]+)([^|]*)", command):
            assert name in COMMANDS, line
            executable = Path(sys.executable).with_name("verl-otel")
            text = subprocess.run([executable, name, "--help"], capture_output=True, text=True, check=True).stdout
            for option in re.findall(r"--[a-z-]+", rest.partition(" -- ")[0]):
                assert option in text, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_lead_somewhere(page):
    """Each relative link of a document names a file of the project."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_generated_pages_are_fresh():
    """Settings and telemetry in the guide are those of the code; ``make docs`` writes them."""
    spec = importlib.util.spec_from_file_location("generate", TOP / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name, make in generate.PAGES.items():
        assert (TOP / "docs" / "guide" / name).read_text("utf-8") == make(), f"{name}: run make docs"


def test_every_setting_is_in_the_guide():
    """No variable that the code reads is missing from the settings page."""
    page = (TOP / "docs" / "guide" / "settings.md").read_text("utf-8")
    read = set()
    for path in (TOP / "verl_otel").rglob("*.py"):
        read |= set(re.findall(r"[\"'](VERL_OTEL_[A-Z_]+)[\"']", path.read_text("utf-8")))
    assert {name for name in read if name not in page} <= {"VERL_OTEL_SWALLOW", "VERL_OTEL_"}
