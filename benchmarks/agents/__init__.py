# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A synthetic step of an agent's training: many trajectories at a time in one event loop, each traced from end to end."""
