# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Have every worker of the job load us: a setup hook and the settings, put into the job's own ``ray.init``."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

from verl_otel import _guard, session
from verl_otel.integrations.patch import replace
from verl_otel.integrations.ray import notices

FORWARDED: Final = ("VERL_OTEL_", "OTEL_", "VERL_USE_EXTERNAL_")
SECRETS: Final = ("HEADERS",)
"""Ends of variables that are never forwarded: a runtime environment is shown on Ray's dashboard. Use a token file."""
OF_THE_NODE: Final = ("VERL_OTEL_PROMETHEUS_ADVERTISE",)
"""Variables that mean something on one node only."""
JOB_CONFIG: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
HOOK_VARIABLE: Final = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
HOOK: Final = "worker_process_setup_hook"


def patch_init(ray: ModuleType) -> None:
    """Wrap ``ray.init`` and ``ray.shutdown``."""
    replace(ray, "init", _wrap_init)
    replace(ray, "shutdown", _wrap_shutdown)


def _wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        prepared = kwargs
        with _guard.swallowed("ray.init"):
            prepared = _prepare(kwargs)
        try:
            result = original(*args, **prepared)
        except (ValueError, RuntimeError) as error:
            if prepared is kwargs or not _is_ours(error):
                raise
            _guard.say(
                "ray.init",
                "verl-otel: Ray refused our runtime_env (%s); started without it: workers load verl-otel only "
                "when they import verl",
                str(error).splitlines()[0][:200],
            )
            with _environment(settings_to_forward()):  # a cluster that starts now inherits it
                result = original(*args, **kwargs)
        atexit.register(_wait_for_workers)  # after Ray's own, so that it runs before it
        notices.BOARD.publish()  # what was said before there was a cluster
        return result

    return init


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    missing = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _is_ours(error: Exception) -> bool:
    text = str(error)
    return "Failed to merge" in text or "setup_hook" in text or "setup hook" in text


def _wrap_shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def shutdown(*args: Any, **kwargs: Any) -> Any:
        _wait_for_workers()
        return original(*args, **kwargs)

    return shutdown


@_guard.guarded("ray.shutdown")
def _wait_for_workers() -> None:
    """Give the workers one drain interval: Ray kills them without running their ``atexit``."""
    atexit.unregister(_wait_for_workers)
    current = session.current()
    if current is not None and _is_driver():
        time.sleep(current.config.drain_interval + 0.2)
        current.end_run()


def _is_driver() -> bool:
    import ray

    worker = ray._private.worker
    return bool(ray.is_initialized()) and worker.global_worker.mode != worker.WORKER_MODE


def _prepare(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``ray.init`` with our hook and settings in their ``runtime_env``."""
    runtime_env = dict(kwargs.get("runtime_env") or {})
    job = read_job_runtime_env()
    taken = {**(job.get("env_vars") or {}), **(runtime_env.get("env_vars") or {})}
    mine = {name: value for name, value in settings_to_forward().items() if name not in taken}
    runtime_env["env_vars"] = {**mine, **(runtime_env.get("env_vars") or {})}
    if HOOK not in job and HOOK_VARIABLE not in os.environ:
        runtime_env[HOOK] = make_setup_hook(runtime_env.get(HOOK))
    return {**kwargs, "runtime_env": runtime_env}


def read_job_runtime_env() -> Mapping[str, Any]:
    """Return what ``ray job submit`` has put into the job's runtime environment: Ray refuses the same key twice."""
    try:
        config = json.loads(os.environ.get(JOB_CONFIG, "{}"))
    except ValueError:
        return {}
    found = config.get("runtime_env") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def settings_to_forward() -> dict[str, str]:
    """Return the variables that every process of the run needs, the run's identity among them."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(FORWARDED) and not name.endswith(SECRETS) and name not in OF_THE_NODE
    }
    current = session.current()
    if current is not None:
        current.begin_run()
        found["VERL_OTEL_RUN_ID"] = current.config.run_id
        found["VERL_OTEL_RUN_ATTEMPT"] = str(current.config.run_attempt)
        found["VERL_OTEL_RUN_DIR"] = str(current.config.run_dir)
    return found


def make_setup_hook(previous: Any) -> Callable[[], None]:
    """Return a hook for every worker process that loads us there, after the hook that was set before.

    It refers to nothing of this package by name: Ray pickles it by value, and a worker without verl-otel runs it and trains
    on. A dotted path would kill that worker.
    """

    def verl_otel_worker_setup() -> None:
        if callable(previous):
            previous()
        elif previous:
            import importlib

            module, _, name = previous.rpartition(".")
            getattr(importlib.import_module(module), name)()
        try:
            from verl_otel.integrations.ray.carrier import Carrier

            Carrier.early = True
            from verl_otel import plugin

            plugin.load()
        except BaseException as error:
            import os
            import sys
            import tempfile

            mark = f"{tempfile.gettempdir()}/verl-otel-missing-{os.environ.get('VERL_OTEL_RUN_ID', '')}"
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except OSError:
                return
            print(  # noqa: T201 - there is no logger of ours in that worker
                f"verl-otel is not on this node: its processes will be missing ({error!r})", file=sys.stderr
            )

    return verl_otel_worker_setup
