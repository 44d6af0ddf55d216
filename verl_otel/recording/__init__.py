# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Recording of spans and metrics by user code and hooks: no lock on the write path, and no exception that leaves it."""
