# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_otel
from verl_otel.recording import callsite
from verl_otel.recording.callsite import MAX_PHASES, phase_site, was_used
from verl_otel.recording.span import Span


@pytest.fixture(autouse=True)
def no_phases(monkeypatch):
    """Start as a process that has opened no phase yet."""
    monkeypatch.setattr(callsite, "_sites", {})


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("gen", "gen"),
        ("update_actor", "update_actor"),
        ("timing_s/gen", "timing_s/gen"),
        ("Update Actor", "update_actor"),
        ("a-b", "a_b"),
        ("é", "_"),
        ("x" * 100, "x" * 64),
        ("", "other"),
    ],
)
def test_a_key_is_cleaned(key, name):
    """Capitals are lowered, other characters become an underscore, and 64 of them are enough."""
    assert phase_site(key).name == f"verl.phase.{name}"
    assert phase_site(key).attributes == {"verl.phase": name}


@pytest.mark.full
@given(st.text(max_size=200))
@settings(deadline=None, max_examples=100, database=None)
def test_every_key_becomes_a_valid_one(key):
    """Whatever the key, the name that comes out is a valid key, and cleaning that one changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callsite, "_sites", {})
        name = phase_site(key).attributes["verl.phase"]
        assert re.fullmatch(r"[a-z0-9_./]{1,64}", name)
        assert phase_site(name).attributes["verl.phase"] == name


@pytest.mark.full
def test_the_65th_key_is_other(no_series, recorded):
    """64 distinct keys are kept, what comes later is `other`, and the first 64 still have their names."""
    with verl_otel.step(1):
        for number in [*range(MAX_PHASES + 6), 0, 1]:
            with verl_otel.phase(f"p{number}"):
                pass
    names = [span.name for span in recorded.spans]
    assert names[:64] == [f"verl.phase.p{number}" for number in range(64)]
    assert names[64:70] == ["verl.phase.other"] * 6
    assert names[70:] == ["verl.phase.p0", "verl.phase.p1", "verl.step"]
    assert recorded.value("verl.phase.duration", verl_phase="other") == 6


@pytest.mark.full
def test_ten_thousand_keys_hold_no_memory(no_series, recorded):
    """A key that is different at every call makes no more than 65 names, and does not grow anything."""
    for number in range(10_000):
        with verl_otel.phase(f"step {number}"):
            pass
    assert len({point.labels for point in recorded.points}) == MAX_PHASES + 1
    assert len(callsite._sites) <= 2 * MAX_PHASES


@pytest.mark.full
def test_a_key_of_hook_and_user_counts_once(no_series, recorded):
    """64 keys are kept also where the trainer's hooks and the user open phases of the same keys."""
    with verl_otel.step(1):
        for number in range(MAX_PHASES):
            for hook in (True, False):
                with Span(phase_site(f"p{number}", hook=hook)):
                    pass
    assert "verl.phase.other" not in {span.name for span in recorded.spans}


def test_a_site_is_made_once():
    """A key has one site, and one more for hooks."""
    assert phase_site("gen") is phase_site("gen")
    assert phase_site("gen", hook=True) is not phase_site("gen")
    assert phase_site("gen", hook=True).hook


@pytest.mark.full
def test_a_phase_that_was_opened_is_known(no_series, recorded):
    """One can tell whether a phase of some key was opened in this process."""
    assert not was_used("gen")
    with verl_otel.phase("gen"):
        pass
    assert was_used("gen")


def test_threads_may_open_new_phases_at_once(fast_switching):
    """Nobody gets an error because another thread opens a phase that was not known."""
    failures = []

    def work(first):
        try:
            for _ in range(300):
                callsite._sites.clear()
                for number in range(first, first + 20):
                    phase_site(f"p{number}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(20 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
