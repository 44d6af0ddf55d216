# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of the package of this name; its signatures are compared with the released wheel."""
