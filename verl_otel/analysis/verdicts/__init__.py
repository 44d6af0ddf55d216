# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Causes of slow steps: baselines, outliers, stragglers and possible savings."""
