# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The backends that are compared, each behind the same few methods: see `benchmarks.backend`."""
