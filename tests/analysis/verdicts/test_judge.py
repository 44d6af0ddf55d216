# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what held a step, by how much, and silence where nothing did."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import plans
from verl_otel.analysis.model import Activity, Straggler
from verl_otel.analysis.verdicts.baselines import LOOK_AHEAD
from verl_otel.analysis.verdicts.judge import Judge, examine
from verl_otel.cli import advice, wording

f, S, judge, plan, Plan, LongPlan = plans.f, plans.S, plans.judge, plans.plan, plans.Plan, plans.LongPlan
# -- silence --


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.floats(0, 0.6), st.integers(0, 10**6))
def test_healthy_runs_get_no_verdict(steps, noise, seed):
    """On a busy machine, with a first step that starts everything and is slower in all it does."""
    assert plan(steps, noise=noise, seed=seed) == [()] * steps


def test_start_up_is_no_verdict():
    """The first step waits for agent loops to come up, and saves its first checkpoint; there are no peers for that."""
    assert plan(at1={"submit": 60, "save": 30, "weight_sync": 9, "ref": 20}, at2={}, at3={}) == [(), (), ()]


def test_the_first_time_is_slow():
    """A first checkpoint makes its folders, in whatever step it comes; later ones are not compared with it."""
    assert plan(6, at2={"save": 30}, at4={"save": 0}, at6={"save": 0}) == [()] * 6


@pytest.mark.parametrize(("start", "look", "seconds"), [(30, 0, []), (0, 20, [20.0])])
def test_waiting_for_a_start_is_nobodys_and_a_late_look_is_the_trainers(start, look, seconds):
    """Nothing says who could have started the rollouts of a step earlier; that they had ended is the trainer's to notice."""
    delays = ((0, 0), (0, 0), (start, look), (0, 0))
    cases = [gen(*usual(at=begin * S), end=(begin + 3 + late) * S) for begin, late in delays]
    found = judge(*cases)
    assert [(verdict.kind, verdict.subject, verdict.seconds) for verdict in found.pop(2)] == [
        ("phase", "gen", each) for each in seconds
    ]
    assert found == [()] * 3


def test_a_poll_that_ends_when_it_will_is_no_cause():
    """It ends with the next look of the trainer, anywhere within its interval."""
    cases = [gen(*usual(), end=(3 + number % 5 * 0.5) * S) for number in range(15)]
    assert judge(*cases) == [()] * 15


def test_a_busy_machine_is_nobodys_fault():
    """In one step everything takes three times as long; no phase is to blame for that, although the longest took a second more."""
    cases = [LongPlan(each).tell() for each in range(1, 9)]
    slow = LongPlan(5)
    slow.first = 3.5
    cases[4] = slow.tell()
    assert judge(*cases) == [()] * 8


def test_a_slow_phase_is_seen_on_a_busy_machine():
    """Everything takes longer in a step, and one phase much longer than that: it is named, with all that it took too long."""
    cases = [LongPlan(each).tell() for each in range(1, 9)]
    slow = LongPlan(5, ref=9.0)
    slow.first = 2.0
    cases[4] = slow.tell()
    (verdict,) = judge(*cases)[4]
    assert verdict.subject == "ref"


# -- one trajectory --


@pytest.mark.parametrize("size", [0.7, 2.5, 30.0])
@pytest.mark.parametrize("step", [2, 3])
def test_a_slow_tool_is_named_with_its_size(size, step):
    """The trajectory, the tool, the turn and how much longer it took than usual."""
    verdicts = plan(3, **{f"at{step}": {"tool 5/1": size}})
    (verdict,) = verdicts.pop(step - 1)
    assert verdicts == [(), ()]
    assert (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name) == (
        "trajectory",
        f"u{step}/5",
        "tool",
        "search",
    )
    assert (verdict.turn, verdict.instance, verdict.step) == (1, "agent_loop-0", step)
    assert verdict.trace_id
    assert verdict.seconds == pytest.approx(size, rel=0.1)
    assert verdict.saved == pytest.approx(size, rel=0.2)


@pytest.mark.parametrize(("size", "longer", "is_named"), [(0.4, 0.0, False), (0.4, 0.4, True), (0.7, 0.0, True)])
def test_a_trajectory_hardly_delayed_a_step_that_took_no_longer_than_usual(size, longer, is_named):
    """Its other parts were as much shorter: such a step needs no explanation, unless the trajectory cost much."""
    rest = (longer - size) / len(plans.UPDATES)
    found = plan(6, noise=0.0, at4={"tool 5/1": size, **dict.fromkeys(plans.UPDATES, rest)})
    assert [bool(verdicts) for verdicts in found] == [number == 4 and is_named for number in range(1, 7)]


def test_two_slow_calls_of_a_trajectory_are_one_sum():
    """Both delayed it, so that no turn is named; without both the step would have been shorter by their sum."""
    (verdict,) = plan(3, at2={"tool 5/0": 2.0, "tool 5/1": 2.5})[1]
    assert (verdict.kind, verdict.turn) == ("trajectory", None)
    assert verdict.seconds == pytest.approx(4.5, rel=0.1)
    assert verdict.saved == pytest.approx(verdict.seconds, rel=0.1)


@pytest.mark.parametrize(
    ("end", "words", "key"),
    [
        ({"failed": True}, "failed", "failed trajectory"),
        ({"outcome": "cancelled"}, "was cancelled", "cancelled trajectory"),
    ],
)
def test_an_awaited_trajectory_that_did_not_end_says_so(end, words, key):
    """With the advice for that: its samples are lost, whatever it waited for."""
    late = slow(9)._replace(**end)
    (verdict,) = judge(gen(*usual()), gen(*usual(), late), gen(*usual()))[1]
    assert verdict.failed
    assert advice.find_key(verdict) == key
    assert f"Trajectory {late.label}, which {words}, delayed it" in wording.describe_verdict(verdict)


@pytest.mark.parametrize(("failed", "key"), [(3, "failed calls"), (1, "long generation"), (0, "long generation")])
def test_calls_that_failed_are_no_long_generation(failed, key):
    """Where most of the excess are calls that failed, the advice is about these."""
    times = [(n * S, (n + 1) * S) for n in range(5)]
    activities = [Activity("llm", "m", "agent_loop-0", *each, None, n < failed) for n, each in enumerate(times)]
    peers = [f.roll(0, S, f.chat(0, S)) for _ in range(7)]
    late = f.roll(0, 5 * S, *(f.chat(*each) for each in times))._replace(activities=tuple(activities))
    (verdict,) = judge(gen(*peers), gen(*peers, late), gen(*peers))[1]
    assert (verdict.seconds, advice.find_key(verdict)) == (4.0, key)
    assert (f"({failed} failed calls" in wording.describe_verdict(verdict)) == (failed == 3)


def test_all_calls_that_failed_are_counted():
    """Of four slow calls of a trajectory three failed: their number is that of all whose time is counted."""
    times = [(n * S, (n + 1) * S) for n in range(4)]
    activities = [Activity("tool", "search", "agent_loop-0", *each, None, n < 3) for n, each in enumerate(times)]
    peers = [f.roll(0, S // 10, f.tool("search", 0, S // 10)) for _ in range(7)]
    late = f.roll(0, 4 * S, *(f.tool("search", *each) for each in times))._replace(activities=tuple(activities))
    (verdict,) = judge(gen(*peers), gen(*peers, late), gen(*peers))[1]
    assert (verdict.lost_calls, verdict.seconds) == (3, pytest.approx(3.6))


def test_a_slow_reward_of_one():
    """A reward that took long for one trajectory is that trajectory's."""
    (verdict,) = plan(at2={"reward 3": 4.0})[1]
    assert (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name) == ("trajectory", "u2/3", "reward", "toy")
    assert verdict.instance == "reward-0"


def test_many_calls_of_usual_length_count_together():
    """A trajectory that called a tool twenty times is slow by all of these calls."""
    tools = [f.tool("search", n * S // 10, (n + 1) * S // 10) for n in range(40)]
    peers = [f.roll(0, S // 5, f.tool("search", 0, S // 10)) for _ in range(6)]
    member = f.roll(0, 4 * S, *tools, uid="long")
    cases = [gen(*peers), gen(*peers, member), gen(*peers)]
    (verdict,) = judge(*cases)[1]
    assert (verdict.subject, verdict.cause, verdict.cause_name) == ("long/0", "tool", "search")
    assert verdict.seconds == pytest.approx(3.9, rel=0.01)


def gen(*members, begin=0, end=None):
    """A step that only generates."""
    end = max(each.end_ns for each in members) if end is None else end
    return f.step(begin, end, f.phase("gen", begin, end, f.consume(end, *members))), members


def usual(count=7, at=0):
    return [f.roll(at, at + 2 * S, f.tool("search", at, at + 2 * S)) for _ in range(count)]


def slow(seconds, at=0, **more):
    return f.roll(at, at + seconds * S, f.tool("search", at, at + seconds * S), **more)


def test_a_small_lead_is_no_verdict():
    """Somebody is always the last."""
    assert judge(gen(*usual()), gen(*usual(), slow(2.2)))[1] == ()


def test_the_size_is_what_it_took_beyond_the_fastest_of_its_peers():
    """In a step in which everybody was slower than usual, the slowest is compared with what is usual."""
    slower = [f.roll(0, 3 * S, f.tool("search", 0, 3 * S)) for _ in range(7)]
    (verdict,) = judge(gen(*usual()), gen(*slower, slow(9)), gen(*usual()))[1]
    assert (verdict.kind, verdict.seconds, verdict.saved) == ("trajectory", 7.0, 6.0)


def test_one_alone_has_no_peers():
    """A step with one trajectory, and no other step: nobody knows what is usual."""
    assert judge(gen(slow(9))) == [()]


def test_in_the_first_step_only_what_stands_out_among_its_own():
    """Of the first step a later call that is slower than all others is told, a first call is not."""
    late = f.roll(0, 9 * S, f.tool("search", 0, S), f.tool("search", 3 * S, 9 * S), uid="late")
    assert [each.subject for each in judge(gen(*usual(), late))[0]] == ["late/0"]
    assert judge(gen(*usual(), slow(9)))[0] == ()


def test_rollouts_that_ran_ahead_held_nobody():
    """Trajectories that had ended before the step began, as in asynchronous training, are no reason for its length."""
    ahead = [*usual(at=-90 * S), slow(30, at=-40 * S)]
    assert judge(gen(*usual(), end=9 * S), gen(*ahead, begin=0, end=9 * S))[1] == ()


def test_a_step_never_waited_longer_than_it_took():
    """What a trajectory did before the step began did not hold the step."""
    cases = [gen(*usual()), gen(*usual(), slow(60, at=-50 * S), end=10 * S)]
    (verdict,) = judge(*cases)[1]
    assert verdict.seconds <= 10
    assert verdict.saved == 8.0


def test_nothing_is_said_of_what_was_not_kept():
    """Of a trajectory of which only the root was kept it is said that it was slow, and not what it did."""
    (verdict,) = judge(gen(*usual()), gen(*usual(), f.roll(0, 9 * S, uid="bare", whole=False)))[1]
    assert (verdict.subject, verdict.cause, verdict.seconds) == ("bare/0", "unknown", 7.0)


# -- groups --


def test_a_slow_replica_is_named():
    """All calls on one of two replicas are slow, in every step: no trajectory is to blame, the replica is."""
    first, *rest = plan(4, everywhere={"replica 4": 1.5})
    assert first == ()
    for (verdict,) in rest:
        assert (verdict.kind, verdict.subject, verdict.cause) == ("replica", "llm_server-1", "server")
        assert verdict.seconds == pytest.approx(1.5, rel=0.1)
        assert verdict.saved == pytest.approx(3.0, rel=0.1)


def test_a_slow_replica_that_serves_most_is_named():
    """Most trajectories are on the slow one, so that slow is usual: the other replica tells."""

    def members(slow):
        ends = [6, 6.1, 6.2, 6.3, 6.4, 2, 2] if slow else [2.1] * 7
        chats = [
            f.chat(0, round(end * S), served=(0, round(end * S)), at=3 if index < 5 else 4)
            for index, end in enumerate(ends)
        ]
        return [f.roll(0, chat.span.end_ns, chat) for chat in chats]

    for (verdict,) in judge(*[gen(*members(slow=number > 0)) for number in range(4)])[1:]:
        assert (verdict.kind, verdict.subject) == ("replica", "llm_server-0")
        assert verdict.seconds == pytest.approx(4.4, rel=0.01)


def test_a_tool_that_was_slow_for_all_is_named():
    """In one step the tool was slow for everybody."""
    (verdict,) = plan(at2={"tool": 2.0})[1]
    assert (verdict.kind, verdict.subject, verdict.trace_id, verdict.turn) == ("tool", "search", 0, None)
    assert verdict.seconds == pytest.approx(2.0, rel=0.1)


def test_two_of_eight_with_the_same_slow_tool():
    """Two that end together: the smallest thing that explains it is the tool."""
    (verdict,) = plan(at3={"tool 1/0": 3.0, "tool 4/1": 3.0})[2]
    assert (verdict.kind, verdict.subject) == ("tool", "search")


def test_a_reward_that_was_slow_for_all_is_named():
    """In one step the reward function was slow."""
    (verdict,) = plan(at2={"reward": 2.0})[1]
    assert (verdict.kind, verdict.subject, verdict.cause) == ("reward", "toy", "reward")
    assert verdict.seconds == pytest.approx(2.0, rel=0.1)


# -- phases and ranks --


@pytest.mark.parametrize("size", [0.7, 3.0, 40.0])
@pytest.mark.parametrize(
    ("what", "subject", "cause", "name"),
    [
        ("weight_sync", "update_weights", "weight_sync", "update_weights"),
        ("update_actor", "update_actor", "worker", "update_actor"),
        ("ref", "ref", "worker", "ref"),
        ("submit", "submit", "phase", "submit"),
    ],
)
def test_a_slow_phase_is_named_with_what_in_it(size, what, subject, cause, name):
    """The phase as the subject, and what in it took too long."""
    first, (verdict,), third = plan(noise=0.05, at2={what: size})
    assert first == third == ()
    assert (verdict.kind, verdict.subject, verdict.cause, verdict.cause_name) == ("phase", subject, cause, name)
    assert verdict.seconds == verdict.saved == pytest.approx(size, rel=0.1)


def test_a_slow_checkpoint_is_compared_with_checkpoints():
    """Of three checkpoints the second one wrote to a slow disk."""
    verdicts = plan(4, at1={"save": 0}, at2={"save": 3.0}, at4={"save": 0})
    assert [len(each) for each in verdicts] == [0, 1, 0, 0]
    assert (verdicts[1][0].subject, verdicts[1][0].cause) == ("save_checkpoint", "checkpoint")
    assert verdicts[1][0].seconds == pytest.approx(3.0, rel=0.1)


def test_a_rank_that_others_waited_for():
    """A straggler of a noticeable size is told once, and not as a slow phase again; in the first step it is start-up."""
    late = Straggler("update_actor", 3, "actor-3", 2.0, "arrival")
    little = Straggler("ref", 1, "actor-1", 0.1, "arrival")
    found = (late, late._replace(seconds=0.5, evidence="data"), little)
    cases = [Plan(number, **({"update_actor": 2.0} if number == 2 else {})).tell() for number in (1, 2, 3)]
    stragglers = [(late._replace(seconds=9.0),), found, ()]
    first, second, third = judge(
        *((*each, {"stragglers": those}) for each, those in zip(cases, stragglers, strict=True))
    )
    assert first == third == ()
    assert [(each.kind, each.subject, each.cause_name, each.seconds) for each in second] == [
        ("rank", "rank 3", "update_actor", 2.0)
    ]
    assert second[0].instance == "actor-3"


def straggle(*found):
    """Verdicts on the second of three ordinary steps in which these ranks came late."""
    cases = [
        (
            *Plan(number, **({"update_actor": 1.0} if number == 2 else {})).tell(),
            {"stragglers": found if number == 2 else ()},
        )
        for number in (1, 2, 3)
    ]
    return judge(*cases)[1]


def test_a_late_rank_costs_no_more_than_its_call_held_the_step():
    """What `update_actor` takes of the path bounds what a rank can have cost there; the delay itself is told as it is."""
    (verdict,) = straggle(Straggler("update_actor", 3, "actor-3", 3.0, "arrival"))
    assert verdict.seconds == 3.0
    assert verdict.saved == pytest.approx(1.4, rel=0.01)


def test_a_late_rank_beside_the_critical_path_held_nobody():
    """A rank came late to a call that ran beside the rollouts, which the step waited for."""
    late = Straggler("log_prob", 1, "actor-1", 3.0, "arrival")
    cases = []
    for number in (1, 2, 3):
        members = usual()
        beside = f.call("log_prob", 0, S, f.worker("log_prob", 0, S))
        phases = [beside, f.phase("gen", 0, 4 * S, f.consume(4 * S, *members))]
        cases.append((f.step(0, 4 * S, *phases), members, {"stragglers": (late,) if number == 2 else ()}))
    assert judge(*cases) == [(), (), ()]


def test_a_worker_that_did_not_begin_is_named_and_not_the_trainer():
    """A call was made and its worker's method began ten seconds late: the worker's process is the place to look."""
    cases = []
    for number in range(1, 6):
        late = 10 * S if number == 3 else 0
        end = 3 * S + late
        call = f.call("log_prob", S, end, f.worker("log_prob", S + S // 10 + late, end))
        cases.append((f.step(0, end, f.phase("ref", S, end, call), number=number), []))
    (verdict,) = judge(*cases)[2]
    assert (verdict.cause, verdict.cause_name, verdict.instance) == ("call", "log_prob", "actor-0")


def test_workers_that_took_as_long_as_each_other_are_alike():
    """All ranks of a call took longer together: the one that ended last may only have waited for the others."""
    cases = []
    for number in range(1, 6):
        end = (4 if number == 3 else 1) * S
        ranks = [f.worker("ref", 0, end + rank * 1_000_000, at=1 + 2 * rank) for rank in range(2)]
        call = f.call("ref", 0, end + 1_000_000, *ranks)
        cases.append((f.step(0, end + 1_000_000, f.phase("ref", 0, end + 1_000_000, call), number=number), []))
    (verdict,) = judge(*cases)[2]
    assert (verdict.kind, verdict.cause, verdict.alike) == ("phase", "worker", True)


def test_the_worst_comes_first():
    """Several causes of one step are in the order of what they cost."""
    verdicts = plan(at2={"tool 0/0": 2.0, "weight_sync": 5.0, "ref": 3.0})[1]
    assert [(each.kind, each.subject) for each in verdicts] == [
        ("phase", "update_weights"),
        ("phase", "ref"),
        ("trajectory", "u2/0"),
    ]


def test_a_step_that_failed_is_not_compared():
    """What an exception cut off is not slow, and no peer for others."""
    cases = [Plan(number, **({"ref": 9.0} if number == 3 else {})).tell() for number in (1, 2, 3, 4)]
    assert [len(each) for each in judge(*cases)] == [0, 0, 1, 0]
    assert judge(*((*each, {"failed": number == 2}) for number, each in enumerate(cases))) == [(), (), (), ()]


def test_a_verdict_is_worth_more_than_clocks_may_be_apart():
    """With clocks that may be five seconds apart a lead of three says nothing."""
    cases = [Plan(number, **({"tool 5/1": 3.0} if number == 2 else {})).tell() for number in (1, 2, 3)]
    assert judge(*((*each, {"uncertainty": 5.0}) for each in cases)) == [(), (), ()]


# -- over the run --


@pytest.mark.full
def test_verdicts_become_final_and_memory_stays_bounded():
    """A verdict of long ago stands; of old steps nothing else is kept; settling twice says the same."""
    judged, steps = Judge(), []
    for number in range(1, 3 * LOOK_AHEAD):
        root, members = Plan(number, noise=0.1, **({"tool 5/1": 3.0} if number == 5 else {})).tell()
        steps.append(f.tell(root, members, number))
        judged.judge(steps[-1], examine(steps[-1], root, members))
    assert len(judged._recent) == LOOK_AHEAD
    assert all(step.path == () for step, _ in judged._recent)
    settled = judged.settle()
    assert settled == judged.settle()
    assert {verdict.step for verdicts in settled.values() for verdict in verdicts} == {5}


def test_what_is_usual_is_known_later():
    """The second step may look slow until the others turn out to be the same."""
    judged, steps = Judge(), []
    early = ()
    for number in range(1, 8):
        root, members = Plan(number, **({"ref": 3.0} if number > 1 else {})).tell()
        steps.append(f.tell(root, members, number))
        found = judged.judge(steps[-1], examine(steps[-1], root, members))
        early = early or found
    assert [each.subject for each in early] == ["ref"]
    assert not any(judged.settle().values())


def test_two_slow_steps_are_known_when_others_follow():
    """When the tool is slow in the second and third step, the third looks usual until others come."""
    judged, steps = Judge(), []
    for number in range(1, 9):
        root, members = Plan(number, noise=0.1, **({"tool": 3.0} if number in (2, 3) else {})).tell()
        steps.append(f.tell(root, members, number))
        found = judged.judge(steps[-1], examine(steps[-1], root, members))
        assert number != 3 or found == ()
    assert {verdict.step for verdicts in judged.settle().values() for verdict in verdicts} == {2, 3}
