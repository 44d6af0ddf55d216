# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Sample explanations, and a real headless Chromium that opens their pages from disk."""

from types import SimpleNamespace

import pytest

from tests.cli.page import explanations
from verl_otel.cli import page


@pytest.fixture(scope="session")
def big():
    """A run of 10,000 steps of 1,000 trajectories, as an explanation keeps it: some hundred steps with detail, sums of all."""
    held = range(40, 10_000, 97)
    return explanations.make(
        10_000, members=1_000, scalars=150, slow=held, whole=lambda number: number % 25 == 0 or number in held
    )


@pytest.fixture
def show(browser, tmp_path):
    """Write the page of an explanation and open it; at the end nothing may have been complained of or asked for."""
    opened, contexts = [], []

    def run(explanation, width=1280, scheme="light", address="", **options):
        path = tmp_path / f"page{len(opened)}.html"
        page.write(explanation, path)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        seen = SimpleNamespace(page=context.new_page(), path=path, complaints=[], requests=[])
        seen.page.on("console", lambda message: seen.complaints.append(message.text))
        seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        opened.append(seen)
        seen.page.goto(path.as_uri() + address)
        seen.page.wait_for_selector("html[data-ready]")
        return seen

    yield run
    for context in contexts:
        context.close()
    for seen in opened:
        assert not seen.complaints
        assert {url.partition("#")[0] for url in seen.requests} <= {seen.path.as_uri(), "data:,"}
