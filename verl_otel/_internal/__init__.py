# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers without knowledge of telemetry that every other package may use."""
