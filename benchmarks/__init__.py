# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What telemetry costs: ours, and what one would use instead, in the same run. ``python -m benchmarks --help`` says how."""
