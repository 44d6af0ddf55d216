# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The boards in a real Grafana: provisioned, asked for by its HTTP API, photographed in a real browser."""
