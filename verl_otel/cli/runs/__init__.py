# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``verl-otel runs``: the runs of a folder, and the deletion of old ones."""
