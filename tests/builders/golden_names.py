# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The golden table of Prometheus names, as `tests.contracts.test_catalogue` keeps it."""

import re
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "contracts" / "golden_names.txt"


def read():
    """Return OTel name to (Prometheus name, kind, labels)."""
    rows = (re.fullmatch(r"(\S+) (\S+) (\S+) \{(.*)\}", line) for line in GOLDEN.read_text().splitlines())
    return {row[1]: (row[3], row[2], set(filter(None, row[4].split(",")))) for row in rows}
