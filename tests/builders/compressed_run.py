# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Write the files of a run again as a process writes them: in parts, of which the older ones are compressed."""

import shutil

from verl_otel.exporting import line_file
from verl_otel.exporting.line_file import LineFile


def compress(folder, target, monkeypatch, part_bytes=50_000, block_bytes=10_000):
    """Copy a run; its traces and metrics are written to files that are rotated at ``part_bytes``. Returns the copy."""
    monkeypatch.setattr(line_file, "BLOCK_BYTES", block_bytes)
    shutil.copytree(folder, target)
    for path in sorted(target.glob("*.jsonl")):
        if path.name.startswith(("traces-", "metrics-")):
            lines = path.read_bytes().splitlines(keepends=True)
            path.unlink()
            file = LineFile(path, part_bytes, 1000)
            for line in lines:
                file.write(line)
            file.close()
    assert list(target.glob("*.gz"))
    return target
