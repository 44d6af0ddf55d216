# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Exports of a run, read back with the other program's own schema or reader."""
