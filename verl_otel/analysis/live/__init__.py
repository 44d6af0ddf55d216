# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a run while it is written: what is new since the last time, in bounded memory."""
