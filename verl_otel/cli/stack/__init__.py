# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel stack``: a Collector and a Prometheus for the trainings of this machine."""
