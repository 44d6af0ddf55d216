# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A script that calls everything that Ray can call, under a current span, and prints what arrived as one JSON line.

Usage: ray_calls.py before|after|never   (when verl-otel is loaded, relative to the first calls)
"""

import asyncio
import json
import os
import sys

import ray


def seen():
    """Return the trace id that is current in this process, or an empty text."""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


@ray.remote
def old_function():
    return "old"


@ray.remote
def old_generator():
    for number in range(3):  # noqa: UP028 - Ray's generators cannot be delegated to an iterator
        yield number


@ray.remote
def seen_by_function(*_words, **_more):
    return seen()


@ray.remote
def seen_by_generator():
    yield seen()
    yield seen()


@ray.remote
def seen_by_nested_function():
    return ray.get(seen_by_function.remote("a", b="c"))


@ray.remote
class OldActor:
    def method(self):
        return seen()

    def stream(self):
        for number in range(3):  # noqa: UP028 - as above
            yield number


@ray.remote
class AsyncActor:
    async def method(self, pause=0.0):
        await asyncio.sleep(pause)
        return seen()

    async def stream(self):
        for number in range(3):
            yield number


class Streams:
    """Made an actor's class when telemetry is loaded: generators of one that was before take no context."""

    def seen_by_stream(self):
        yield seen()
        yield seen()


class AsyncStreams:
    async def seen_by_stream(self):
        yield seen()
        await asyncio.sleep(0)
        yield seen()


@ray.remote
class Outer:
    def __init__(self, inner):
        self.inner = inner

    def nested(self):
        return ray.get(self.inner.method.remote())

    def fails(self):
        raise KeyError("of the user")


def load():
    os.environ["VERL_OTEL_ENABLED"] = "1"
    from verl_otel import plugin

    plugin.load()


def call_everything(old, new):
    """Call everything once and return what came back."""
    outer = Outer.remote(new)
    found = {
        "old_function": ray.get(old_function.remote()),
        "old_generator": [ray.get(each) for each in old_generator.remote()],
        "sync": ray.get(old.method.remote()),
        "sync_stream": [ray.get(each) for each in old.stream.remote()],
        "async": ray.get(new.method.remote()),
        "async_many": ray.get([new.method.remote(0.05) for _ in range(8)]),
        "async_stream": [ray.get(each) for each in new.stream.remote()],
        "options": ray.get(old.method.options(num_returns=1).remote()),
        "nested": ray.get(outer.nested.remote()),
        "function": ray.get(seen_by_function.remote("a", b="c")),
        "nested_function": ray.get(seen_by_nested_function.remote()),
    }
    sync, asynchronous = ray.remote(Streams).remote(), ray.remote(AsyncStreams).remote()
    streams = {
        "generator": seen_by_generator,
        "sync_seen": sync.seen_by_stream,
        "async_seen": asynchronous.seen_by_stream,
    }
    for name, stream in streams.items():
        found[name], found[f"{name} again"] = [ray.get(each) for each in stream.remote()]
    try:
        ray.get(outer.fails.remote())
    except KeyError:
        found["error"] = "KeyError"
    return found


def main():
    when = sys.argv[1]
    if when == "before":
        load()
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=True)
    old, new = OldActor.remote(), AsyncActor.remote()
    first = call_everything(old, new)  # Ray now remembers every function and class
    if when == "after":
        load()
    result = {"first": first}
    if when != "never":
        import verl_otel
        from verl_otel.integrations import patch
        from verl_otel.integrations.ray import context_propagation

        with verl_otel.step(1) as span:
            result["trace"] = f"{span.resolve().trace_id:032x}"
            result["second"] = call_everything(old, new)
            result["new"] = call_everything(OldActor.remote(), AsyncActor.remote())
        result["carrier"] = context_propagation.Propagation.state
        result["status"] = patch.status
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
