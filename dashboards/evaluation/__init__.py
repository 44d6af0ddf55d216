# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates boards without Grafana: variables and queries are read from the JSON and evaluated by a real Prometheus."""
