# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""From spans to steps and trajectories: trees, timelines, clocks and critical paths."""
