# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Causes of a slow step, planted on purpose, so that their names and sizes are known.

``CPU_BED_PLANT`` holds ``<kind>:<seconds>:<number>[:<which>]``, separated by commas:

* ``tool``, ``reward``: the n-th call in its process takes that much longer;
* ``server``: the first request that replica ``which`` answers with the weights of step n;
* ``sync``: the weight sync of step n, on rank ``which``;
* ``checkpoint``: the n-th checkpoint of a process; the trainer waits for the disk;
* ``rank``: rank ``which`` comes that much late to the n-th update, before it meets the others in a collective.

``*`` as the number is every time.
"""

import functools
import itertools
import os
import time

PLANT = "CPU_BED_PLANT"
_done = set()


def find_delay(kind, number, which=0):
    """Return the seconds that were planted here, once unless it is for every time; 0 otherwise."""
    for text in filter(None, os.environ.get(PLANT, "").split(",")):
        planted, seconds, when, *place = text.split(":")
        if planted != kind or int(place[0] if place else 0) != which:
            continue
        if when == "*":
            return float(seconds)
        if when == str(number) and text not in _done:
            _done.add(text)
            return float(seconds)
    return 0.0


def is_planted(kind):
    """Say whether there is a plant of this kind."""
    return any(text.startswith(f"{kind}:") for text in os.environ.get(PLANT, "").split(","))


def delay_calls(owner, name, kind):
    """Have the n-th call of a method in this process begin late, on its rank."""
    if not is_planted(kind):
        return
    original, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(original)
    def delayed(*args, **kwargs):
        time.sleep(find_delay(kind, next(calls), int(os.environ.get("RANK", "0"))))
        return original(*args, **kwargs)

    setattr(owner, name, delayed)
