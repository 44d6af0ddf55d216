# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Causes of a slow step, planted on purpose, so that their names and sizes are known.

``CPU_BED_PLANT`` holds ``<place>[!<action>]:<seconds>:<number>[:<which>]``, separated by commas. The place is reached, for the n-th time
or in step n, and something takes that much longer:

* ``tool``, ``reward``, ``agent``, ``llm``, ``put``, ``rewardloop``: the n-th call in its process of the tool, of the reward function, of
  the agent loop, of the client of the replicas, of the writer of TransferQueue, of the reward worker;
* ``block``: as ``tool``, and the event loop is blocked; ``hold``: as ``server``, and the event loop of the replica is blocked;
* ``server``: the first request that replica ``which`` answers with the weights of step n; ``weights``: the n-th time that it loads some;
* ``sync``: the weight sync of step n, on rank ``which``; ``checkpoint``: the n-th checkpoint of a process;
* ``rank``: rank ``which`` comes that much late to the n-th update, before it meets the others in a collective;
* ``infer``: a rank takes longer for the n-th log probabilities, of the policy and of the reference in turn;
* ``item``, ``submit``, ``sample``, ``get``, ``balance``, ``advantage``, ``metrics``, ``clear``, ``log``, ``validate``: the trainer, in step n;
  fully asynchronous training: the n-th ``validate`` of its rollouter, and no ``item``, ``submit``, ``get`` and ``clear``;
* ``score!equal``: the scores of step n are equal;
* ``background``: the weight sync of step n, on rank ``which``, runs in the background.

``*`` as the number is every time, ``a-b`` every time from the a-th to the b-th, ``*`` as the rank is every rank. The action is one of `cpu_actions`; without one the place waits.
"""

import asyncio
import functools
import inspect
import itertools
import json
import os
import time

import cpu_actions
import cpu_log

PLANT = "CPU_BED_PLANT"
_done = set()


class Trainer:
    """The step of the trainer of this process."""

    step = 0
    ended = 0
    """The step whose metrics were computed last."""


def find(place, number, which=0):
    """Yield action and seconds of what was planted here, once unless it is for every time."""
    for text in filter(None, os.environ.get(PLANT, "").split(",")):
        planted, seconds, when, *where = text.split(":")
        planted, _, action = planted.partition("!")
        rank = where[0] if where else "0"
        if planted != place or (rank != "*" and int(rank) != which) or not is_now(when, number):
            continue
        if when == str(number):
            if text in _done:
                continue
            _done.add(text)
            note(text)
        yield action, float(seconds)


def is_now(when, number):
    """Say whether ``*``, a number or a range ``a-b`` holds a number."""
    first, _, last = when.partition("-")
    return int(first) <= number <= int(last) if last and number is not None else when in ("*", str(number))


def note(text):
    """Write down when a plant is reached. At once, because what follows may end this process."""
    folder = os.environ.get(cpu_log.FOLDER)
    if folder:
        line = json.dumps({"pid": os.getpid(), "plant": text, "start": time.time()}) + "\n"
        handle = os.open(f"{folder}/plant.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        os.write(handle, line.encode())
        os.close(handle)


def is_reached(plant, number):
    """Say whether something other than a delay was planted here, however often it is asked."""
    for text in filter(None, os.environ.get(PLANT, "").split(",")):
        planted, _, when = text.split(":")[:3]
        if planted == plant and is_now(when, number):
            if text not in _done:
                _done.add(text)
                note(text)
            return True
    return False


def prepare(place):
    """Do before the training what an action needs at this place."""
    for text in os.environ.get(PLANT, "").split(","):
        planted, _, action = text.partition(":")[0].partition("!")
        if planted == place and hasattr(cpu_actions, f"prepare_{action}"):
            getattr(cpu_actions, f"prepare_{action}")()


def reach(place, number, which=0):
    """Do what was planted here."""
    for action, seconds in find(place, number, which):
        getattr(cpu_actions, action or "sleep")(seconds)


async def reach_async(place, number, which=0):
    """Do what was planted here; the event loop goes on unless the action blocks it."""
    for action, seconds in find(place, number, which):
        if action:
            getattr(cpu_actions, action)(seconds)
        else:
            await asyncio.sleep(seconds)


def is_planted(place):
    """Say whether there is a plant at this place."""
    return any(text.startswith((f"{place}:", f"{place}!")) for text in os.environ.get(PLANT, "").split(","))


def delay_calls(owner, name, place, count=None):
    """Have the n-th call of a method in this process begin late, on its rank.

    ``count`` returns the number of a call; without it the calls of the process are counted.
    """
    if not is_planted(place):
        return
    original, calls = getattr(owner, name), itertools.count(1)
    prepared = functools.cache(lambda: prepare(place))
    count = count or (lambda: next(calls))

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def delayed(*args, **kwargs):
            prepared()
            await reach_async(place, count(), int(os.environ.get("RANK", "0")))
            return await original(*args, **kwargs)

    else:

        @functools.wraps(original)
        def delayed(*args, **kwargs):
            prepared()
            reach(place, count(), int(os.environ.get("RANK", "0")))
            return original(*args, **kwargs)

    setattr(owner, name, delayed)


def delay_step(owner, name, place):
    """Have a method of the trainer take longer in step n."""
    delay_calls(owner, name, place, lambda: Trainer.step)
