# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A time-out that a signal handler raises passes through the library: it arrives, the context is as before, no span stays open.

Time-outs by ``SIGALRM`` around math graders are common. The handler's exception appears at any place of the code that runs.
"""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.attack

SCRIPT = Path(__file__).with_name("signal_shots.py")
ATTACKS = {
    "exceptions of a signal handler at random times": ("shots", 550, 20_000),
    "exceptions at every place where Python runs handlers": ("sweep", 2, 1_000),
}


@pytest.fixture(scope="module", params=list(ATTACKS))
def attack(request, clean_python):
    """Run one kind of attack on every target; the result by target."""
    kind, number, least = ATTACKS[request.param]
    done = clean_python("-W", "ignore::RuntimeWarning", SCRIPT, kind, number, seconds=300)
    assert sum(result["tried"] for result in json.loads(done.stdout.splitlines()[-1]).values()) >= least
    return request.param, json.loads(done.stdout.splitlines()[-1])


def count(attack, key):
    name, results = attack
    return name, sum(result["tried"] for result in results.values()), {n: r[key] for n, r in results.items() if r[key]}


def test_the_exception_arrives(attack, attack_counts):
    """No guard of ours takes what a handler raised while our code ran."""
    name, tried, failed = count(attack, "lost")
    attack_counts(f"{name}: not lost", tried, sum(failed.values()))
    assert not failed


def test_the_context_is_as_before(attack, attack_counts):
    """After the exception the current span is the one around the block, and the next span has the right parent."""
    name, tried, failed = count(attack, "strayed")
    attack_counts(f"{name}: context as before", tried, sum(failed.values()))
    assert not failed


def test_no_span_stays_open(attack, attack_counts):
    """Every span that had begun ends."""
    name, tried, failed = count(attack, "open")
    attack_counts(f"{name}: no span open", tried, sum(failed.values()))
    assert not failed
