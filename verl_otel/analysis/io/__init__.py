# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read the files of a run: slices, OTLP/JSON lines, events, and what is missing."""
