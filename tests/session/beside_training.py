# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""A small training beside another library that changes the process. Usage: ``beside_training.py LIBRARY FOLDER|off``.

Prints one JSON object: what the training computed, and what is left of the other library's hooks.
"""

import json
import sys

LIBRARY, FOLDER = sys.argv[1:]
LEFT = {}


def begin_ddtrace():
    import ddtrace.auto  # what ddtrace-run imports

    LEFT["provider"] = ddtrace.__version__


def begin_sentry():
    import sentry_sdk

    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", traces_sample_rate=1.0, instrumenter="otel", shutdown_timeout=0)
    LEFT["hook"] = sys.excepthook.__module__


def begin_gevent():
    from gevent import monkey

    monkey.patch_all()


def begin_uvloop():
    import asyncio

    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def begin_coverage():
    import coverage

    measured = coverage.Coverage(data_file=None)
    measured.start()
    LEFT["coverage"] = measured


def begin_settrace():
    LEFT["lines"] = 0

    def trace(_frame, event, _argument):
        LEFT["lines"] += event == "line"
        return trace

    sys.settrace(trace)


def begin_debugpy():
    import debugpy  # noqa: T100 - what is tried

    debugpy.listen(("127.0.0.1", 0))  # noqa: T100
    debugpy.breakpoint()  # noqa: T100 - nothing is attached: it returns


def begin_pdb():
    import io
    import pdb  # noqa: T100 - what is tried

    debugger = pdb.Pdb(stdin=io.StringIO("continue\n" * 50), stdout=io.StringIO(), nosigint=True)
    debugger.set_trace()


{name.removeprefix("begin_"): value for name, value in dict(globals()).items() if name.startswith("begin_")}.get(
    LIBRARY, lambda: None
)()

import asyncio
import os
import subprocess
import threading

import verl_otel

if FOLDER != "off":
    verl_otel.init(exporters="file,prometheus", run_dir=FOLDER, prometheus_port=0, drain_interval=0.1)


@verl_otel.reward("math")
def score(data_source, solution):
    return float(len(solution))


@verl_otel.tool("calculator")
async def calculate(text):
    await asyncio.sleep(0.001)
    return eval(text, {})  # a constant of this script


@verl_otel.span
def numbers(count):
    yield from range(count)


async def agent(index):
    with verl_otel.trajectory(f"uid-{index}", index), verl_otel.turn(0):
        return await calculate(f"{index} + 1")


async def generate():
    return await asyncio.gather(*map(agent, range(8)))


def in_thread(values):
    with verl_otel.span("thread"):
        values.append(score("math", "abc"))


def fork():
    child = os.fork()
    if child == 0:
        with verl_otel.span("child"):
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def step(number):
    with verl_otel.step(number):
        with verl_otel.phase("gen"):
            answers = asyncio.run(generate())
        values = []
        threads = [threading.Thread(target=in_thread, args=(values,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            with verl_otel.span("failing"):
                raise KeyError(number)  # noqa: TRY301 - through the block
        except KeyError as error:
            values.append(str(error))
        echoed = subprocess.run([sys.executable, "-S", "-c", "print(1)"], capture_output=True, text=True, check=True)
        return [answers, values, list(numbers(3)), echoed.stdout, fork()]


results = [step(number) for number in (1, 2, 3)]
if FOLDER != "off":
    verl_otel.shutdown()
    LEFT["threads"] = [thread.name for thread in threading.enumerate() if "verl" in thread.name]
if LIBRARY == "coverage":
    LEFT["coverage"].stop()
    LEFT["coverage"] = len(LEFT["coverage"].get_data().measured_files()) > 0
print(json.dumps({"results": results, "left": LEFT}))
