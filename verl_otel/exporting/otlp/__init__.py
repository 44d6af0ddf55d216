# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP: endpoint settings, encoders, transport, retries and the exporter that joins them."""
