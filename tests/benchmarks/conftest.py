# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the benchmarks share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
