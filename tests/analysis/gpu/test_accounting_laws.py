# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""GPU time: every nanosecond of every GPU once, whatever the spans say; the sweep is what a look at every tick would see."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import trees
from verl_otel.analysis.gpu import devices, idle_causes
from verl_otel.analysis.gpu.accounting import WORK, GpuAccount
from verl_otel.semconv.kinds import GPU_CAUSES

pytestmark = pytest.mark.full

activity, call, node, phase, resource = trees.activity, trees.call, trees.node, trees.phase, trees.resource
roll, step, worker = trees.roll, trees.step, trees.worker
account, MODES = trees.account, trees.MODES


END = 24
"""Ticks in a made-up run: few, so that causes meet."""
TICKS = st.integers(0, END)
SPELLS = st.tuples(TICKS, TICKS).map(sorted)
INSTANCES = [process.text("service.instance.id").partition("/")[2] for mode in MODES.values() for process in mode]
METHODS = ["update_actor", "compute_log_prob", "update_weights", "save_checkpoint", "wake_up", "init_model", "mine"]
PHASES = ["gen", "gen", "update_actor", "adv", "update_weights", "testing", "save_checkpoint", "reward", "switch_to_trainer",
          "switch_to_rollout", "submit", "switch_wait"]  # fmt: skip


# -- generated forests ------------------------------------------------------------------------------------------------


@st.composite
def workers(draw):
    start, end = draw(SPELLS)
    instance = draw(st.sampled_from(INSTANCES))
    nested = [worker(instance, "train_batch", start, end)] if draw(st.booleans()) else []
    return worker(instance, draw(st.sampled_from(METHODS)), start, end, *nested)


@st.composite
def below(draw):
    kind = draw(st.sampled_from(["call", "weight_sync", "checkpoint", "consume"]))
    start, end = draw(SPELLS)
    if kind == "call":
        return call(draw(st.sampled_from(METHODS)), start, end, *draw(st.lists(workers(), max_size=3)))
    return node("trainer-0", f"verl.{kind}", start, end, *draw(st.lists(workers(), max_size=2)))


@st.composite
def others(draw):
    start, end = draw(SPELLS)
    kind = draw(st.sampled_from(["step", "step", "validation", "beside", "call"]))
    if kind == "validation":
        return node("trainer-0", "verl.validation", start, end)
    if kind == "beside":
        return node("agent_loop-0", "verl.validation", start, end)
    if kind == "call":
        return draw(below())
    phases = []
    for key in draw(st.lists(st.sampled_from(PHASES), max_size=5)):
        children = draw(st.lists(below(), max_size=2))
        if key == "gen" and draw(st.booleans()):
            children.append(node("trainer-0", "verl.consume", *draw(SPELLS)))
        phases.append(phase(key, *draw(SPELLS), *children))
    return step(start, end, *phases)


@st.composite
def rollouts(draw):
    start, end = draw(SPELLS)
    made = [
        activity(
            draw(st.sampled_from(["server", "tool", "reward", "llm"])), draw(st.sampled_from(INSTANCES)), *draw(SPELLS)
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    return roll(start, end, *made, validate=draw(st.booleans()), whole=draw(st.integers(0, 4)) > 0)


FORESTS = st.tuples(st.lists(others(), max_size=4), st.lists(rollouts(), max_size=5))
CUTS = st.lists(TICKS, min_size=2, max_size=5).map(sorted)


# -- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=100, deadline=None)
@given(forest=FORESTS, cuts=CUTS)
def test_causes_sum_up_to_the_window_and_windows_to_the_run(mode, forest, cuts):
    """Each device has exactly the window's nanoseconds; windows side by side give the same as the one around them."""
    ledger = GpuAccount(devices.find_devices(MODES[mode], {}))
    for begin, end in itertools.pairwise(cuts):
        for found in ledger.add_window(begin, end, *cut(forest, begin, end)):
            assert sum(found.nanoseconds.values()) == end - begin
            assert set(found.nanoseconds) <= set(GPU_CAUSES)
            assert min(found.nanoseconds.values(), default=1) > 0
    assert {each.device: each.nanoseconds for each in ledger.total()} == account(
        mode, cuts[0], cuts[-1], *cut(forest, cuts[0], cuts[-1])
    )


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=150, deadline=None)
@given(forest=FORESTS, window=SPELLS)
def test_the_sweep_agrees_with_looking_at_every_tick(mode, forest, window):
    """The account is what comes out when each tick is looked at by itself."""
    assert account(mode, *window, *forest) == look(mode, *window, *forest)


@settings(max_examples=50, deadline=None)
@given(forest=FORESTS, seed=st.randoms())
def test_order_and_names_do_not_matter(forest, seed):
    """Hosts and run can be called anything, and files be read in any order."""
    roots, trajectories = (seed.sample(part, len(part)) for part in forest)
    renamed = [resource(*each.text("service.instance.id").rpartition("/")[2:], host="other", rank=each.attributes.get("verl.rank"))
               for each in MODES["separate"]]  # fmt: skip
    ledger = GpuAccount(devices.find_devices(seed.sample(renamed, len(renamed)), {}))
    found = {each.device: each.nanoseconds for each in ledger.add_window(0, END, roots, trajectories)}
    assert found == account("separate", 0, END, *forest)


@settings(max_examples=200, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from(["switch_to_trainer", "switch_to_rollout", "validation"]), SPELLS), max_size=5
    ),
    cuts=CUTS,
)
def test_a_gpu_that_changes_its_role_is_idle_for_the_reason_of_the_role(turns, cuts):
    """Lent to the rollouts it waits for their tool, taken back it waits for rollouts, in windows as in one."""
    made = [
        node("trainer-0", "verl.validation", *spell) if key == "validation" else phase(key, *spell)
        for key, spell in turns
    ]
    forest = [*made, phase("gen", 0, END)], [roll(0, END, activity("tool", "agent_loop-0", 0, END))]
    expected = look("separate", cuts[0], cuts[-1], *forest)
    ledger = GpuAccount(devices.find_devices(MODES["separate"], {}))
    for begin, end in itertools.pairwise([0, *cuts]):
        ledger.add_window(begin, end, *cut(forest, begin, end))
    before = GpuAccount(devices.find_devices(MODES["separate"], {}))
    before.add_window(0, cuts[0], *cut(forest, 0, cuts[0]))
    for total, first in zip(ledger.total(), before.total(), strict=True):
        spent = {cause: ns - first.nanoseconds.get(cause, 0) for cause, ns in total.nanoseconds.items()}
        assert {cause: ns for cause, ns in spent.items() if ns} == expected[total.device]


# -- the oracle: one tick at a time -----------------------------------------------------------------------------------


def walk(root, inside=""):
    """Every node below a root, with whether a worker's method of the same process lies around it."""
    is_worker = root.span.name.startswith("verl.worker")
    yield root, is_worker and inside == root.instance
    for child in root.children:
        yield from walk(child, root.instance if is_worker else inside)


def cut(forest, begin, end):
    """What of a forest touches a window, from its first start to its last end."""
    roots, trajectories = forest
    nodes = {id(root): [node.span for node, _ in walk(root)] for root in roots}
    spans = {id(each): [each, *each.activities] for each in trajectories}
    return tuple(
        [
            each
            for each in part
            if min(span.start_ns for span in found[id(each)]) <= end
            and max(span.end_ns for span in found[id(each)]) >= begin
        ]
        for part, found in ((roots, nodes), (trajectories, spans))
    )


def covers(span, tick):
    return span.start_ns <= tick < span.end_ns


def look(mode, begin, end, roots, trajectories):
    found = devices.find_devices(MODES[mode], {})
    nodes = [each for root in roots for each in walk(root)]
    spent = {device.name: {} for device in found.gpus}
    for tick in range(begin, end):
        for number, device in enumerate(found.gpus):
            mine = {instance for instance, used in found.users.items() if number in used}
            cause = occupied(device, mine, nodes, trajectories, tick) or idle(found, device, nodes, trajectories, tick)
            spent[device.name][cause] = spent[device.name].get(cause, 0) + 1
    return spent


def occupied(device, mine, nodes, trajectories, tick):
    at_work = {
        idle_causes.find_work(node.span.name.rpartition(".")[2])
        for node, nested in nodes
        if node.span.name.startswith("verl.worker") and not nested and node.instance in mine and covers(node.span, tick)
    }
    if device.serves and any(node.span.name == "verl.weight_sync" and covers(node.span, tick) for node, _ in nodes):
        at_work.add("sync_wait")
    for each in trajectories:
        if any(part.kind == "server" and part.instance in mine and covers(part, tick) for part in each.activities):
            at_work.add("validation" if each.validate else "rollout")
    return next((cause for cause in WORK if cause in at_work), None)


def is_training(node):
    return (
        node.span.name.startswith("verl.worker") and idle_causes.find_work(node.span.name.rpartition(".")[2]) == "train"
    )


def idle(found, device, nodes, trajectories, tick):
    starts = [each.start_ns for each in trajectories]
    starts += [node.span.start_ns for node, nested in nodes if is_training(node) and not nested]
    if not starts or tick < min(starts):
        return "start_up"
    states, asleep = states_at(nodes, tick), False
    turns = []
    for node, _ in nodes:
        turns += [(node.span.end_ns, True)] if node.span.name == "verl.phase.switch_to_trainer" else []
        turns += [(node.span.start_ns, False)] if node.span.name == "verl.phase.switch_to_rollout" else []
        turns += (
            [(node.span.start_ns, False)]
            if node.span.name == "verl.validation" and node.instance == "trainer-0"
            else []
        )
    past = [turn for turn in turns if turn[0] <= tick]
    asleep = max(past)[1] if past else False
    state = next((each for each in idle_causes.STATES if each in states), "data")
    running = [each for each in trajectories if covers(each, tick)]
    validating = any(each.validate for each in running) or any(
        node.span.name == "verl.validation" and covers(node.span, tick) for node, _ in nodes
    )
    return idle_causes.find_cause(
        device.lane,
        state,
        awaited_at(found, trajectories, tick),
        asleep=asleep,
        validating=validating,
        recorded=any(each.start_ns <= tick for each in trajectories),
    )


def states_at(nodes, tick):
    states = set()
    for node, nested in nodes:
        span = node.span
        last = max((child.span.end_ns for child in node.children if child.span.name == "verl.consume"), default=None)
        if not covers(span, tick) and not (last is not None and last <= tick < span.end_ns):
            continue
        kind, _, key = span.name.partition("verl.")[2].partition(".")
        if kind == "phase":
            if covers(span, tick):
                states.add(idle_causes.find_state(key))
            if last is not None and tick >= last and idle_causes.find_state(key) == "samples":
                states.add("switch")
        elif not covers(span, tick):
            continue
        elif kind in ("weight_sync", "checkpoint") or (kind == "validation" and node.instance == "trainer-0"):
            states.add(kind)
        elif kind.startswith("call "):
            work = idle_causes.find_work(kind.removeprefix("call "))
            states |= {work} & {"weight_sync", "checkpoint"}
            states |= {"missing"} if work == "train" and not node.children else set()
        elif is_training(node) and not nested:
            states.add("training")
    return states


def awaited_at(found, trajectories, tick):
    servers = tools = rewards = count = hidden = 0
    for each in trajectories:
        parts = [part for part in each.activities if covers(part, tick)]
        kinds = {part.kind for part in parts if covers(each, tick)}
        if each.validate:
            continue
        servers += any(part.kind == "server" for part in parts)
        if not covers(each, tick):
            continue
        if not each.whole:
            hidden += 1
            continue
        count += 1
        tools += "tool" in kinds
        rewards += "reward" in kinds
        served = any(part.kind == "server" for part in each.activities)
        hidden += "llm" in kinds and not served
    return idle_causes.find_awaited(servers, tools, rewards, count, hidden, found.replicas)
