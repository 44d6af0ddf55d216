# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a run as a Perfetto trace: ``selection`` → spans that fit, ``rows`` and ``lanes`` → where each is drawn, ``trace_file`` → packets."""
