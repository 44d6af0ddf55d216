# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Print what the Collector has: counters from its page for Prometheus, spans from its file of traces.

Usage: python read_back.py http://127.0.0.1:8889/metrics otelcol-state/traces.jsonl
"""

import json
import sys
import urllib.request
from collections import Counter
from pathlib import Path


def main() -> None:
    """Print one line for each counter and for each name of a span."""
    url, file = sys.argv[1:]
    # A trajectory is kept or dropped as a whole. With local.yaml all are kept; a gateway keeps a share of them.
    spans = Counter(
        span["name"]
        for line in Path(file).read_text("utf-8").splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    )
    # Names in Prometheus are derived: dots become `_`, and a counter ends in `_total`.
    with urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(("verl_training_steps_total{", "example_samples_total{")):
                print(f"{line.partition('{')[0]} {float(line.rpartition('}')[2].split()[0]):.0f}")
    for name, count in sorted(spans.items()):
        print(f"{name} {count}")


if __name__ == "__main__":
    main()
