# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Makers of what tests work on: spans, records, runs and their files."""
