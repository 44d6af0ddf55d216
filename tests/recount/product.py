# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What the product says of a run: the metrics in its files, the run log, TensorBoard, and what commands print with ``--json``."""

import contextlib
import functools
import io
import json
import tempfile
import time
import urllib.request
from pathlib import Path

from dashboards import loader
from dashboards.evaluation import answers, interpolation, recording, server
from tests.builders import live_page, otlp_json
from tests.builders.programs import need_programs
from verl_otel import cli

DEADLINE = 60
"""Seconds in which the live page has read a run."""
SCRAPE = 1.0
"""Seconds between two scrapes of the Prometheus that the boards ask."""
BOARDS = ("overview", "rollouts", "training", "gpus", "monitor")


class Product:
    """The outputs of one run. Each is read when it is asked for."""

    def __init__(self, folder):
        self.folder = Path(folder)

    # -- metrics --

    @functools.cached_property
    def points(self):
        """(name, labels, file) to all its points in the order of time."""
        found = {}
        for path in sorted(self.folder.glob("metrics-*.jsonl")):
            for message in otlp_json.read_objects(path):
                for _, _, metric in otlp_json.each_metric(message):
                    for point in otlp_json.each_point(metric):
                        labels = frozenset(otlp_json.read_attributes(point["attributes"]).items())
                        found.setdefault((metric["name"], labels, path.name), []).append(point)
        return {key: sorted(points, key=lambda point: int(point["timeUnixNano"])) for key, points in found.items()}

    def series(self, name, **labels):
        """Labels and points of each series of a metric that has these labels, written without ``verl.``; ``_`` stands for a dot."""
        wanted = {f"verl.{key.replace('_', '.')}": value for key, value in labels.items()}
        return [
            (dict(own), points)
            for (found, own, _), points in self.points.items()
            if found == name
            and all(str(dict(own).get(key)).lower() == str(value).lower() for key, value in wanted.items())
        ]

    @functools.cached_property
    def manifest(self):
        """``run.json``."""
        return json.loads((self.folder / "run.json").read_text("utf-8"))

    def has(self, name):
        """Whether the run has the metric."""
        return any(found == name for found, _, _ in self.points)

    def total(self, name, **labels):
        """Sum of a counter over its series and processes; of a histogram, the number of measurements."""
        return sum(otlp_json.read_number(points[-1]) for _, points in self.series(name, **labels))

    def seconds(self, name, **labels):
        """Sum of what a histogram measured."""
        return sum(points[-1]["sum"] for _, points in self.series(name, **labels))

    def latest(self, name, **labels):
        """Newest value of a gauge, or None."""
        found = [points[-1] for _, points in self.series(name, **labels)]
        return otlp_json.read_number(max(found, key=lambda point: int(point["timeUnixNano"]))) if found else None

    def by_label(self, name, label, **labels):
        """`total` for each value of a label."""
        values = {own.get(f"verl.{label}") for own, _ in self.series(name, **labels)}
        return {
            value: self.total(name, **labels, **{label.replace(".", "_"): value}) for value in sorted(map(str, values))
        }

    # -- the live page --

    @functools.cached_property
    def page(self):
        """(row of the list, state of the run, its steps) that ``verl-otel view`` answers when it has read the run."""
        return self.ask_page("", "/steps")

    def ask_page(self, *paths):
        """The row of the list, and the answers of the run's own paths, once the run has been read."""
        with live_page.serve(self.folder.parent) as address:
            ask = lambda path: json.load(urllib.request.urlopen(address + path, timeout=DEADLINE))  # noqa: E731 - the loopback
            run, deadline = f"/api/runs/{self.folder.name}", time.monotonic() + DEADLINE
            while ask(run)["read"] < 1:
                assert time.monotonic() < deadline, "the live page has not read the run"
                time.sleep(0.2)
            (row,) = ask("/api/runs")
            return row, *(ask(f"{run}{path}") for path in paths)

    # -- the boards --

    @functools.cached_property
    def panels(self):
        """(board, title) to what a panel shows at the end of the run, from a real Prometheus: by the last word of the legend, or the row of a table."""
        need_programs("prometheus")
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "run.txt")
            period = interpolation.Period(*recording.write([recording.read_run(self.folder)], text, SCRAPE), SCRAPE)
            with server.serve(text, Path(folder), SCRAPE) as prometheus:
                return {
                    (name, panel["title"]): self._ask(prometheus, loader.read()[name], panel, period)
                    for name in BOARDS
                    for panel in loader.walk(loader.read()[name]["panels"])
                    if panel["type"] != "row" and panel["datasource"]["type"] == "prometheus"
                }

    def _ask(self, prometheus, board, panel, period):
        chosen = {"window": (f"{period.end - period.start:g}s",), "run": (self.folder.name,)}
        values = interpolation.evaluate(board, prometheus, period, chosen)
        if panel["type"] == "table":
            return next(iter(answers.table(panel, values, prometheus)), None)
        return {
            curve.name.split()[-1]: curve.series.values[-1] for curve in answers.curves(panel, values, prometheus, {})
        }

    def panel(self, title, board="overview"):
        """What one panel shows."""
        return self.panels[board, title]

    def stat(self, title, board="overview"):
        """What a panel shows that has one curve; None where it has none."""
        return next(iter(self.panels[board, title].values()), None)

    # -- commands --

    def call(self, *arguments):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            cli.main([str(each) for each in arguments])
        return printed.getvalue()

    @functools.cached_property
    def explain(self):
        return json.loads(self.call("explain", self.folder, "--json", "--steps", "100000"))

    @functools.cached_property
    def report(self):
        return json.loads(self.call("report", self.folder, "--json"))

    @functools.cached_property
    def run(self):
        """The row of ``runs``."""
        (row,) = json.loads(self.call("runs", self.folder.parent, "--json"))["runs"]
        return row

    @functools.cached_property
    def compared(self):
        """``compare`` of the run with itself."""
        return json.loads(self.call("compare", self.folder, self.folder, "--json", "--skip", "0"))

    @functools.cached_property
    def records(self):
        """Records of the run log."""
        return [json.loads(line) for line in self.call("logs", self.folder, "--json").splitlines()]

    def logged(self, scope, field):
        """Values of a field of the run log by step."""
        return {each["step"]: each[field] for each in self.records if each["scope"] == scope and field in each}

    @functools.cached_property
    def tensorboard(self):
        """Tag to (step, value) of all scalars, and the histograms, read by TensorBoard itself."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        with tempfile.TemporaryDirectory() as folder:
            self.call("export", "tensorboard", self.folder, "--output", folder)
            events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0}).Reload()
        return {
            **{tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]},
            **{
                tag: [(event.step, event.histogram_value) for event in events.Histograms(tag)]
                for tag in events.Tags()["histograms"]
            },
        }
