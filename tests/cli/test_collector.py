# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel collector export``: the configurations in a folder, all or none, and nothing of the user's is lost."""

from pathlib import Path

from verl_otel.cli import package_data

SOURCE = Path(__file__).resolve().parents[2] / "collector"


def test_every_file_is_there(call, tmp_path):
    """The folder has each file of collector/, byte for byte, and what builds the programs."""
    done = call("collector", "export", tmp_path / "new" / "otel")
    assert done.code == 0
    names = package_data.list_files(SOURCE)
    assert {Path("gateway.yaml"), Path("build.sh"), Path("otelcol/go.mod")} <= set(names)
    for name in names:
        assert (tmp_path / "new" / "otel" / name).read_bytes() == (SOURCE / name).read_bytes()
    assert f"{len(names)} files written" in done.out


def test_a_second_time_writes_nothing(call, tmp_path):
    """Files that are there and equal are left alone."""
    call("collector", "export", tmp_path)
    (tmp_path / "mine.yaml").write_text("mine")
    done = call("collector", "export", tmp_path)
    assert done.code == 0
    assert done.out.startswith("0 files written")
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_a_changed_file_is_not_replaced_unless_asked(call, tmp_path):
    """With one file changed nothing is written, and the message names it; --force replaces it."""
    (tmp_path / "local.yaml").write_text("mine")
    done = call("collector", "export", tmp_path)
    assert done.code == 2
    assert "local.yaml" in done.err
    assert "--force" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["local.yaml"]
    assert (tmp_path / "local.yaml").read_text() == "mine"
    assert call("collector", "export", tmp_path, "--force").code == 0
    assert (tmp_path / "local.yaml").read_bytes() == (SOURCE / "local.yaml").read_bytes()


def test_a_folder_that_cannot_be_written_is_said_to_be_one(call, tmp_path):
    """A file in the place of the folder: code 2 and a line."""
    (tmp_path / "file").write_text("")
    done = call("collector", "export", tmp_path / "file" / "otel")
    assert done.code == 2
    assert "cannot be written" in done.err
