# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The sources: licence lines, sizes, floors, no aliases, nothing that names a machine."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.sources, pytest.mark.full]

TOP = Path(__file__).resolve().parents[2]


def tracked(pattern="*"):
    found = subprocess.run(["git", "ls-files", "-z", pattern], cwd=TOP, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("this is no git checkout")
    return [TOP / name for name in found.stdout.split("\0") if name and (TOP / name).is_file()]


def test_every_python_file_names_its_licence():
    """Two SPDX lines on top of each file."""
    for path in tracked("*.py"):
        assert path.read_text("utf-8").startswith(
            "# SPDX-FileCopyrightText: The verl-otel authors\n# SPDX-License-Identifier: Apache-2.0\n"
        ), path


def test_packages_hold_names_only():
    """An ``__init__`` says what a package is and no more, unless it is the package's front door."""
    packages = ("verl_otel", "verl_otel/session", "verl_otel/cli", "verl_otel/watchdog")
    doors = {f"{package}/__init__.py" for package in packages}
    for path in tracked("verl_otel/**/__init__.py"):
        if str(path.relative_to(TOP)) not in doors:
            assert len(path.read_text("utf-8").splitlines()) <= 60, path


def test_nothing_names_a_machine():
    """No file, this one among them, holds a path of one machine or of what lies beside the project."""
    words = re.compile(r"/[a-z]+/[a-z]+/main\b|/[r]oot/|/tmp/[a-z]+_jobs|\.\./[s]hared")
    for path in tracked():
        if path.suffix in (".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".sh", ".json", ""):
            text = path.read_text("utf-8", "replace")
            found = words.search(text)
            assert found is None, f"{path}: {found}"
            assert f"{TOP}/" not in text, path
            assert len(str(Path.home())) < 2 or f"{Path.home()}/" not in text, path


def test_a_forbidden_import_is_found(tmp_path):
    """The fence stands: an exporter that imports the recorder turns it red."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(TOP / "verl_otel", copy / "verl_otel")
    shutil.copy(TOP / "pyproject.toml", copy)
    target = copy / "verl_otel" / "exporting" / "base.py"
    target.write_text(target.read_text() + "\nfrom verl_otel.recording import state  # noqa\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "verl_otel.exporting.base -> verl_otel.recording" in done.stdout


def list_aliases(source):
    """Return the imports of a module of the package that rename what they import, except ``attributes as attr``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = node.names if isinstance(node, ast.Import | ast.ImportFrom) else ()
        home = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        found += [f"{home}{name.name} as {name.asname}" for name in names if name.asname and name.asname != name.name]
    return [text for text in found if text.startswith("verl_otel") and text != "verl_otel.semconv.attributes as attr"]


def test_no_import_renames_what_is_ours():
    """One name for one thing: a name that needs an alias where it is used needs a better name, or its module in front."""
    found = {str(path.relative_to(TOP)): list_aliases(path.read_text("utf-8")) for path in tracked("verl_otel/**.py")}
    assert "verl_otel/session/lifecycle.py" in found
    assert {path: aliases for path, aliases in found.items() if aliases} == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from verl_otel.session import current_session as current", ["verl_otel.session.current_session as current"]),
        ("def f():\n    from verl_otel import config as c", ["verl_otel.config as c"]),
        ("import verl_otel.config as settings", ["verl_otel.config as settings"]),
        ("from verl_otel.semconv import attributes as attr", []),
        ("import datetime as dt", []),
    ],
)
def test_an_alias_is_found(line, found):
    """At the top of a module and within functions; names of other packages are theirs."""
    assert list_aliases(line) == found
