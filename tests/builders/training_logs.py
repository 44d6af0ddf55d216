# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What verl-otel has written into the log of a training."""


def find_unexpected(log):
    """Return the lines of verl-otel in a log, without those that name a held step: on a busy machine steps are held by something."""
    return [line for line in log.splitlines() if "verl-otel:" in line and "verl-otel: step " not in line]
