# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Photographs of boards in a real browser, and what their panels say: an error, nothing, or data.

The marks are those of Grafana's own package of selectors for end-to-end tests (``@grafana/e2e-selectors``): they are the same from 10.4 to 13.
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
from dashboards.shelf import walk

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request, Response

CHROMIUM: Final = Path(__file__).resolve().parents[2] / "tests" / "chromium.sh"
WIDTH: Final = 1600
LINE: Final = 38
"""Pixels of a line of Grafana's grid, with the gap below it."""
HEAD: Final = 200
WAIT: Final = 90.0
"""Seconds in which all panels of a board have to be there, and to be done with loading."""
QUIET: Final = 1.0
"""Seconds without a question and without a loading bar after which a board is done."""
_MARK: Final = "data-testid Panel header "
PANEL: Final = f'section[data-testid^="{_MARK}"]'
ERROR: Final = '[data-testid="data-testid Panel status error"]'
LOADING: Final = '[aria-label$="Panel loading bar"], [data-testid$="Panel loading bar"]'
NOTHING: Final = '[data-testid="data-testid Panel data error message"]'
QUESTIONS: Final = ("/api/ds/query", "/api/datasources/", "query.grafana.app", "datasource.grafana.app")
"""Parts of the addresses at which a board asks its data source: for panels, and for variables."""


class MissingBrowserError(Exception):
    """There is no browser; why."""


@dataclass(frozen=True)
class Photo:
    """What became of a board."""

    path: Path
    errors: tuple[str, ...]
    """Titles of panels that show an error, with the words of the answer; and what else was refused."""
    empty: tuple[str, ...]
    """Titles of panels that say that there is no data."""


@dataclass
class _Questions:
    """What a page asks of data sources."""

    open: set[Any] = field(default_factory=set)
    answers: list[Any] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("request", self._note)
        page.on("response", lambda answer: self.answers.append(answer) if _is_question(answer.request) else None)
        for end in ("requestfinished", "requestfailed"):
            page.on(end, self._end)  # type: ignore[call-overload]

    def _note(self, request: Request) -> None:
        if _is_question(request):
            self.open.add(request)

    def _end(self, request: Request) -> None:
        self.open.discard(request)

    def read_refused(self, titles: Mapping[str, str]) -> dict[str, str]:
        """Return the words of refused questions by the title of their panel; what is of no panel is the board's own."""
        found: dict[str, str] = {}
        for answer in self.answers:
            if answer.request in self.open:  # its body has not come, and would be waited for
                continue
            words = _read_words(answer)
            if words:
                found[titles.get(answer.request.headers.get("x-panel-id", ""), "the board itself")] = words
        return found


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a Chromium without a window. Raises `MissingBrowserError`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise MissingBrowserError("Playwright is not installed: make installs it into .venv") from None
    found = subprocess.run(["sh", CHROMIUM], capture_output=True, text=True, check=False)  # noqa: S603, S607 - our own script
    if found.returncode:
        raise MissingBrowserError(found.stderr.strip())
    with sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=found.stdout.split("\n")[0], args=options)
        try:
            yield browser
        finally:
            browser.close()


def write_address(url: str, board: Mapping[str, Any], period: tuple[float, float], chosen: Mapping[str, str]) -> str:
    """Return the address of a board for a time range in Unix seconds, with values of variables, without Grafana's menus."""
    start, end = (int(each * 1000) for each in period)
    query = {"orgId": 1, "from": start, "to": end, **{f"var-{name}": value for name, value in chosen.items()}}
    return f"{url}/d/{board['uid']}?{urllib.parse.urlencode(query)}&kiosk"


def photograph(browser: Browser, address: str, board: Mapping[str, Any], path: Path, wait: float = WAIT) -> Photo:
    """Open a board, wait until every panel has its answer, and take a photograph of all of it. Raises `GrafanaError`."""
    from playwright.sync_api import Error

    lines = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in board["panels"])
    wanted = sum(each["type"] != "row" for each in board["panels"])  # those of folded rows are not on the page
    # Grafana asks for what is in view only: the window is as high as the board.
    page = browser.new_page(
        viewport={"width": WIDTH, "height": lines * LINE + HEAD},
        color_scheme="dark",
        locale="en-US",
        timezone_id="UTC",
    )
    try:
        questions = _Questions()
        questions.watch(page)
        page.goto(address, wait_until="domcontentloaded")
        late = _wait(page, questions, wanted, wait)
        page.screenshot(path=path)
        titles = {str(panel["id"]): panel.get("title", "") for panel in walk(board["panels"])}
        errors = questions.read_refused(titles)
        empty = []
        for panel in page.locator(PANEL).all():
            title = str(panel.get_attribute("data-testid")).removeprefix(_MARK)
            if panel.locator(ERROR).count():
                errors.setdefault(title, "it shows an error")
            elif _says_nothing(panel):
                empty.append(title)
        return Photo(path, (*late, *(f"{title}: {words}" for title, words in errors.items())), tuple(empty))
    except Error as error:
        raise GrafanaError(f"{address}: {error.message}") from error
    finally:
        page.close()


def _wait(page: Page, questions: _Questions, wanted: int, seconds: float) -> list[str]:
    """Wait until all panels are there and done; return what is not."""
    deadline = time.monotonic() + seconds
    quiet = time.monotonic()
    while time.monotonic() < deadline:
        there, loading = page.locator(PANEL).count(), page.locator(LOADING).count()
        if there < wanted or loading or questions.open:
            quiet = time.monotonic()
        elif time.monotonic() - quiet > QUIET:
            return []
        page.wait_for_timeout(100)
    if there < wanted:
        return [f"{there} of {wanted} panels are there after {seconds:g} s"]
    return [f"it is not done after {seconds:g} s: {loading} panels load, {len(questions.open)} questions are open"]


def _says_nothing(panel: Locator) -> bool:
    return bool(panel.locator(NOTHING).count() or panel.get_by_text("No data", exact=True).count())


def _is_question(request: Request) -> bool:
    return any(part in request.url for part in QUESTIONS)


def _read_words(answer: Response) -> str:
    """Return why a question was refused; nothing where it was not. A query may be refused in an answer that is none (200, 207)."""
    from playwright.sync_api import Error

    try:
        words = read_message(answer.body())
    except Error as error:  # it was given up by the page
        words = error.message.partition("\n")[0] if not answer.ok else ""
    if not answer.ok:
        return f"{answer.status} {words}".strip()
    return words if "/query" in answer.url else ""
