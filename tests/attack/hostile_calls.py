# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Gives every hostile value to every argument of the public interface. Usage: ``python -m tests.attack.hostile_calls FOLDER``.

Prints one JSON object: tried, and what was raised by ``place / value``. ``TypeError`` is allowed where a verb decorates.
"""

import json
import resource
import sys

import verl_otel
from tests.fakes.hostile_values import VALUES, HostileError

NAMED = ("counter", "gauge", "histogram")


def block(make):
    def attempt(value):
        with make(value):
            pass

    return attempt


def inside(act):
    """Return an attempt that does something with the open span of a block."""

    def attempt(value):
        with verl_otel.span("inside") as span:
            act(span, value)

    return attempt


def returning(verb):
    """Return an attempt in which a decorated function takes and returns the value: both are extracted."""

    def attempt(value):
        result = verb(lambda data_source, batch=None, prompt_ids=None: data_source)(value, value, value)
        assert result is value

    return attempt


def returning_async(verb):
    def attempt(value):
        async def give(data_source):
            return data_source

        try:
            verb(give)(value).send(None)  # an event loop looks at results
        except StopIteration as stop:
            assert stop.value is value  # noqa: PT017 - this is no test function

    return attempt


def extracting(verb):
    """Return an attempt in which a user's extractor returns the value."""

    def attempt(value):
        assert verb(extract=lambda arguments, result: value)(lambda: 5)() == 5
        assert verb(extract=lambda arguments, result: {"a": value})(lambda: 5)() == 5

    return attempt


def raising(value):
    error = value if type(value) is HostileError else RuntimeError(value)
    try:
        with verl_otel.reward("math"):
            raise error  # noqa: TRY301 - through the block
    except BaseException as raised:
        assert raised is error  # noqa: PT017 - this is no test function


def yielding(value):
    made = verl_otel.span(lambda: (yield value))()
    assert next(made) is value


def setting(method, label):
    def attempt(value):
        instrument = getattr(verl_otel, {"add": "counter", "set": "gauge", "record": "histogram"}[method])(
            "attack.known"
        )
        getattr(instrument, method)(*(1.0,) if label else (value,), **({"kind": value} if label else {}))

    return attempt


PLACES = {
    "step": block(verl_otel.step),
    "phase": block(verl_otel.phase),
    "trajectory uid": block(verl_otel.trajectory),
    "trajectory index": block(lambda value: verl_otel.trajectory("uid", value)),
    "trajectory step": block(lambda value: verl_otel.trajectory("uid", step=value)),
    "trajectory agent": block(lambda value: verl_otel.trajectory("uid", agent=value)),
    "trajectory validate": block(lambda value: verl_otel.trajectory("uid", validate=value)),
    "turn": block(verl_otel.turn),
    "llm": block(verl_otel.llm),
    "llm provider": block(lambda value: verl_otel.llm("m", provider=value)),
    "llm operation": block(lambda value: verl_otel.llm("m", operation=value)),
    "tool": block(verl_otel.tool),
    "reward": block(verl_otel.reward),
    "update": block(verl_otel.update),
    "span": block(verl_otel.span),
    "span attributes": block(lambda value: verl_otel.span("s", attributes=value)),
    "span attribute": block(lambda value: verl_otel.span("s", attributes={"a": value})),
    "timed": block(verl_otel.timed),
    "timed with spans": block(lambda value: verl_otel.timed(value, span=True)),
    "set_attribute key": inside(lambda span, value: span.set_attribute(value, 1)),
    "set_attribute value": inside(lambda span, value: span.set_attribute("a", value)),
    "set_attributes": inside(lambda span, value: span.set_attributes(value)),
    "add_event name": inside(lambda span, value: span.add_event(value)),
    "add_event attributes": inside(lambda span, value: span.add_event("e", value)),
    "add_event time": inside(lambda span, value: span.add_event("e", None, value)),
    "add_link": inside(lambda span, value: span.add_link(value)),
    "update_name": inside(lambda span, value: span.update_name(value)),
    "set_status": inside(lambda span, value: span.set_status(value, value)),
    "record_exception": inside(lambda span, value: span.record_exception(value)),
    "raising": raising,
    "yielding": yielding,
    **{f"{name} name": lambda value, name=name: getattr(verl_otel, name)(value) for name in NAMED},
    **{f"{name} unit": lambda value, name=name: getattr(verl_otel, name)("attack.unit", unit=value) for name in NAMED},
    **{f"{method}": setting(method, label=False) for method in ("add", "set", "record")},
    **{f"{method} label": setting(method, label=True) for method in ("add", "set", "record")},
    **{f"{verb} extracts": returning(getattr(verl_otel, verb)) for verb in ("reward", "update", "rollout", "llm", "trajectory")},
    **{f"async {verb} extracts": returning_async(getattr(verl_otel, verb)) for verb in ("reward", "llm", "trajectory")},
    **{f"{verb} extract": extracting(getattr(verl_otel, verb)) for verb in ("reward", "update", "rollout", "llm", "tool", "span")},
}  # fmt: skip


def is_allowed(place, value, error):
    """Return whether a verb may raise this: a callable in the place of a name is a decoration, which ``TypeError`` refuses."""
    return type(error) is TypeError and place in ("step", "llm", "tool", "reward", "update", "span", "turn", "trajectory uid", "timed", "timed with spans") and (
        isinstance(value, type) or (place in ("turn", "span") and callable(value))
    )  # fmt: skip


def main():
    """Try everything twice: with recording off, and on with every local exporter."""
    failed, tried = {}, 0
    for on in (False, True):
        if on:
            verl_otel.init(exporters="file,prometheus", run_dir=sys.argv[1], prometheus_port=0, drain_interval=0.2)
        for place, attempt in PLACES.items():
            for name, make in VALUES.items():
                tried += 1
                value = make()
                try:
                    attempt(value)
                except Exception as error:
                    if not is_allowed(place, value, error):
                        failed[f"{place} / {name} / {'on' if on else 'off'}"] = type(error).__name__
    verl_otel.shutdown()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"tried": tried, "failed": failed, "peak_mib": peak}))


if __name__ == "__main__":
    main()
