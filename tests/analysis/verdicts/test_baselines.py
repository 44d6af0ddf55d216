# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is typical: the median of the other steps, bounded in memory, careful where little is known."""

from hypothesis import given
from hypothesis import strategies as st

from verl_otel.analysis.verdicts import baselines
from verl_otel.analysis.verdicts.baselines import Baseline, Baselines


def test_memory_is_bounded():
    """Names that are made of ids, and runs without an end: neither is remembered whole."""
    typical = Baselines()
    for key in range(3 * baselines.MAX_KEYS):
        typical.learn(key, 1, [1.0])
    for step in range(10 * baselines.REMEMBERED_STEPS):
        typical.learn(0, step, [float(step)])
    assert len(typical._entries) == baselines.MAX_KEYS
    assert len(typical._entries[0]) == baselines.REMEMBERED_STEPS
    assert typical.of_others(0, -1).median > 9 * baselines.REMEMBERED_STEPS
    assert typical.of_others(3 * baselines.MAX_KEYS - 1, 2) is None


def test_few_peers_have_to_be_exceeded_clearly():
    """Two equal peers have no spread: twice as long and half a second are asked for; many equal peers say more."""
    few, many = Baseline(1.0, 0.0, 2), Baseline(1.0, 0.0, 20)
    assert few.allows(1.9, 0.1)
    assert not few.allows(2.1, 0.1)
    assert Baseline(0.01, 0.0, 2).allows(0.4, 0.1)
    assert many.allows(1.05, 0.1)
    assert not many.allows(1.2, 0.1)


@given(st.floats(0, 100), st.floats(0, 10), st.integers(1, 50), st.floats(0, 100), st.floats(0, 5))
def test_longer_is_never_more_allowed(usual, spread, peers, seconds, floor):
    """What is too long stays too long when it gets longer; a wider spread allows more."""
    yard = Baseline(usual, spread, peers)
    if not yard.allows(seconds, floor):
        assert not yard.allows(seconds + 1, floor)
        assert not yard._replace(spread=spread / 2).allows(seconds, floor)
        assert seconds - usual >= baselines.SPREADS * spread
