# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The clock from two empty nodes to the first curve: in Prometheus, and on the live page in a real browser."""

import os
import subprocess
import threading
import time
import urllib.parse

import pytest

from tests.builders.environments import inherit
from tests.cli.conftest import browser  # noqa: F401 - a fixture
from tests.collector import ray_bed
from tests.collector.nodes import find_hindrance

pytest.importorskip("ray", reason="Ray is not installed in this environment")
pytest.importorskip("verl", reason="verl is not installed in this environment")
pytestmark = [pytest.mark.pipeline, pytest.mark.browser]
SECONDS = 300


class Clock:
    """Seconds since it was made, by what was seen then."""

    def __init__(self):
        self._begin = time.monotonic()
        self.seen = {}

    def stamp(self, name):
        self.seen[name] = round(time.monotonic() - self._begin, 1)


def watch(stack, clock, ended):
    """Stamp the clock when Prometheus has a step."""
    while not ended.wait(0.5):
        if any(value >= 1 for _, value in ray_bed.query(stack, "verl_training_steps_total")):
            clock.stamp("a step in Prometheus")
            return


def test_the_first_curve_is_seen_in_less_than_five_minutes(programs, browser, tmp_path, wait_for):  # noqa: F811
    """Ray on both nodes, the stack, ``ray job submit``: the first step is in Prometheus and is drawn on the page."""
    hindrance = find_hindrance()
    if hindrance:
        pytest.skip(f"no network namespaces here: {hindrance}")
    clock, ended = Clock(), threading.Event()
    load = os.getloadavg()[0]
    with (
        ray_bed.start_cluster(tmp_path / "ray", dashboard=True) as cluster,
        ray_bed.start_stack(tmp_path, cluster.address) as stack,
    ):
        clock.stamp("both nodes and the stack")
        watcher = threading.Thread(target=watch, args=(stack, clock, ended))
        watcher.start()
        command = [ray_bed.BIN / "verl-otel", "view", "--port", "0"]
        environ = inherit("PYTEST", "VERL_") | {"VERL_OTEL_RUN_DIR": str(tmp_path / "training" / "runs")}
        (tmp_path / "training" / "runs").mkdir(parents=True)
        view = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        try:
            with ray_bed.submit_training(tmp_path / "training", cluster) as (training, process):
                address = view.stdout.readline().split()[0]
                wait_for(lambda: list((training.out / "runs").glob("*/run.json")) or process.poll(), 300, 0.2)
                page = browser.new_page()
                page.goto(address)  # its token becomes a cookie
                page.goto(urllib.parse.urljoin(address, f"/#/run/{training.folder.name}"))
                chart = page.get_by_role("slider", name="Time of each step")
                # the chart is there, empty, before the first step
                drawn = page.locator("[aria-valuemax]:not([aria-valuemax='0'])")
                chart.and_(drawn).wait_for(timeout=1000 * SECONDS)
                clock.stamp("two steps on the page")
                page.close()
                assert process.wait(600) == 0, training.log[-4000:]
                clock.stamp("the end of the training")
                ray_bed.await_totals(stack, training, wait_for)
                clock.stamp("all in Prometheus")
        finally:
            ended.set()
            watcher.join()
            view.terminate()
            view.communicate(timeout=20)
    print(f"\nload average {load:.1f} before, {os.getloadavg()[0]:.1f} after; seconds: {clock.seen}")
    assert max(clock.seen["a step in Prometheus"], clock.seen["two steps on the page"]) < SECONDS
