# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Renders boards as images without Grafana: variables and queries are read from the JSON and evaluated by a real Prometheus."""
