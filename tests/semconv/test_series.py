# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How many series a run makes, of ours and of the engines, at 1, 8 and 64 GPUs; the catalogue and the guide have the same numbers.

That each series which is recorded is in Prometheus once, and nothing else, is tested with the whole catalogue (`tests/collector/test_metrics.py`).
"""

import gzip
import json
import math
from pathlib import Path

from tests.builders import otlp_json
from tests.collector.shape import GPUS_OF_NODE, GPUS_OF_REPLICA, OPT_IN, members_of, replicas_of, series_of
from verl_otel.semconv.metric_names import METRICS

TOP = Path(__file__).resolve().parents[2]
GUIDE = TOP / "docs" / "how-to" / "deploy.md"
RECORDED = TOP / "tests" / "dashboards" / "recorded" / "20261121-232607-86d8"
VLLM = TOP / "tests" / "dashboards" / "samples" / "vllm.prom"
SIZES = (1, 8, 64)
COLUMNS = ("GPUs", "processes", "own", "bound", "scalars of verl", "hardware and host", "`target_info`", "vLLM")


def count_own(gpus, *, own=True):
    """Return how many series of the catalogue a run makes below ``verl.`` and ``gen_ai.``, or how many others."""
    rows = [row for member in members_of(gpus) for row in member.rows.items()]
    return sum(series_of(name, sets) for name, sets in rows if name.startswith(("verl.", "gen_ai.")) is own)


def bound_of(gpus):
    """Return the most series of its own that a run may have, by the contract."""
    return 3050 + 42 * gpus + 4 * math.ceil(gpus / GPUS_OF_NODE)


def count_scalars():
    """Return how many keys the recorded training logged for which the catalogue has no row."""
    names = set()
    for path in RECORDED.glob("*trainer*"):
        with gzip.open(path, "rt") as lines:
            messages = [json.loads(line) for line in lines]
        names |= {
            metric["name"]
            for message in messages
            if "resourceMetrics" in message
            for _, _, metric in otlp_json.each_metric(message)
        }
    return len(names - METRICS.keys())


def read_guide():
    """Return the rows of the guide's table, as numbers."""
    lines = GUIDE.read_text("utf-8").splitlines()
    begin = lines.index("| " + " | ".join(COLUMNS) + " |") + 2
    return [
        tuple(int(cell.replace(",", "")) for cell in lines[number].strip("| ").split("|"))
        for number in range(begin, begin + len(SIZES))
    ]


def test_the_guide_has_the_numbers():
    """Of a run that records every row, within the bound of the contract; an engine shows what a real vLLM showed."""
    scalars = count_scalars()
    native = sum(line[:1] not in ("", "#") for line in VLLM.read_text("utf-8").splitlines())
    rows = []
    for gpus in SIZES:
        members, engines = len(members_of(gpus)), native * replicas_of(gpus)
        hardware = count_own(gpus, own=False)
        rows.append((gpus, members, count_own(gpus), bound_of(gpus), scalars, hardware, members, engines))
    assert rows == read_guide()


def test_the_bound_holds_for_sizes_between():
    """On a part of one node, or on whole ones, no run that records every row has more series of its own than the contract allows."""
    for gpus in (*range(1, GPUS_OF_NODE), *range(GPUS_OF_NODE, 513, GPUS_OF_NODE)):
        assert count_own(gpus) <= bound_of(gpus), gpus


def test_the_catalogue_has_the_numbers():
    """Its column of series is what such a run has."""
    for column, gpus in enumerate(SIZES):
        members = members_of(gpus)
        for name, row in METRICS.items():
            assert row.series[column] == sum(series_of(name, member.rows.get(name, 0)) for member in members), name


def test_no_row_of_the_catalogue_is_left_out():
    """The run records every row that there is, and a replica has more than one GPU."""
    assert {name for member in members_of(8) for name in member.rows} == METRICS.keys() - OPT_IN
    assert GPUS_OF_REPLICA > 1
