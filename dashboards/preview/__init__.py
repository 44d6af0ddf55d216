# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Boards as pictures, without Grafana: variables and queries are evaluated from the JSON, on a real Prometheus."""
