# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What verl-otel has written into the log of a training."""

import re

HELD = re.compile(r"verl-otel: (step |\d+ of \d+ steps )")


def find_unexpected(log):
    """Return the lines of verl-otel in a log, without those that name held steps: on a busy machine steps are held by something."""
    return [line for line in log.splitlines() if "verl-otel:" in line and not HELD.search(line)]
