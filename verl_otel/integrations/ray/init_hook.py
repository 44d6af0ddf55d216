# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Load verl-otel in every worker of the job: adds a setup hook and the settings to the job's own ``ray.init``."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from verl_otel._internal import error_boundary
from verl_otel._internal.call_timeout import call_for
from verl_otel._internal.safe_files import parse_json
from verl_otel.integrations import cluster_store
from verl_otel.integrations.patch import Hook, replace
from verl_otel.integrations.ray import cluster, cluster_endpoint
from verl_otel.integrations.ray.context_propagation import Propagation
from verl_otel.recording.decorate import Steps, surround
from verl_otel.semconv.attributes import EARLIER_ACTORS
from verl_otel.session import current_session

if TYPE_CHECKING:
    from verl_otel.session.lifecycle import Session

# -- Which variables of the driver are forwarded to the workers: settings, and no secrets --
# A runtime environment is visible on Ray's dashboard and in its logs. Variables that hold a secret are therefore not
# forwarded; the path of a file with a secret is.

FORWARDED: Final = ("VERL_OTEL_", "OTEL_", "VERL_USE_EXTERNAL_")
OF_THE_NODE: Final = ("VERL_OTEL_PROMETHEUS_ADVERTISE",)
"""Variables that are valid on one node only."""
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_ATTRIBUTES_OF_THE_NODE: Final = (
    *("host.", "os.", "container.", "process.", "service.instance."),
    *("k8s.node.", "k8s.pod.", "k8s.container."),
)
"""Resource attributes of one node, pod or process begin with these. An operator sets them in the driver's pod."""
_SECRET_NAME: Final = re.compile(
    r"HEADERS?$|PASSW|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTHORI[SZ]ATION|BEARER|BASIC_AUTH"
)
_PATH_NAME: Final = re.compile(r"_(?:FILE|PATH|DIR)$")
"""Suffixes of names whose value is the path of a secret. ``OTEL_EXPORTER_OTLP_CLIENT_KEY`` is a path, too."""
_SECRET_VALUE: Final = re.compile(
    r"""
    [^\s/@:,=]*:[^\s/@,]*@[\w.\[-]     # user and password of a URL, with or without its scheme
    | ://[^\s/@]+@                      # a token in place of the user
    | ://[^\s?]*\?[^\s]*=               # a query: keys and signatures
    | \b(?:bearer|basic)(?:\s|%20)+\S   # a header
    """,
    re.VERBOSE | re.IGNORECASE,
)


class Choice(NamedTuple):
    """The variables to forward, and the names of those that are withheld because they hold a secret."""

    forwarded: dict[str, str]
    withheld: list[str]


def choose(environ: Mapping[str, str]) -> Choice:
    """Return which of these variables every process of the run gets."""
    candidates = {
        name: value for name, value in environ.items() if name.startswith(FORWARDED) and name not in OF_THE_NODE
    }
    if _RESOURCE in candidates:
        pairs = candidates.pop(_RESOURCE).split(",")
        kept = ",".join(pair for pair in pairs if not pair.strip().startswith(_ATTRIBUTES_OF_THE_NODE))
        candidates |= {_RESOURCE: kept} if kept else {}
    withheld = sorted(name for name, value in candidates.items() if holds_secret(name, value))
    return Choice({name: value for name, value in candidates.items() if name not in withheld}, withheld)


def holds_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a secret, by its name or its value.

    Example:
        holds_secret("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:password@host:4318")
    """
    named = bool(_SECRET_NAME.search(name.upper())) and not _PATH_NAME.search(name.upper())
    named = named or (name == "VERL_OTEL_ON_STALL" and "://" in value)
    return bool(value) and (named or bool(_SECRET_VALUE.search(value)))


# -- the hook --

JOB_CONFIG: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
HOOK_VARIABLE: Final = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
HOOK: Final = "worker_process_setup_hook"
MODULES: Final = "VERL_USE_EXTERNAL_MODULES"
SERVER_SECONDS: Final = 10.0
"""Seconds that a server of Ray Client may take to load verl-otel."""
MAX_ACTORS: Final = 1000
"""Actors that are named in ``run.json``."""


def patch_init(ray: ModuleType) -> None:
    """Wrap ``ray.init`` and ``ray.shutdown``."""
    replace(ray, "init", _wrap_init)
    replace(ray, "shutdown", surround("ray.shutdown", _end_workers))
    with error_boundary.suppress_errors("ray.init"):
        if _is_driver():
            _begin_job()
            _note_earlier_actors(ray)


def _wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        prepared = kwargs
        with error_boundary.suppress_errors("ray.init"):
            prepared = _prepare(args, kwargs)
        try:
            result = original(*args, **prepared)
        except (ValueError, RuntimeError) as error:
            if prepared is kwargs or not _is_runtime_env_error(error):
                raise
            error_boundary.warn_once(
                "ray.init",
                "verl-otel: Ray refused our runtime_env (%s); started without it: workers load verl-otel only "
                "when they import verl",
                str(error).splitlines()[0][:200],
            )
            with _environment(settings_to_forward()):  # a cluster that starts now inherits the environment
                result = original(*args, **kwargs)
        _begin_job()
        _log_withheld()
        return result

    return init


def _begin_job() -> None:
    """Publish the run in the cluster that this process has joined, and have the exit wait for its workers."""
    atexit.unregister(_end_job)  # `ray.init(ignore_reinit_error=True)`: it would wait once more for each call
    atexit.register(_end_job)  # registered after Ray's handler, so that it runs first
    with error_boundary.suppress_errors("ray.init"):
        cluster.publish(settings_to_forward())
    _load_in_server(sys.modules["ray"])
    _use_cluster_endpoint()
    cluster.REGISTRY.publish()  # targets that were added before there was a cluster


def _is_client() -> bool:
    """Return whether this process is connected by Ray Client."""
    client = sys.modules.get("ray.util.client")
    return client is not None and bool(client.ray.is_connected())


class _Question:
    """Loads verl-otel in the server of Ray Client that unpickles it, and becomes there whether that server passes the context of calls on.

    The function is pickled by value: a server without verl-otel answers, too.
    """

    def __reduce__(self) -> tuple[Callable[[], bool], tuple[()]]:
        def load() -> bool:
            try:
                from verl_otel import plugin

                plugin.load()
                from verl_otel.integrations.ray.context_propagation import Propagation

                return Propagation.state == "on"
            except BaseException:
                return False

        return load, ()


@error_boundary.never_raises("ray client")
def _load_in_server(ray: Any) -> None:
    """Load verl-otel in the server of Ray Client, if there is one: without it the context does not reach actors."""
    if _is_client():
        with contextlib.suppress(TimeoutError):
            answer = call_for(SERVER_SECONDS, "verl-otel-client", lambda: ray.get(ray.put(_Question())))
            Propagation.by_client = answer is True


@error_boundary.never_raises("cluster endpoint")
def _use_cluster_endpoint() -> None:
    """Send to the endpoint of the cluster, if it has one and this process has no destination of its own."""
    current = current_session()
    if current is not None and cluster_endpoint.take(current.variables):
        current.reload_settings()


def _note_earlier_actors(ray: Any) -> None:
    """Record in ``run.json`` which actors of this job existed before telemetry: what they had loaded by then stays off in them."""
    current = current_session()
    if current is None or _is_client():  # Ray Client has no such table
        return
    job = cluster_store.runtime_context().get_job_id()
    try:
        found = call_for(cluster.PUT_TIMEOUT, "verl-otel-actors", ray._private.state.actors)
    except TimeoutError:
        return
    rows = list(found.values())
    earlier = [row["ActorID"] for row in rows if row["JobID"] == job and row["State"] != "DEAD"][:MAX_ACTORS]
    if earlier:
        current.run.add_facts({EARLIER_ACTORS: earlier})


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    missing = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _is_runtime_env_error(error: Exception) -> bool:
    text = str(error)
    return "Failed to merge" in text or "setup_hook" in text or "setup hook" in text


def _end_workers(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Steps:
    """Around ``ray.shutdown``: the workers end, and the driver may go on, also with another cluster."""
    atexit.unregister(_end_job)
    current = _wait_for_workers()
    with current.run.end_of_workers() if current is not None else contextlib.nullcontext():
        if current is not None:
            cluster.remove()
        yield


END_CLIENT: Final = Hook.wrapping(
    "ray.util.client_connect",
    "disconnect",
    surround("ray.shutdown", _end_workers),
    "what workers record in their last second, with Ray Client",
)
"""The end of ``with ray.init("ray://...")``, which does not call ``ray.shutdown``."""


@error_boundary.never_raises("exit")
def _end_job() -> None:
    """At the exit of a driver that is still connected: Ray's own handler ends the workers next."""
    current = _wait_for_workers()
    if current is not None:
        current.run.end()
        cluster.remove()


def _wait_for_workers() -> Session | None:
    """Wait one drain interval, within the exit timeout: Ray kills the workers without running their ``atexit`` handlers.

    Returns the session of this process, if it is the driver of a job.
    """
    current = current_session()
    if current is None or not _is_driver():
        return None
    time.sleep(current.last_drain_seconds)
    current.take_last_trajectories()
    return current


def _is_driver() -> bool:
    return cluster_store.is_connected() and not cluster_store.is_worker()


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``ray.init`` with the setup hook and the settings in ``runtime_env``.

    A ``runtime_env`` replaces that of a ``job_config`` as a whole, which is therefore copied. Ray Client (``ray://``)
    cannot pickle the hook.
    """
    job_config = kwargs.get("job_config")
    runtime_env = dict(kwargs.get("runtime_env") or getattr(job_config, "runtime_env", None) or {})
    job = read_job_runtime_env()
    address = str((args[0] if args else kwargs.get("address")) or os.environ.get("RAY_ADDRESS", ""))
    user_variables = {**(job.get("env_vars") or {}), **(runtime_env.get("env_vars") or {})}
    settings = {name: value for name, value in settings_to_forward().items() if name not in user_variables}
    if HOOK not in job and HOOK_VARIABLE not in os.environ and "://" not in address:
        runtime_env[HOOK] = make_setup_hook(runtime_env.get(HOOK))
        _remove_plugin(settings)
    runtime_env["env_vars"] = {**settings, **(runtime_env.get("env_vars") or {})}
    return {**kwargs, "runtime_env": runtime_env}


def _remove_plugin(settings: dict[str, str]) -> None:
    """Remove verl-otel from the external modules that verl imports in every worker, if the setup hook loads it.

    verl 0.7 and 0.8 load it by that variable. A worker on a node without verl-otel would fail at ``import verl``.
    """
    names = [name for name in settings.pop(MODULES, "").split(",") if name.strip().partition(".")[0] != "verl_otel"]
    if any(names):
        settings[MODULES] = ",".join(names)


def read_job_runtime_env() -> Mapping[str, Any]:
    """Return the runtime environment of ``ray job submit``: Ray refuses a key that is set in both."""
    try:
        config = parse_json(os.environ.get(JOB_CONFIG, "{}"))
    except ValueError:
        return {}
    runtime_env = config.get("runtime_env") if isinstance(config, dict) else None
    return runtime_env if isinstance(runtime_env, dict) else {}


def settings_to_forward() -> dict[str, str]:
    """Return the variables that every process of the run needs, including the identity of the run."""
    taken = cluster_endpoint.taken()
    settings = choose({name: value for name, value in os.environ.items() if name not in taken}).forwarded
    current = current_session()
    if current is not None:
        current.run.begin()
        settings.update(current.variables)
        settings["VERL_OTEL_ENABLED"] = "1"
        settings["VERL_OTEL_RUN_ID"] = current.config.run_id
        settings["VERL_OTEL_RUN_ATTEMPT"] = str(current.config.run_attempt)
        settings["VERL_OTEL_RUN_DIR"] = str(current.config.run_dir)
    return settings


@error_boundary.never_raises("ray.init")
def _log_withheld() -> None:
    """Log the variables that are withheld from workers because they hold secrets, unless the cluster inherits them from this process."""
    names = choose(os.environ).withheld
    if not names or _started_cluster():
        return
    error_boundary.warn_once(
        "ray secrets",
        "verl-otel: not forwarded to Ray's workers, because it holds a secret and Ray shows the environment of workers: %s. "
        "Use VERL_OTEL_TOKEN_FILE, whose path is forwarded, and an endpoint without a password, or set the variable on every node",
        ", ".join(names),
    )


def _started_cluster() -> bool:
    import ray

    node = getattr(getattr(ray._private, "worker", None), "_global_node", None)
    return node is not None and bool(node.is_head())


def make_setup_hook(previous: Any) -> Callable[[], None]:
    """Return a setup hook for worker processes that loads verl-otel, after the hook that was set before.

    It holds no reference to this package: Ray pickles it by value, and a worker without verl-otel runs it and continues. A dotted path
    would kill that worker.
    """

    def verl_otel_worker_setup() -> None:
        if callable(previous):
            previous()
        elif previous:
            import importlib

            module, _, name = previous.rpartition(".")
            getattr(importlib.import_module(module), name)()
        try:
            from verl_otel.integrations.ray.context_propagation import Propagation

            Propagation.early = True
            from verl_otel import plugin

            plugin.load()
        except BaseException as error:
            import os
            import sys
            import tempfile

            mark = f"{tempfile.gettempdir()}/verl-otel-missing-{os.getuid()}-{os.environ.get('VERL_OTEL_RUN_ID', '')}"
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except OSError:
                return
            print(  # noqa: T201 - that worker has no logger of verl-otel
                f"verl-otel is not on this node: its processes will be missing ({error!r})", file=sys.stderr
            )

    return verl_otel_worker_setup
