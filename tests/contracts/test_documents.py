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
def test_python_blocks_run(clean_python, code, tmp_path):
    """Each Python block of a document runs by itself, with warnings as errors; one with tests by pytest."""
    script = tmp_path / "test_block.py"
    script.write_text(code)
    by_pytest = (
        ["-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio"] if "\ndef test_" in code else []
    )
    done = clean_python("-W", "error", *by_pytest, script, cwd=tmp_path)
    assert not by_pytest or f"{code.count('def test_')} passed" in done.stdout


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
    others = {
        "VERL_OTEL_SWALLOW",
        "VERL_OTEL_",
        "VERL_OTEL_BOARDS",
    }  # the last one is Grafana's: `verl-otel boards export`
    assert {name for name in read if name not in page} <= others


def test_every_decision_is_in_the_index():
    """Each decision has one row in the index, in order, with the title that its page has."""
    folder = TOP / "docs" / "decisions"
    rows = re.findall(
        r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", (folder / "README.md").read_text("utf-8"), re.MULTILINE
    )
    pages = sorted(page for page in folder.glob("*.md") if page.name != "README.md")
    assert [name for _, name, _ in rows] == [page.name for page in pages]
    for (number, name, title), page in zip(rows, pages, strict=True):
        assert name.startswith(f"{number}-")
        assert page.read_text("utf-8").splitlines()[0] == f"# {number} {title}"


def test_the_settings_of_the_project_name_what_is_there():
    """Each path in pyproject.toml exists, and the source distribution leaves out nothing that is tracked beside its settings for git and CI."""
    import tomllib  # Python 3.11 has it, which these tests run on

    settings = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))
    lint, build = settings["tool"]["ruff"], settings["tool"]["hatch"]["build"]["targets"]["sdist"]
    named = {*lint.get("extend-exclude", ()), *lint["lint"]["per-file-ignores"], *settings["tool"]["mypy"]["files"]}
    assert not [path for path in named if not list(TOP.glob(path))]
    included = {path.removeprefix("/") for path in build["include"]}
    assert not [path for path in included if not (TOP / path).exists()]
    listed = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the sources are in no git repository")
    tracked = {path.partition("/")[0] for path in listed.stdout.splitlines()}
    assert tracked - included == {".ci", ".gitignore", "pyproject.toml"}  # hatchling adds the last two by itself
