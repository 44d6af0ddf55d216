# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Explain a run from its files: plain functions on plain data, no service needed."""
