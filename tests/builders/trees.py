# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Traces and trajectories as the stages of the analysis hand them on, told in a line each. Times are integers without a meaning."""

import itertools

from verl_otel.analysis.gpu import devices
from verl_otel.analysis.gpu.accounting import GpuAccount
from verl_otel.analysis.model import Activity, Trajectory
from verl_otel.analysis.traces.tree import Node
from verl_otel.model import Resource, SpanRecord

_IDS = itertools.count(1)


def resource(*words, rank=None, host="node", **more):
    """A process, from its ``<role>-<number>``; ``__`` stands for a dot in further attributes."""
    instance = "".join(words)
    role = instance.partition("-")[0]
    values = {"service.instance.id": f"run/{instance}", "verl.role": role, "host.name": host}
    values |= {} if rank is None else {"verl.rank": rank}
    return Resource(values | {key.replace("__", "."): value for key, value in more.items()})


def node(instance, name, start, end, *children, **attributes):
    """A span and what lies below it."""
    values = {key.replace("__", "."): value for key, value in attributes.items()}
    span = SpanRecord(1, next(_IDS), 0, name, 1, start, end, values, (), (), 0, "", 1, "")
    return Node(span, instance, 0, sorted(children, key=lambda child: child.span.start_ns))


def step(start, end, *children):
    """A step of the trainer."""
    return node("trainer-0", "verl.step", start, end, *children)


def phase(key, start, end, *children):
    """One of its phases."""
    return node("trainer-0", f"verl.phase.{key}", start, end, *children, verl__phase=key)


def call(method, start, end, *children):
    """A worker group's call."""
    return node("trainer-0", f"verl.call {method}", start, end, *children, verl__worker__method=method)


def worker(instance, method, start, end, *children):
    """A method on a rank."""
    return node(instance, f"verl.worker Worker.{method}", start, end, *children, verl__worker__method=method)


def activity(kind, instance, start, end):
    """Something that was done for a trajectory elsewhere."""
    return Activity(kind, kind, instance, start, end)


def roll(start, end, *activities, validate=False, whole=True):
    """A trajectory."""
    head = Trajectory(next(_IDS), "u", 0, 1, validate, start, end, None, False, whole)
    return head._replace(activities=activities)


SYNC = [
    resource("trainer-0"),
    resource("actor_rollout_ref-0", rank=0),
    resource("actor_rollout_ref-1", rank=1),
    resource("llm_server-0"),
    resource("llm_server-1"),
]
"""Two GPUs that take turns in training and generating; a replica on each."""
SEPARATE = [
    resource("trainer-0"),
    resource("actor_rollout_ref-0", rank=0),
    resource("rollout-1-0", rank=0),
    resource("llm_server-0"),
    resource("llm_server-1"),
]
"""One GPU that takes turns, one that only generates."""
ONE_STEP = [
    resource("trainer-0"),
    resource("actor-0", rank=0),
    resource("actor-1", rank=1),
    resource("rollout-0-0", rank=0),
    resource("rollout-0-1", rank=1),
    resource("llm_server-0"),
    resource("rollout-reward-0-0", rank=0),
    resource("llm_server-reward-0"),
]
"""Two GPUs that only train, two that generate as one replica, one with a reward model."""
MODES = {"sync": SYNC, "separate": SEPARATE, "one_step": ONE_STEP}


def account(mode, begin, end, roots=(), trajectories=(), **more):
    """The causes of each device in one window, without those of zero."""
    found = GpuAccount(devices.find_devices(MODES[mode], {})).add_window(begin, end, roots, trajectories, **more)
    return {each.device: each.nanoseconds for each in found}
