# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Send what was recorded, off the hot path: OTLP, Prometheus, files, console. Takes `verl_otel.model`, knows no recorder."""
