# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The boards in a real Grafana: provisioned, checked by its HTTP API, captured in a real browser."""
