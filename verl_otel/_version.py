# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The version of the package, read by the build and by the resource attributes."""

__version__ = "0.1.0"
