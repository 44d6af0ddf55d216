# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel discover``: the targets of running trainings, as a list or by HTTP service discovery."""
