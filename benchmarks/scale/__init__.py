# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A run on a thousand GPUs, simulated in parts: one process of each kind does the work of some steps, and the figures are multiplied."""
