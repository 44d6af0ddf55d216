# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The telemetry contract as data: every name, label, unit and bucket that verl-otel emits."""

from typing import Final

SCHEMA_URL: Final = "urn:verl-otel:schema:1"
"""Version of the catalogue; raised with every rename, which then lives on as a recording rule for two releases."""
