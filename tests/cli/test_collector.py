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
