# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what is not there: servers, clients and installed packages."""
