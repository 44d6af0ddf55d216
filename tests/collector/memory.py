# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What a program of the pipeline needs of memory."""

from pathlib import Path


def resident_mib(tier):
    """Return the memory of a tier now."""
    for line in Path(f"/proc/{tier.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError
