# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The documents that commands print with ``--json``, one module for each command."""
