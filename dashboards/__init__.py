# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Grafana boards as code: ``python -m dashboards.build`` writes what is committed in ``generated/``."""
