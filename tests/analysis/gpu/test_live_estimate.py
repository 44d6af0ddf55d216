# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU time while a training runs: it adds up, and it is what the files will say later, as far as a trainer can know."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import trees
from verl_otel.analysis.gpu import devices, idle_causes, live_estimate
from verl_otel.analysis.gpu.accounting import GpuAccount
from verl_otel.analysis.gpu.live_estimate import Call, GpuPool, Rollout, StepWindow
from verl_otel.semconv.kinds import GPU_CAUSES

TIMES = st.floats(0, 100, width=32)
SPELLS = st.tuples(TIMES, TIMES).map(sorted)
SHARES = st.floats(0, 1, width=32)
KEYS = st.sampled_from([*idle_causes._PHASES, "submit", "adv", "generate_async"])
METHODS = st.sampled_from(["update_actor", "update_weights", "save_checkpoint", "init_model"])
CALLS = st.lists(
    st.builds(lambda name, spell, blocking: Call(name, *spell, blocking), METHODS, SPELLS, st.booleans()), max_size=4
)
WINDOWS = st.builds(
    lambda span, phases, *rest: StepWindow(*span, [(key, *spell) for key, spell in phases], *rest),
    SPELLS,
    st.lists(st.tuples(KEYS, SPELLS), max_size=6),
    CALLS,
    st.lists(TIMES, max_size=2),
)
ROLLOUTS = st.lists(
    st.builds(lambda spell, *rest: Rollout(*spell, *rest), SPELLS, SHARES, SHARES, SHARES, st.booleans()), max_size=8
)
POOLS = st.builds(GpuPool, st.integers(0, 16), st.integers(0, 16), st.booleans(), st.integers(1, 8))


def near(seconds):
    return pytest.approx(seconds, abs=1e-6 * max(1.0, seconds))


@pytest.mark.full
@settings(max_examples=200, deadline=None)
@given(WINDOWS, ROLLOUTS, POOLS, st.booleans())
def test_causes_sum_up_to_the_window_times_gpus(window, rollouts, pool, asleep):
    """Whatever was noted, every GPU has every second once, and no cause is outside of the ledger's."""
    spent = live_estimate.account_gpu_time(window, rollouts, pool, asleep=asleep).by_cause()
    assert sum(spent.values()) == near((window.end - window.begin) * (pool.trains + pool.generates))
    assert set(spent) <= set(GPU_CAUSES)
    assert min(spent.values(), default=1) > 0


@pytest.mark.full
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(TIMES, st.floats(0, 500)), min_size=1, max_size=30), WINDOWS)
def test_the_tail_is_a_share_of_the_step(spells, window):
    """It lies between 0 and the share of the time in which the trainer waited for samples."""
    window = window._replace(phases=[("gen", *window[:2])])
    share = live_estimate.find_tail_share(window, [start + seconds for start, seconds in spells])
    assert (share is None) == (len(spells) == 1 or window.begin == window.end)
    assert share is None or 0 <= share <= 1


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([10.0] * 19 + [60.0], 0.5),  # one of twenty is 5 %
        ([10.0] * 39 + [60.0], 0.5),
        ([10.0] * 38 + [50.0, 60.0], 0.5),  # of forty it is two
        ([10.0] * 37 + [50.0, 60.0, 70.0], 0.2),
        ([5.0, 200.0], 0.9),  # only what the trainer waited counts
        ([7.0], None),
        ([], None),
    ],
)
def test_how_long_the_slowest_are_waited_for(ends, expected):
    """From when all but 5 % had ended to the last one's end, while the trainer waits for samples."""
    window = StepWindow(0.0, 100.0, [("submit", 0.0, 1.0), ("gen", 1.0, 95.0), ("update_actor", 95.0, 100.0)])
    assert live_estimate.find_tail_share(window, ends) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        (Rollout(0, 10, 1.0), {"rollout": 5, "tail_wait": 15}),
        (Rollout(0, 10, 0.0, 1.0), {"tool_wait": 20}),
        (Rollout(0, 10, 0.5, 0.25, 0.25), {"rollout": 2.5, "tail_wait": 7.5, "tool_wait": 5, "reward_wait": 5}),
        (Rollout(0, 10, 0.0), {"rollout_wait": 20}),
    ],
)
def test_one_trajectory_on_four_gpus(rollout, expected):
    """It keeps one replica busy while it is in its calls; the others wait for it."""
    spent = live_estimate.account_gpu_time(StepWindow(0, 5, [("gen", 0, 5)]), [rollout], GpuPool(4)).by_cause()
    assert spent == {cause: near(seconds) for cause, seconds in expected.items()}


def test_a_future_is_read_in_the_innermost_phase_around_its_call():
    """The phase of the trainer's own that is around it has other work after it; a call outside of all phases is as long as it took."""
    phases = [("gen", 0, 2), ("update_critic", 3, 6), ("own", 2, 9)]
    window = StepWindow(0, 12, phases, [Call("train_batch", 4, 4.5, False), Call("train_batch", 10, 11, False)])
    assert live_estimate.account_gpu_time(window, [], GpuPool(1)).trainer == {"rollout_wait": 2, "data": 7, "train": 3}


def test_a_wait_for_samples_while_no_trajectory_is_open_is_a_cause_of_its_own():
    """On both sides, from the first trajectory of the run on; while one is open, the trainer's GPUs wait for rollouts whatever it does."""
    window = StepWindow(0, 10, [("gen", 0, 10)])
    pool = GpuPool(1, 1, hybrid=False)
    spent = live_estimate.account_gpu_time(window, [Rollout(0, 4, 0.5)], pool)
    assert spent.trainer == {"rollout_wait": near(4), "none_open": near(6)}
    assert spent.rollouts == {"rollout": near(2), "rollout_wait": near(2), "none_open": near(6)}
    assert live_estimate.account_gpu_time(window, [], pool, recorded=True).rollouts == {"none_open": near(10)}
    assert live_estimate.account_gpu_time(window, [], pool).rollouts == {"rollout_wait": near(10)}


def test_gpus_apart_are_accounted_for_apart():
    """While the trainer's train the others generate; while it waits for samples its own are idle, and lent ones generate."""
    window = StepWindow(0, 10, [("gen", 0, 4), ("update_actor", 4, 10)], [Call("update_actor", 5, 10)])
    rollouts = [Rollout(0, 10, 1.0)] * 8
    spent = live_estimate.account_gpu_time(window, rollouts, GpuPool(2, 6, hybrid=False))
    assert spent.trainer == {"rollout_wait": near(8), "data": near(2), "train": near(10)}
    assert spent.rollouts == {"rollout": near(60)}
    taken = live_estimate.account_gpu_time(window, rollouts, GpuPool(2, 6), asleep=True)
    assert taken == spent._replace(asleep=True)
    lent = live_estimate.account_gpu_time(
        window._replace(phases=[("switch_to_rollout", 0, 0), *window.phases]), rollouts, GpuPool(2, 6)
    )
    assert (lent.trainer["rollout"], lent.rollouts["rollout"]) == (near(8), near(60))
    assert not lent.asleep


def tell(gpus, seed):
    """A synchronous step with a tool, once as spans and once as a trainer sees it."""
    chance, second = random.Random(seed), 1_000_000_000
    rolls, rollouts = [], []
    for number in range(64):
        start = now = chance.uniform(1, 2)
        spent, parts = {"server": 0.0, "tool": 0.0}, []
        for kind in ("server", "tool", "server"):
            seconds = chance.expovariate(1 / (8 if kind == "server" else 2))
            instance = f"llm_server-{number % gpus}" if kind == "server" else "agent_loop-0"
            parts.append(trees.activity(kind, instance, int(now * second), int((now + seconds) * second)))
            spent[kind] += seconds
            now += seconds
        rolls.append(trees.roll(int(start * second), int(now * second), *parts))
        rollouts.append(Rollout(start, now, spent["server"] / (now - start), spent["tool"] / (now - start)))
    begin = max(each.end for each in rollouts) + 1
    phases = [
        ("submit", 0, 1),
        ("gen", 1, begin),
        ("update_actor", begin, begin + 20),
        ("update_weights", begin + 20, begin + 22),
    ]
    calls = [Call("update_actor", begin + 1, begin + 20)]
    spans = [trees.phase(key, int(start * second), int(stop * second)) for key, start, stop in phases]
    for rank in range(gpus):
        for phase, method in ((spans[2], "update_actor"), (spans[3], "update_weights")):
            times = phase.span.start_ns + second, phase.span.end_ns
            phase.children.append(trees.worker(f"actor_rollout_ref-{rank}", method, *times))
    end = begin + 23
    processes = [
        trees.resource(f"{role}-{rank}", rank=rank)
        for rank in range(gpus)
        for role in ("actor_rollout_ref", "llm_server")
    ]
    ledger = GpuAccount(devices.find_devices(processes, {}))
    ledger.add_window(second, int(end * second), [trees.step(0, int(end * second), *spans)], rolls)
    return ledger.total(), StepWindow(1, end, phases, calls), rollouts


@pytest.mark.parametrize("gpus", [1, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_the_files(gpus, seed):
    """On a step whose trajectories lie on the replicas evenly each cause is right within 10 % of the GPU time, each state within 8 %."""
    total, window, rollouts = tell(gpus, seed)
    exact = dict.fromkeys(GPU_CAUSES, 0.0)
    for device in total:
        for cause, nanoseconds in device.nanoseconds.items():
            exact[cause] += nanoseconds / 1e9
    spent = live_estimate.account_gpu_time(window, rollouts, GpuPool(gpus)).by_cause()
    whole = (window.end - window.begin) * gpus
    assert sum(exact.values()) == pytest.approx(whole)
    assert {cause: spent.get(cause, 0) / whole for cause in GPU_CAUSES} == pytest.approx(
        {cause: seconds / whole for cause, seconds in exact.items()}, abs=0.1
    )
    for state in {cause.state for cause in GPU_CAUSES.values()}:
        causes = [cause for cause in GPU_CAUSES if GPU_CAUSES[cause].state == state]
        assert sum(spent.get(cause, 0) for cause in causes) / whole == pytest.approx(
            sum(exact[cause] for cause in causes) / whole, abs=0.08
        )


@pytest.mark.full
def test_many_trajectories_are_looked_at_in_parts():
    """With more trajectories than parts the account stays what it is with a look at each change, within 1 %."""
    chance = random.Random(5)
    starts = [chance.uniform(0, 10) for _ in range(2000)]
    rollouts = [Rollout(start, start + chance.expovariate(1 / 20), 0.6, 0.3) for start in starts]
    window = StepWindow(0, 200, [("gen", 0, 150), ("update_actor", 150, 200)])
    coarse = live_estimate.account_gpu_time(window, rollouts, GpuPool(8)).by_cause()
    fine = live_estimate.account_gpu_time(window, rollouts[: live_estimate.GRAINS], GpuPool(8)).by_cause()
    assert sum(coarse.values()) == near(1600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_estimate, "GRAINS", 10_000)
        exact = live_estimate.account_gpu_time(window, rollouts, GpuPool(8)).by_cause()
    assert all(coarse.get(cause, 0) == pytest.approx(exact.get(cause, 0), abs=16) for cause in GPU_CAUSES)
    assert fine != coarse
