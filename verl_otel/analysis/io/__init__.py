# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read the files of a run: lines that are added, OTLP/JSON, events, and what is missing."""
