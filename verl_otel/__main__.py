# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m verl_otel`` is the command ``verl-otel``, of the environment of this Python."""

import sys

from verl_otel.cli import main

if __name__ == "__main__":
    sys.exit(main())
