# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Take the pictures of the documents in a Chromium, of recorded runs: ``make docs PICTURES=1``. They are not made again by ``make docs``."""

import contextlib
import io
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from verl_otel.cli import main

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH, HEIGHT = 1240, 1527


def take(run, path):
    """Write the page of a recorded run, and take a picture of what is seen first."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder) / "page.html"
        with contextlib.redirect_stdout(io.StringIO()):
            main(["demo", "--keep", f"{folder}/runs"])
            main(["report", f"{folder}/runs/{run}", "--html", str(page)])
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        view.goto(page.as_uri())
        view.wait_for_selector("html[data-ready]")
        view.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    take("slow-tool", IMAGES / "page.png")
