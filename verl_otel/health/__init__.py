# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Thresholds of a training's health: one table, and profiles of it that rules, boards, guards and the live page share."""
