# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Take the pictures of the documents in a Chromium, of recorded runs: ``make docs PICTURES=1``. They are not made again by ``make docs``."""

import contextlib
import io
import shutil
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from verl_otel.cli import main
from verl_otel.cli.view.access import Access
from verl_otel.cli.view.listing import Listing
from verl_otel.cli.view.site import Site
from verl_otel.cli.view.watching import Catalogue, Watcher
from verl_otel.exporting.http_server import Server

IMAGES = Path(__file__).resolve().parent / "images"
PICTURES = (
    ("live-page", "", 1400, 620, "light"),
    ("live-page-dark", "", 1400, 620, "dark"),
    ("live-page-390", "", 390, 844, "light"),
    ("page", "#/run/slow-tool", 1400, 1060, "light"),
    ("page-dark", "#/run/slow-tool", 1400, 1060, "dark"),
    ("page-390", "#/run/slow-tool", 390, 844, "dark"),
    ("page-2560", "#/run/slow-tool", 2560, 1100, "light"),
    ("step", "#/run/slow-tool/step/4", 1400, 900, "light"),
    ("step-390", "#/run/slow-tool/step/4", 390, 844, "light"),
    ("trajectory", "#/run/slow-tool/step/4/28bed1d06c7a68234d0936dc768b5926", 1400, 700, "dark"),
    ("compare", "#/compare/healthy/slower-tools", 1400, 900, "light"),
)
"""Name, address, width, height, colour scheme."""
SETTLED = """() => !document.body.innerText.match(/is being read|of the files|are being read|Loading/) && document.querySelector("html[data-ready]")"""


@contextlib.contextmanager
def serve(folder):
    """Serve the page of all runs in a folder."""
    catalogue = Catalogue([folder])
    watcher, stopped = Watcher(catalogue), threading.Event()
    listing = Listing(catalogue, watcher)
    server = Server(("127.0.0.1", 0), Site(listing, watcher, Access()).answer, idle_share=0.0)
    for target in (watcher.run, listing.run):
        threading.Thread(target=target, args=(stopped,), daemon=True).start()
    server.start()
    yield f"http://127.0.0.1:{server.port}/"
    stopped.set()
    server.close()


def take():
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        with contextlib.redirect_stdout(io.StringIO()):
            main(["demo", "--keep", folder])
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with serve(Path(folder)) as address:
            for name, place, width, height, scheme in PICTURES:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(address + place)
                page.wait_for_function(SETTLED, timeout=120_000)
                page.wait_for_timeout(500)
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                picture.quantize(160, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
                page.close()
        browser.close()


if __name__ == "__main__":
    take()
