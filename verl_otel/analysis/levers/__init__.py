# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Levers: what would make a run faster, and by how much, computed by replaying its recorded schedule with one thing changed."""
