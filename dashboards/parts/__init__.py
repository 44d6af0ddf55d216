# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What boards are made of: variables, queries, links, annotations, panels, rows."""
