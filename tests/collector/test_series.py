# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How many series a run makes, of ours and of the engines, counted in Prometheus at 1, 8 and 64 GPUs; the guide says the same numbers."""

import collections
import json
import re
from pathlib import Path

import pytest

from tests.collector.shape import GPUS_OF_NODE, GPUS_OF_REPLICA, OPT_IN, members_of, replicas_of, series_of
from tests.collector.steady import await_equal
from tests.fakes.http_server import HttpServer
from verl_otel.model import Instrument
from verl_otel.prometheus_names import metric_name
from verl_otel.semconv.metric_names import METRICS

TOP = Path(__file__).resolve().parents[2]
GUIDE = TOP / "docs" / "how-to" / "deploy.md"
RECORDED = TOP / "tests" / "dashboards" / "recorded" / "20261121-232607-86d8"
VLLM = TOP / "tests" / "dashboards" / "samples" / "vllm.prom"
SIZES = (1, 8, 64)
COLUMNS = ("GPUs", "processes", "own", "bound", "scalars of verl", "hardware and host", "`target_info`", "vLLM")
OWN = ("verl.", "gen_ai.")
"""What the bound of the contract is of; names of the conventions for hardware, hosts and processes are counted beside it."""


def bound_of(gpus):
    """Return the most series of its own that a run may have, by the contract."""
    return 3050 + 41 * gpus


def expect(gpus):
    """Return how many series each row of the catalogue has to have in a run, by its name in Prometheus."""
    found = collections.Counter()
    for member in members_of(gpus):
        for name, label_sets in member.rows.items():
            row = METRICS[name]
            found[metric_name(Instrument(name, row.kind, row.unit, ""))] += series_of(name, label_sets)
    return found


def count_by_name(prometheus, run):
    """Return how many series of a run Prometheus has by name; those of a histogram together, by its name."""
    histograms = {
        metric_name(Instrument(row.name, row.kind, row.unit, "")) for row in METRICS.values() if row.kind == "histogram"
    }
    found = collections.Counter()
    for labels, value in prometheus.query(f'count by (__name__) ({{verl_run_id="{run}"}})'):
        name = labels["__name__"]
        family = re.sub("_(bucket|sum|count)$", "", name)
        found[family if family in histograms else name] += int(value)
    return found


@pytest.fixture
def serve_engines(tmp_path):
    """Serve what a real vLLM showed, as so many replicas of a run: ``serve_engines(run, replicas)``; writes their targets for Prometheus."""
    page = re.sub(r'\b(instance|verl_role|verl_run_id)="[^"]*",?', "", VLLM.read_text("utf-8")).encode()

    server = HttpServer(lambda _: (200, page, {"Content-Type": "text/plain; version=0.0.4"})).start()
    folder = tmp_path / "targets"
    folder.mkdir()

    def serve(run, replicas):
        same = {"job": "verl", "verl_role": "llm_server", "verl_run_id": run}
        entries = [
            {"targets": [server.address], "labels": {**same, "instance": f"{run}/llm_server-{rank}-vllm"}}
            for rank in range(replicas)
        ]
        (folder / f"{run}.json").write_text(json.dumps(entries))

    serve.folder = folder
    yield serve
    server.close()


def read_guide():
    """Return the rows of the guide's table, as numbers."""
    lines = GUIDE.read_text("utf-8").splitlines()
    begin = lines.index("| " + " | ".join(COLUMNS) + " |") + 2
    return [
        tuple(int(cell.replace(",", "")) for cell in lines[number].strip("| ").split("|"))
        for number in range(begin, begin + len(SIZES))
    ]


def test_series_of_a_run_stay_within_the_bound(start_pipeline, start_prometheus, serve_engines, run_sender, capsys):
    """Every row of the catalogue, from as many processes as a run of 1, 8 and 64 GPUs has: each series is in Prometheus once, and no more are.

    Those of the catalogue are within the bound of the contract. Those that verl's own scalars, hardware conventions and engines make are
    counted beside them, and the guide has every number.
    """
    tiers = start_pipeline()
    prometheus = start_prometheus("scraper", tier=tiers.gateway, targets=serve_engines.folder)
    rows = []
    for gpus in SIZES:
        run, wanted = f"r{gpus}", expect(gpus)
        scalars = run_sender(
            "send_run", tiers.agent.http_url, gpus, *sorted(RECORDED.glob("*trainer*")), run_id=run
        ).printed[-1]["scalars"]
        serve_engines(run, replicas_of(gpus))
        members = len(members_of(gpus))
        native = sum(line[:1] not in ("", "#") for line in VLLM.read_text("utf-8").splitlines()) * replicas_of(gpus)
        total = sum(wanted.values()) + scalars + members

        def read(run=run):
            found = count_by_name(prometheus, run)
            engines = sum(value for name, value in found.items() if name.startswith("vllm:"))
            scrapes = sum(value for name, value in found.items() if name == "up" or name.startswith("scrape_"))
            return sum(found.values()) - engines - scrapes, engines

        await_equal(read, (total, native), seconds=240)
        found = count_by_name(prometheus, run)
        assert found["target_info"] == members
        assert {name: found[name] for name in wanted} == wanted
        own = sum(
            series_of(name, sets) for m in members_of(gpus) for name, sets in m.rows.items() if name.startswith(OWN)
        )
        assert own <= bound_of(gpus)
        rows.append((gpus, members, own, bound_of(gpus), scalars, sum(wanted.values()) - own, members, native))
    with capsys.disabled():
        print("", " | ".join(COLUMNS), *(" | ".join(f"{each:,}" for each in row) for row in rows), sep="\n")
    assert rows == read_guide()


def test_the_bound_holds_for_sizes_between():
    """On a part of one node, or on whole ones, no run that records every row has more series of its own than the contract allows."""
    for gpus in (*range(1, GPUS_OF_NODE), *range(GPUS_OF_NODE, 513, GPUS_OF_NODE)):
        rows = [row for member in members_of(gpus) for row in member.rows.items()]
        assert sum(series_of(name, sets) for name, sets in rows if name.startswith(OWN)) <= bound_of(gpus), gpus


def test_the_catalogue_says_how_many():
    """Its column of series is what such a run has."""
    for column, gpus in enumerate(SIZES):
        wanted = expect(gpus)
        for row in METRICS.values():
            assert row.series[column] == wanted[metric_name(Instrument(row.name, row.kind, row.unit, ""))], row.name


def test_no_row_of_the_catalogue_is_left_out():
    """The simulated run records every row that there is, and a replica has more than one GPU."""
    assert {name for member in members_of(8) for name in member.rows} == METRICS.keys() - OPT_IN
    assert GPUS_OF_REPLICA > 1
