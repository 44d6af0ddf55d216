# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What happens, said by user code and hooks: nanoseconds, no lock on the write path, no failure that leaves."""
