# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Event files of TensorBoard: their format, the tags, and the exporter."""
