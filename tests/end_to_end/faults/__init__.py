# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Faults in real trainings on the CPU bed, and how many of them are found and named rightly: ``python -m tests.end_to_end.faults``."""
