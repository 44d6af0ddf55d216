# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The live page: the real command as a process, and a real headless Chromium that looks at it."""

import contextlib

import pytest

from tests.builders import live_page


@pytest.fixture
def serve(runs):
    """Start ``verl-otel view`` and return its address; it ends with the test."""
    with contextlib.ExitStack() as started:
        yield lambda *arguments: started.enter_context(live_page.serve(runs, *arguments))


@pytest.fixture
def look(browser):
    """Open an address; no page may log to the console, raise, or send a request to another server."""
    contexts, messages, foreign = [], [], []

    def run(address, width=1280):
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        origin = "/".join(address.split("/")[:3])
        page.on("request", lambda request: request.url.startswith((origin, "data:")) or foreign.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        return page

    yield run
    for context in contexts:
        context.close()
    assert not messages
    assert not foreign
