# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked of one real GRPO training only: files, OTLP and Prometheus at once. `test_modes` and `tests.recount` ask every mode."""

import math
import re
from collections import Counter, defaultdict

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.smoke]

STEPS, PROMPTS, ROLLOUTS, VALIDATION = 3, 4, 2, 8
VALIDATIONS = 3  # before training, after the second step, after the last
TRAINED = STEPS * PROMPTS * ROLLOUTS


@pytest.fixture(scope="module")
def spans(full):
    return full.spans()


@pytest.fixture(scope="module")
def by_name(spans):
    found = defaultdict(list)
    for span in spans:
        found[span.name].append(span)
    return found


@pytest.fixture(scope="module")
def by_id(spans):
    return {span.id: span for span in spans}


def test_steps_are_roots(spans, by_name):
    """Steps and validations are numbered as verl numbers them, steps are roots, and no span is Ray's own."""
    assert all(not span.parent and span.state == "verl=s" for span in by_name["verl.step"])
    assert [span.attributes["verl.step.number"] for span in by_name["verl.validation"]] == [0, 2, 3]
    assert not [span.name for span in spans if "ray.remote" in span.name or span.scope != "verl_otel"]


def test_every_trajectory_is_there_and_linked(full, by_name, by_id):
    """Trajectories are those that the bed saw, each a root linked to the step or validation that submitted it."""
    ours = by_name["verl.trajectory"]
    theirs = full.bed("trajectory")
    assert len(ours) == len(theirs) == TRAINED + VALIDATIONS * VALIDATION
    assert {(span.attributes["verl.sample.uid"], span.attributes["verl.rollout.index"]) for span in ours} == {
        (each["uid"], each["index"]) for each in theirs
    }
    roots = {span.trace: span for span in (*by_name["verl.step"], *by_name["verl.validation"])}
    for span in ours:
        assert not span.parent
        ((trace, target, link),) = span.links
        assert link == {"verl.link.type": "submitted_by"}
        assert target in by_id
        submitter = roots[trace]
        assert submitter.name == ("verl.validation" if span.attributes["verl.validate"] else "verl.step")
        assert submitter.attributes["verl.step.number"] == span.attributes["verl.step.number"]


def test_what_is_in_other_processes(full, by_name, spans):
    """Of an LLM call the server's side, of a reward its score and function, of a call of a group its worker: there is one rank."""
    assert {span.pid for span in by_name["verl.generate"]} == {each["pid"] for each in full.bed("server")}
    rewards = [span.attributes for span in by_name["verl.reward"]]
    assert sorted(each["verl.reward.score"] for each in rewards) == sorted(each["score"] for each in full.bed("score"))
    assert {each["verl.reward.function"] for each in rewards} == {"compute_score"}
    methods = [Counter(), Counter()]
    for span in spans:
        if span.name.startswith("verl.worker ") and not span.attributes["verl.worker.nested"]:
            methods[0][span.attributes["verl.worker.method"]] += 1
        elif span.name.startswith("verl.call ") and span.kind == 3:
            methods[1][span.attributes["verl.worker.method"]] += 1
    assert methods[0] == methods[1]


def test_steps_are_linked_to_what_they_trained_on(by_name):
    """Each trained trajectory is consumed once, by the step after whose submission it ran."""
    steps = {span.trace: span.attributes["verl.step.number"] for span in by_name["verl.step"]}
    trajectories = {span.trace: span for span in by_name["verl.trajectory"]}
    consumed = [(steps[span.trace], trace) for span in by_name["verl.consume"] for trace, _, _ in span.links]
    assert len(consumed) == len({trace for _, trace in consumed}) == TRAINED
    for number, trace in consumed:
        assert trajectories[trace].attributes["verl.step.number"] == number
        assert not trajectories[trace].attributes["verl.validate"]
    slowest = {span.attributes["verl.slowest.trace_id"]: span.attributes for span in by_name["verl.step"]}
    assert slowest.keys() <= {trace for _, trace in consumed}
    for trace, said in slowest.items():
        assert said["verl.slowest.uid"] == trajectories[trace].attributes["verl.sample.uid"] != ""


def metric_name(key):
    """The name that the contract gives to a scalar, made anew here."""
    return "verl." + re.sub(r"[^A-Za-z0-9_./-]", "_", key).replace("/", ".")


def plain_scalars(data):
    """The scalars of one step that become gauges of their own: all but validation results and phases."""
    phases = {"step", "gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "testing"}
    return {
        metric_name(key): value
        for key, value in data.items()
        if not re.match(r"val-(core|aux)/.*@", key)
        and not (key.startswith("timing_s/") and key.removeprefix("timing_s/") in phases)
    }


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def test_scalars_in_the_files_equal_verls_own_logger(full):
    """Every scalar of every step stands in the files, unchanged, all of a step under one time stamp."""
    points = full.points()
    times = {value: at for name, _, at, value in points if name == "verl.training.step"}
    by_time = defaultdict(dict)
    for name, labels, at, value in points:
        if not labels:
            by_time[at][name] = value
    for step, data in full.scalars().items():
        ours = by_time[times[step]]
        wrong = {
            name: (ours.get(name), value)
            for name, value in plain_scalars(data).items()
            if name not in ours or not same(ours[name], value)
        }
        assert not wrong


def test_scalars_on_metrics_pages_equal_verls_own_logger(full):
    """What Prometheus scraped while a step was the last one equals what verl logged for that step."""
    logged = full.scalars()
    seen = {step: page for step, page in full.scraper.steps.items() if step in logged}
    assert seen, "no scrape saw a step"
    for step, page in seen.items():
        for key, value in plain_scalars(logged[step]).items():
            name = "_".join(re.findall(r"[A-Za-z0-9:]+", key))
            assert same(page[name], value), (step, name)


def test_every_recording_process_was_a_target(full):
    """Each process that recorded metrics registered itself, and the engine, pages parsed strictly, and the file is gone at the end."""
    scraper = full.scraper
    assert not scraper.failures
    roles = {labels["verl_role"] for labels in scraper.targets.values()}
    assert roles == {"trainer", "actor_rollout_ref", "agent_loop", "reward", "llm_server"}
    assert [labels["verl_engine"] for labels in scraper.targets.values() if "verl_engine" in labels] == ["cpu"]
    run_id = full.folder.name
    for instance, labels in scraper.targets.items():
        assert labels["job"] == "verl"
        assert labels["verl_run_id"] == run_id
        assert instance.startswith(f"{run_id}/")
    assert not list((full.out / "runs" / "targets").glob("*.json"))


def test_otlp_received_what_the_files_hold(full, spans):
    """The OTLP sink got every span of the files exactly once, and the same last values."""
    received = Counter(full.sink.span_ids())
    assert received == Counter(span.id for span in spans)
    numbers = full.sink.numbers()
    finals = {
        name: value for (name, labels, instance), value in numbers.items() if not labels and "trainer" in instance
    }
    last = full.scalars()[STEPS]
    assert all(same(finals[name], value) for name, value in plain_scalars(last).items())
    assert finals["verl.training.steps"] == STEPS
    assert finals["verl.run.state"] == 2


def test_the_configured_bounds_are_told(full):
    """Bounds are those of verl's configuration; three steps are too few to say how the learning goes."""
    points = full.points()
    limits = {labels["verl.limit.name"]: value for name, labels, _, value in points if name == "verl.limit"}
    assert (limits["response_tokens"], limits["prompt_tokens"]) == (8, 32)
    assert "save_frequency" not in limits
    assert not [name for name, *_ in points if name in ("verl.training.trend", "verl.training.steps_since_best")]


def test_what_is_worth_keeping_is_marked(by_name):
    """The slowest trajectory of each step and validation has the mark; a response that fills its bound says that it was cut."""
    groups = defaultdict(list)
    for span in by_name["verl.trajectory"]:
        values = span.attributes
        groups[values["verl.step.number"], values["verl.validate"]].append(span)
        cut = values.get("gen_ai.response.finish_reasons") == ["length"]
        assert cut == (values["verl.response.tokens"] >= 8)
    assert groups
    for group in groups.values():
        slowest = max(group, key=lambda span: span.end - span.start)
        assert slowest.attributes["verl.sampling.keep"] is True
        assert slowest.attributes["verl.sampling.reason"] == "slowest"
