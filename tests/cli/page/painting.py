# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""How quick a page is: when it was painted, and the CPU time of the longest task on its thread, which other processes do not lengthen."""

import contextlib
import json

FIRST_PAINT = "performance.getEntriesByType('paint').find(each => each.name === 'first-contentful-paint').startTime"


@contextlib.contextmanager
def watch(page):
    """Trace a page; what is yielded has the longest tasks afterwards, in milliseconds of CPU time."""
    longest = []
    browser = page.context.browser
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    yield longest
    events = json.loads(browser.stop_tracing())["traceEvents"]
    names = [event for event in events if event["name"] == "thread_name"]
    main = {(each["pid"], each["tid"]) for each in names if each["args"]["name"] == "CrRendererMain"}
    tasks = [
        event["tdur"] / 1000
        for event in events
        if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in main and "tdur" in event
    ]
    longest += sorted(tasks, reverse=True)[:5]
