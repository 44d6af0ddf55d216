# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU time: which devices a run has, what each did, and what tokens cost."""
