# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Take the pictures of the documents in a Chromium, of recorded runs: ``make docs PICTURES=1``. They are not made again by ``make docs``."""

import contextlib
import io
import itertools
import shutil
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.builders import long_run
from verl_otel.cli import main
from verl_otel.cli.view.access import Access
from verl_otel.cli.view.listing import Listing
from verl_otel.cli.view.site import Site
from verl_otel.cli.view.watching import Catalogue, Watcher
from verl_otel.exporting.http_server import Server

LONG = "made-up-10000-steps"
TIMEOUT_MS = 300_000
"""Other programs may have the machine for minutes."""
IMAGES = Path(__file__).resolve().parent / "images"
TRAJECTORY = "28bed1d06c7a68234d0936dc768b5926"
VIEWS = {
    "home": "",
    "run": "#/run/slow-tool",
    "step": "#/run/slow-tool/step/4",
    "trajectory": f"#/run/slow-tool/step/4/{TRAJECTORY}",
    "compare": "#/compare/healthy/slower-tools",
}
LONG_VIEWS = {"long-run": f"#/run/{LONG}", "long-step": f"#/run/{LONG}/step/1034"}
SIZES = ((390, 844), (1400, 900), (2560, 1300))
SETTLED = """() => !document.body.innerText.match(/being read|reading …|not been read|of the files|Loading/) && document.querySelector("html[data-ready]")"""


@contextlib.contextmanager
def serve(folder):
    """Serve the page of all runs in a folder."""
    catalogue = Catalogue([folder])
    watcher, stopped = Watcher(catalogue), threading.Event()
    listing = Listing(catalogue, watcher)
    server = Server(("127.0.0.1", 0), Site(listing, watcher, Access()).answer, idle_share=0.0)
    threading.Thread(target=watcher.run, args=(stopped, listing.analyse()), daemon=True).start()
    server.start()
    yield f"http://127.0.0.1:{server.port}/"
    stopped.set()
    server.close()


def take(browser, address, name, place, size, scheme):
    """Take one picture, with few colours."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(address + place)
    page.wait_for_function(SETTLED, timeout=3 * TIMEOUT_MS)
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}-{width}-{scheme}.png", optimize=True)
    page.close()


def take_all():
    """Take the pictures of all views in both schemes at all widths: of recorded trainings, and of a made-up run of 10,000 steps."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        with contextlib.redirect_stdout(io.StringIO()):
            main(["demo", "--keep", f"{folder}/recorded"])
        long_run.make(Path(folder) / "long" / LONG, 10_000)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for runs, views in (("recorded", VIEWS), ("long", LONG_VIEWS)):
            with serve(Path(folder) / runs) as address:
                for (name, place), size, scheme in itertools.product(views.items(), SIZES, ("light", "dark")):
                    take(browser, address, name, place, size, scheme)
        browser.close()


if __name__ == "__main__":
    take_all()
