# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What comes with the wheel is copied, unless it would replace something."""

from pathlib import Path

import pytest

from verl_otel.cli import package_data
from verl_otel.errors import VerlOtelError

NAMES = [Path("a.yaml"), Path("below/b.yaml"), Path("c.yaml")]


@pytest.fixture
def source(tmp_path):
    """A folder of three files."""
    for name in NAMES:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_text(f"new {name}")
    return tmp_path / "source"


def tree(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_text() for path in folder.rglob("*")}


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_in_the_way_fails_before_anything_is_written(source, tmp_path, force):
    """What lies in the place of the last file stops the first one, too."""
    (tmp_path / "out" / "c.yaml").mkdir(parents=True)
    with pytest.raises(VerlOtelError, match=r"c\.yaml cannot be written: a folder"):
        package_data.export(source, NAMES, tmp_path / "out", force=force)
    assert tree(tmp_path / "out") == {"c.yaml": False}


def test_a_file_in_the_place_of_a_folder_is_named(source, tmp_path):
    """It stays."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "below").write_text("mine")
    with pytest.raises(VerlOtelError, match="cannot be written"):
        package_data.export(source, NAMES, tmp_path / "out")
    assert (tmp_path / "out" / "below").read_text() == "mine"


def test_links_and_rights_of_what_is_replaced_stay(source, tmp_path):
    """A link leads to where it led, with the new text there; a file keeps who may read it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "real.yaml").write_text("mine")
    (tmp_path / "real.yaml").chmod(0o640)
    (tmp_path / "out" / "a.yaml").symlink_to(tmp_path / "real.yaml")
    assert package_data.export(source, NAMES, tmp_path / "out", force=True) == NAMES
    assert (tmp_path / "out" / "a.yaml").is_symlink()
    assert (tmp_path / "real.yaml").read_text() == "new a.yaml"
    assert (tmp_path / "real.yaml").stat().st_mode & 0o777 == 0o640
