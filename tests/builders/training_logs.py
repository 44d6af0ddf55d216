# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What verl-otel has written into the log of a training."""

import re

VERDICTS = re.compile(r"verl-otel: (step |(none|\d+) of \d+ steps |\d+ steps?: too few )")


def find_unexpected(log):
    """Return the lines of verl-otel in a log, without verdicts: on a busy machine something holds steps, or a side waits."""
    return [line for line in log.splitlines() if "verl-otel:" in line and not VERDICTS.search(line)]
