# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Screenshots of boards in a real browser, and the state of each panel: an error, no data, or data.

The selectors are those of Grafana's own package of selectors for end-to-end tests (``@grafana/e2e-selectors``): they are the same from 10.4 to 13.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dashboards.grafana.client import GrafanaError, read_message
from dashboards.loader import walk

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request, Response

CHROMIUM: Final = Path(__file__).resolve().parents[2] / "tests" / "chromium.sh"
WIDTH: Final = 1600
LINE: Final = 38
"""Pixels of a line of Grafana's grid, with the gap below it."""
HEAD: Final = 200
WAIT: Final = 90.0
"""Seconds in which all panels of a board have to be present and loaded."""
QUIET: Final = 1.0
"""Seconds without a pending request and without a loading bar after which a board is complete."""
_TEST_ID: Final = "data-testid Panel header "
PANEL: Final = f'section[data-testid^="{_TEST_ID}"]'
ERROR: Final = '[data-testid="data-testid Panel status error"]'
LOADING: Final = '[aria-label$="Panel loading bar"], [data-testid$="Panel loading bar"]'
NOTHING: Final = '[data-testid="data-testid Panel data error message"]'
DATA_URLS: Final = ("/api/ds/query", "/api/datasources/", "query.grafana.app", "datasource.grafana.app")
"""Parts of the URLs of requests to data sources: for panels, and for variables."""


class MissingBrowserError(Exception):
    """There is no browser; the message is the reason."""


@dataclass(frozen=True)
class Screenshot:
    """The result of one board."""

    path: Path
    errors: tuple[str, ...]
    """Titles of panels that show an error, with its message; and errors of other requests of the board."""
    empty: tuple[str, ...]
    """Titles of panels without data."""


@dataclass
class _Requests:
    """The requests of a page to its data sources."""

    open: set[Any] = field(default_factory=set)
    responses: list[Any] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("request", self._note)
        page.on(
            "response", lambda response: self.responses.append(response) if _is_data_request(response.request) else None
        )
        for end in ("requestfinished", "requestfailed"):
            page.on(end, self._end)  # type: ignore[call-overload]

    def _note(self, request: Request) -> None:
        if _is_data_request(request):
            self.open.add(request)

    def _end(self, request: Request) -> None:
        self.open.discard(request)

    def read_errors(self, titles: Mapping[str, str]) -> dict[str, str]:
        """Return the messages of failed requests by the title of their panel; those without a panel count for the board."""
        errors: dict[str, str] = {}
        for response in self.responses:
            if response.request in self.open:  # its body has not arrived, and reading it would block
                continue
            message = _read_error(response)
            if message:
                errors[titles.get(response.request.headers.get("x-panel-id", ""), "the board itself")] = message
        return errors


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a Chromium without a window. Raises `MissingBrowserError`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise MissingBrowserError("Playwright is not installed: make installs it into .venv") from None
    chromium = subprocess.run(["sh", CHROMIUM], capture_output=True, text=True, check=False)  # noqa: S603, S607 - our own script
    if chromium.returncode:
        raise MissingBrowserError(chromium.stderr.strip())
    with sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=chromium.stdout.split("\n")[0], args=options)
        try:
            yield browser
        finally:
            browser.close()


def write_address(url: str, board: Mapping[str, Any], period: tuple[float, float], chosen: Mapping[str, str]) -> str:
    """Return the address of a board for a time range in Unix seconds, with values of variables, without Grafana's menus."""
    start, end = (int(seconds * 1000) for seconds in period)
    query = {"orgId": 1, "from": start, "to": end, **{f"var-{name}": value for name, value in chosen.items()}}
    return f"{url}/d/{board['uid']}?{urllib.parse.urlencode(query)}&kiosk"


def capture(browser: Browser, address: str, board: Mapping[str, Any], path: Path, wait: float = WAIT) -> Screenshot:
    """Open a board, wait until every panel has its response, and take a screenshot of the whole page. Raises `GrafanaError`."""
    from playwright.sync_api import Error

    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    expected = sum(panel["type"] != "row" for panel in board["panels"])  # panels of collapsed rows are not on the page
    # Grafana loads only the panels in view: the window is as high as the board.
    page = browser.new_page(
        viewport={"width": WIDTH, "height": lines * LINE + HEAD}, color_scheme="dark", locale="en-US", timezone_id="UTC"
    )
    try:
        requests = _Requests()
        requests.watch(page)
        page.goto(address, wait_until="domcontentloaded")
        timeouts = _wait(page, requests, expected, wait)
        page.screenshot(path=path)
        titles = {str(panel["id"]): panel.get("title", "") for panel in walk(board["panels"])}
        errors = requests.read_errors(titles)
        empty = []
        for panel in page.locator(PANEL).all():
            title = str(panel.get_attribute("data-testid")).removeprefix(_TEST_ID)
            if panel.locator(ERROR).count():
                errors.setdefault(title, "it shows an error")
            elif _has_no_data(panel):
                empty.append(title)
        return Screenshot(
            path, (*timeouts, *(f"{title}: {message}" for title, message in errors.items())), tuple(empty)
        )
    except Error as error:
        raise GrafanaError(f"{address}: {error.message}") from error
    finally:
        page.close()


def _wait(page: Page, requests: _Requests, expected: int, seconds: float) -> list[str]:
    """Wait until all panels are present and loaded; return what is not."""
    deadline = time.monotonic() + seconds
    quiet = time.monotonic()
    while time.monotonic() < deadline:
        present, loading = page.locator(PANEL).count(), page.locator(LOADING).count()
        if present < expected or loading or requests.open:
            quiet = time.monotonic()
        elif time.monotonic() - quiet > QUIET:
            return []
        page.wait_for_timeout(100)
    if present < expected:
        return [f"{present} of {expected} panels are there after {seconds:g} s"]
    return [f"it is not done after {seconds:g} s: {loading} panels load, {len(requests.open)} questions are open"]


def _has_no_data(panel: Locator) -> bool:
    return bool(panel.locator(NOTHING).count() or panel.get_by_text("No data", exact=True).count())


def _is_data_request(request: Request) -> bool:
    return any(part in request.url for part in DATA_URLS)


def _read_error(response: Response) -> str:
    """Return the error of a response, or "". A query may fail in a response with status 200 or 207."""
    from playwright.sync_api import Error

    try:
        message = read_message(response.body())
    except Error as error:  # the page cancelled it
        message = error.message.partition("\n")[0] if not response.ok else ""
    if not response.ok:
        return f"{response.status} {message}".strip()
    return message if "/query" in response.url else ""
