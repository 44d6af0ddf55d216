# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Check whether telemetry works here, and say what to do if not.

Checks the settings, the plug-in, the hooks in verl and Ray, an OpenTelemetry provider, and each exporter. Nothing is trained, and nothing is
sent except an empty request to the OTLP endpoint. With --cluster every node is asked for versions, resources, its clock, and whether it reaches the
endpoint of `verl-otel stack --cluster`. With --stack Prometheus is asked for rules and targets, engines for their statistics, and Grafana for its data
source and boards; STACK_PROMETHEUS and STACK_GRAFANA set their addresses, as for `verl-otel stack`.

Exit code: 0 everything works, 1 something does not.

Examples:
  verl-otel check
  verl-otel check --cluster            also ask every node of the running Ray cluster
  verl-otel check --stack --json       also ask Prometheus, engines and Grafana
  VERL_OTEL_EXPORTERS=otlp verl-otel check --json
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from verl_otel import config
from verl_otel._internal import safe_files
from verl_otel._internal.call_timeout import call_for
from verl_otel._internal.printable import counted, show
from verl_otel.cli import options
from verl_otel.cli.check_stack import Finding, ask_nodes, check_stack
from verl_otel.cli.documents.base import fill
from verl_otel.cli.documents.tools import Check
from verl_otel.cli.formatting import DOCUMENTS, SENTENCE, print_json
from verl_otel.cli.run_folders import list_runs
from verl_otel.config import SETTINGS, Config, is_service_link
from verl_otel.errors import ConfigError
from verl_otel.exporting.http_server import show_address, strip_brackets
from verl_otel.guards.decisions import BestMetric, describe_missing
from verl_otel.health import profiles
from verl_otel.integrations.source_inspection import read_version
from verl_otel.model import SIGNALS
from verl_otel.semconv.attributes import EARLIER_ACTORS
from verl_otel.semconv.scalar_keys import BY_NAME, VALIDATION
from verl_otel.session import run_manifest

_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_json(parser)
    parser.add_argument("--cluster", action="store_true", help="also ask every node of the running Ray cluster")
    parser.add_argument("--stack", action="store_true", help="also ask Prometheus, engines and Grafana")


def run(arguments: argparse.Namespace) -> int:
    """Run every check and return 1 if one failed."""
    findings = run_all(cluster=arguments.cluster, stack=arguments.stack)
    if arguments.json:
        print_json(fill(Check, None, checks=findings, next=[_find_next(findings)]))
    else:
        for finding in findings:
            print(_line(finding))
        print(f"\n{_sum_up(findings)}\nNext: {_find_next(findings)}")
    return int(_count_failed(findings) > 0)


def _count_failed(findings: Iterable[Finding]) -> int:
    return sum(finding.state == "fail" for finding in findings)


def _sum_up(findings: Sequence[Finding]) -> str:
    """Return how many checks failed; without a failure whether anything will be recorded."""
    failed = _count_failed(findings)
    if failed:
        return f"{failed} of {len(findings)} checks failed."
    missing = []
    if config.is_disabled():
        missing.append("OTEL_SDK_DISABLED=true is set")
    elif not config.is_enabled():
        missing.append("VERL_OTEL_ENABLED is not set")
    if read_version("verl") is None:
        missing.append("verl is not installed in this environment")
    but = f", but no training of verl would be recorded from here: {'; '.join(missing)}" if missing else ""
    return f"All {len(findings)} checks passed{but}."


def _find_next(findings: Iterable[Finding]) -> str:
    """Return the command to call next, when the advice was followed."""
    if _count_failed(findings) or config.is_disabled():
        return "verl-otel check"
    if read_version("verl") is None:
        return "verl-otel demo"
    return f"{'' if config.is_enabled() else 'VERL_OTEL_ENABLED=1 '}python -m verl.trainer.main_ppo ..."


def _line(finding: Finding) -> str:
    advice = f"\n       -> {show(finding.advice, SENTENCE)}" if finding.advice else ""
    return f"{_MARKS[finding.state]} {show(finding.subject)}: {show(finding.text, SENTENCE)}{advice}"


# -- The checks, in the order in which they are shown --

SUPPORTED_VERL: Final = ((0, 7), (0, 9))
"""First and last supported release."""
SUPPORTED_RAY: Final = ((2, 41), (2, 60))


def run_all(*, cluster: bool = False, stack: bool = False) -> list[Finding]:
    """Run every check."""
    findings = list(check_settings())
    usable = all(finding.state != "fail" for finding in findings)
    findings += check_names()
    if not usable:
        return findings
    settings = config.load_config()
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_switch,
        check_plugin,
        check_verl,
        check_hooks,
        check_ray,
        check_provider,
        lambda: check_guards(settings),
        lambda: check_exporters(settings),
        lambda: check_runs(settings),
    ]
    for check in checks:
        try:
            findings += check()
        except ImportError as error:
            findings.append(Finding("fail", "installation", f"a part cannot be loaded: {error}", REINSTALL))
    if cluster:
        findings += ask_nodes()
    if stack:
        findings += check_stack(settings)
    return [*findings, *list_ignored_values()]


def list_ignored_values() -> Iterator[Finding]:
    """The values of OpenTelemetry's own variables that the checks before have met and not understood."""
    for problem in config.list_ignored():
        advice = "nothing, if it is meant for another SDK; otherwise correct it"
        yield Finding("note", "settings", f"{problem}; its default is used", advice)


def check_settings() -> Iterator[Finding]:
    """Whether every setting can be used."""
    try:
        settings = config.load_config()
    except ConfigError as error:
        name = str(error).partition("=")[0]
        advice = f"correct it, or `unset {name}`, which gives it its default; {DOCUMENTS}docs/reference/settings.md has the table"
        yield Finding("fail", "settings", str(error), advice)
        return
    exporters = ", ".join(settings.exporters) or "none"
    yield Finding("ok", "settings", f"exporters {exporters}; run folder below {settings.run_dir}")
    if settings.token_file is not None and not os.access(settings.token_file, os.R_OK):
        advice = f"write the token into it as the training's user, then `chmod 600 {settings.token_file}`"
        yield Finding("fail", "token file", f"{settings.token_file} cannot be read", advice)
    try:
        profiles.load(settings.health_profile)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        advice = f"set VERL_OTEL_HEALTH_PROFILE={' or '.join(profiles.PROFILES)}, or correct the file; the defaults apply until then"
        yield Finding("fail", "profile", f"{settings.health_profile}: {reason}", advice)


def check_names() -> Iterator[Finding]:
    """Whether a variable that begins as settings do is none: a mistyped one has no effect, and nothing else reports it."""
    links = [
        name for name in sorted(os.environ) if name.startswith("VERL_OTEL_") and is_service_link(name, os.environ[name])
    ]
    if links:
        yield Finding(
            "note",
            "variable",
            f"Kubernetes set {', '.join(links)} for a Service of this namespace; they are no settings and have no effect",
            "set enableServiceLinks: false in the pod, or give the Service a name that does not begin with verl-otel",
        )
    for name, meant in config.find_unknown().items():
        if meant:
            advice = f"rename it: `export {meant}=${name}; unset {name}`"
            yield Finding("fail", "variable", f"{name} is no setting; did you mean {meant}?", advice)
        else:
            yield Finding(
                "note", "variable", f"{name} is no setting and has no effect", "the guide has the table of settings"
            )


def check_switch() -> Iterator[Finding]:
    """Whether the switch is on in this shell."""
    if config.is_disabled():
        yield Finding("note", "switch", "OTEL_SDK_DISABLED=true turns everything off", "unset it to record")
    elif config.is_enabled():
        yield Finding("ok", "switch", "VERL_OTEL_ENABLED is on")
    else:
        yield Finding(
            "note",
            "switch",
            "VERL_OTEL_ENABLED is not set here",
            "put VERL_OTEL_ENABLED=1 in front of the training command",
        )
    if os.environ.get("OTEL_CONFIG_FILE"):
        yield Finding(
            "note",
            "switch",
            "OTEL_CONFIG_FILE is set; verl-otel does not read it, only the providers that your own code makes from it",
            "set the OTEL_EXPORTER_OTLP_* variables for verl-otel",
        )


def check_plugin() -> Iterator[Finding]:
    """Whether verl will find and load the plug-in (verl itself says so at DEBUG only)."""
    plugins = [point for point in entry_points(group="verl.plugins") if point.name == "verl_otel"]
    if not plugins:
        yield Finding(
            "fail",
            "plug-in",
            "no entry point verl_otel in group verl.plugins",
            "run `pip install verl-otel` in the environment that trains",
        )
        return
    yield _load(plugins[0])
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "verl_otel" not in (name.strip() for name in policy.split(",")):
        yield Finding(
            "fail",
            "plug-in policy",
            f"VERL_USE_EXTERNAL_PLUGINS={policy!r} keeps verl from loading it",
            "`unset VERL_USE_EXTERNAL_PLUGINS`, or add verl_otel to the list",
        )


def _load(point: EntryPoint) -> Finding:
    try:
        with _switched_off():
            point.load()
            import_module("verl_otel.integrations.verl")  # what the plug-in imports where the switch is on
    except Exception as error:
        text = f"found, but it cannot be loaded: {type(error).__name__}: {error}"
        return Finding("fail", "plug-in", text, REINSTALL)
    return Finding("ok", "plug-in", "found and loaded")


@contextlib.contextmanager
def _switched_off() -> Iterator[None]:
    """Have the plug-in do nothing while it is imported: a check starts no session and no run."""
    before = os.environ.get("VERL_OTEL_ENABLED")
    os.environ["VERL_OTEL_ENABLED"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["VERL_OTEL_ENABLED"]
        else:
            os.environ["VERL_OTEL_ENABLED"] = before


def check_verl() -> Iterator[Finding]:
    """Whether verl is installed in a supported version."""
    number = read_version("verl")
    if number is None:
        yield Finding(
            "note",
            "verl",
            "not installed in this environment: code of your own is recorded",
            "if the training uses verl, run this check in its environment",
        )
        return
    text = ".".join(map(str, number))
    if not SUPPORTED_VERL[0] <= number[:2] <= SUPPORTED_VERL[1]:
        first, last = (".".join(map(str, release)) for release in SUPPORTED_VERL)
        yield Finding(
            "fail",
            "verl",
            f"{text} is not supported (supported: {first} to {last})",
            f"`pip install 'verl=={last}.*'` installs a supported one; until then the lines below show what is recorded",
        )
    elif number[:2] < (0, 9):
        modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
        if "verl_otel.plugin" in modules:
            yield Finding("ok", "verl", f"{text}, which loads verl-otel by VERL_USE_EXTERNAL_MODULES")
        else:
            advice = "set VERL_USE_EXTERNAL_MODULES=verl_otel.plugin (verl-otel must be installed on every node), or use verl-otel run"
            yield Finding("fail", "verl", f"{text} has no plug-in entry points", advice)
    else:
        yield Finding("ok", "verl", text)


def check_hooks() -> Iterator[Finding]:
    """Whether the installed verl has every patched function. Packages that are not installed are only named: nothing can use them."""
    from verl_otel.integrations import source_inspection, verl

    if source_inspection.find_root("verl") is None:
        return
    found = missing = 0
    absent: set[str] = set()
    for hook in verl.HOOKS:
        package = hook.module.partition(".")[0]
        root = source_inspection.find_root(package)
        if not hook.is_expected():
            continue
        if root is None:
            absent.add(package)
        elif source_inspection.has_symbol(root, hook.module, hook.symbol):
            found += 1
        else:
            missing += 1
            yield Finding(
                "note",
                "hook",
                f"{hook.module} has no {hook.symbol}; without it: {hook.gives}",
                "the rest is recorded; a newer verl-otel may know this version",
            )
    others = f"; not installed: {', '.join(sorted(absent))}" if absent else ""
    yield Finding("note" if missing else "ok", "hooks", f"{found} of {found + missing} found in verl's source{others}")


def check_ray() -> Iterator[Finding]:
    """Whether context is propagated through Ray's calls of actors and tasks, and whether the job has its own setup hook."""
    from verl_otel.integrations import source_inspection
    from verl_otel.integrations.ray import init_hook

    number, root = read_version("ray"), source_inspection.find_root("ray")
    if number is None or root is None:
        yield Finding("note", "Ray", "not installed: processes are traced one by one")
        return
    text = ".".join(map(str, number))
    helper = "ray.util.tracing.tracing_helper"
    if not source_inspection.has_symbol(root, "ray.actor", "ActorMethod._remote") or not source_inspection.has_symbol(
        root, helper, "_is_tracing_enabled"
    ):
        yield Finding("note", "Ray carrier", f"Ray {text} has changed: spans of other processes have no parents")
    elif not source_inspection.has_symbol(root, helper, "_get_opentelemetry"):
        yield Finding(
            "note", "Ray carrier", f"Ray {text}: works if verl is imported before ray.init (verl's own trainers do)"
        )
    else:
        yield Finding("ok", "Ray carrier", f"Ray {text}: context goes with calls of actors and tasks")
    if not SUPPORTED_RAY[0] <= number[:2] <= SUPPORTED_RAY[1]:
        first, last = (".".join(map(str, release)) for release in SUPPORTED_RAY)
        yield Finding("note", "Ray", f"{text} was not tried (tried: {first} to {last})")
    job = init_hook.read_job_runtime_env()
    if init_hook.HOOK in job or init_hook.HOOK_VARIABLE in os.environ:
        yield Finding(
            "note",
            "Ray setup hook",
            "this job was submitted with a worker_process_setup_hook of its own, which stays",
            "workers load verl-otel when they import verl; those that never do are not recorded",
        )
    same = sorted(set(job.get("env_vars") or {}) & set(init_hook.settings_to_forward()))
    if same:
        yield Finding("note", "Ray environment", f"this job sets {', '.join(same)} itself; its values stay")


def check_runs(settings: config.Config) -> Iterator[Finding]:
    """Which run was recorded last, and whether Ray actors were left out of it."""
    try:
        runs = list_runs(settings.run_dir)
    except OSError:
        return  # reported with the exporters
    if not runs:
        yield Finding(
            "note",
            "runs",
            f"none in {settings.run_dir} yet",
            "a program is recorded if VERL_OTEL_ENABLED=1 is set and it trains with verl or calls functions of verl_otel",
        )
        return
    earlier = run_manifest.read(runs[0]).get(EARLIER_ACTORS)
    if isinstance(earlier, list) and earlier:
        yield Finding(
            "note",
            "runs",
            f"in {runs[0].name}, {counted(len(earlier), 'Ray actor')} existed before telemetry was started",
            "call verl_otel.init() before actors are created, or set VERL_OTEL_ENABLED=1; verl-otel report says which recorded nothing",
        )
    else:
        yield Finding("ok", "runs", f"{counted(len(runs), 'run')} in {settings.run_dir}, newest {runs[0].name}")


def check_provider() -> Iterator[Finding]:
    """Whether another library sets OpenTelemetry's global provider."""
    from verl_otel.exporting import own_opentelemetry

    foreign = own_opentelemetry.foreign_provider()
    named = os.environ.get("OTEL_PYTHON_TRACER_PROVIDER", "")
    if foreign or named:
        yield Finding(
            "note",
            "OpenTelemetry provider",
            f"{foreign or named} is set first and stays",
            "its spans go where it sends them and, unless both send by OTLP, to the exporters above; verl-otel's go to these only, "
            "and to it with the exporter sdk",
        )
    else:
        yield Finding(
            "ok",
            "OpenTelemetry provider",
            "none is set here: your own spans and metrics will use verl-otel's exporters",
        )


# -- The destinations of telemetry: a folder, an OTLP endpoint, a port --

MIN_FREE_BYTES: Final = 1 << 30
OTLP_SECONDS: Final = 5.0
_START: Final = "start the Collector (`verl-otel stack`), or set OTEL_EXPORTER_OTLP_ENDPOINT=URL, where one listens"
_CORRECT: Final = "correct path, token (VERL_OTEL_TOKEN_FILE) and protocol: `env | grep OTLP` lists what is set"
_OWN_ADDRESS: Final = "set VERL_OTEL_PROMETHEUS_HOST=ADDRESS, one of this machine (`ip address`)"
_FREE_PORTS: Final = "leave VERL_OTEL_PROMETHEUS_PORT at 0 and let Prometheus read the targets files"
REINSTALL: Final = "reinstall verl-otel and its dependencies: `pip install --force-reinstall verl-otel`"


def check_exporters(settings: Config) -> Iterator[Finding]:
    """Check every configured exporter."""
    checks = {
        "file": ("files", "files", _check_files),
        "otlp": ("OTLP", "otlp", _check_otlp),
        "prometheus": ("Prometheus", "prometheus", _check_port),
        "console": ("console", "console", _check_nothing),
        "tensorboard": ("TensorBoard", "tensorboard", _check_nothing),
        "sdk": ("OpenTelemetry SDK", "sdk", _check_nothing),
    }
    for subject, module, check in (checks[name] for name in settings.exporters):
        try:
            import_module(f"verl_otel.exporting.{module}")
            yield from check(settings)
        except ImportError as error:
            yield Finding("fail", subject, f"cannot be loaded: {error}", REINSTALL)
    if not settings.exporters:
        yield Finding("note", "exporters", "none: nothing is written or sent")


def _check_nothing(_: Config) -> Iterator[Finding]:
    return iter(())


def _check_files(settings: Config) -> Iterator[Finding]:
    folder = settings.run_dir
    problem, free = _examine(folder)
    if problem:
        yield Finding(
            "fail", "files", f"{folder} {problem}", "set VERL_OTEL_RUN_DIR=DIR, a folder of the training's user"
        )
    elif free < MIN_FREE_BYTES:
        yield Finding(
            "fail",
            "files",
            f"{folder}: only {free >> 20} MiB free",
            f"make room (`df -h {folder}`), or set VERL_OTEL_RUN_DIR=DIR on another disk",
        )
    else:
        yield Finding("ok", "files", f"{folder} can be written, {free >> 30} GiB free")


def _examine(folder: Path) -> tuple[str, int]:
    """Return why a folder cannot be created or written (empty: it can), and the free bytes of its disk."""
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
        usage = shutil.disk_usage(existing)
    except OSError:  # a parent folder is not accessible, or the name is too long
        return "cannot be written", 0
    if writable and usage.total:
        return _try_out(existing), usage.free
    if existing == folder or not existing.is_dir():
        return "cannot be written", 0
    # A file system without a size, such as /proc, reports write access to root, and has no files of users.
    return f"does not exist and cannot be created: {existing} cannot be written", 0


def _try_out(folder: Path) -> str:
    """Return what a run needs in a folder that its file system refuses, as mounts of object stores do; empty if nothing. Leaves nothing behind."""
    place = None
    try:
        place = Path(tempfile.mkdtemp(prefix=".verl-otel-check-", dir=folder))
        for what, use in _NEEDS.items():
            try:
                use(place)
            except OSError as error:
                return f"cannot be used: its file system cannot {what}: {error.strerror}"
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
    return ""


def _append_twice(folder: Path) -> None:
    for _ in range(2):
        handle = safe_files.open_private(folder / "appended")
        try:
            os.write(handle, b"line\n")
            os.utime(handle)
        finally:
            os.close(handle)


def _replace_twice(folder: Path) -> None:
    for _ in range(2):
        safe_files.write_atomically(folder / "replaced", "{}")


_NEEDS: Final[dict[str, Callable[[Path], None]]] = {
    "append to a file and set its time": _append_twice,
    "replace a file (rename)": _replace_twice,
}
"""What exporters, manifest and watchdog do in the folder of a run."""


def _check_otlp(settings: Config) -> Iterator[Finding]:
    from verl_otel.exporting.otlp.transport import sent_signals

    sent = sent_signals()
    for signal in SIGNALS:
        if signal not in sent:
            advice = "set OTEL_EXPORTER_OTLP_ENDPOINT to send all signals"
            yield Finding("note", f"OTLP {signal}", "not sent: only other signals have an endpoint", advice)
            continue
        finding = _ask_endpoint(signal, settings)
        if finding.state == "fail" and signal == "logs":  # spans and metrics do not depend on it
            finding = Finding("note", finding.subject, finding.text, "the run log is not sent there; its file holds it")
        yield finding


def _ask_endpoint(signal: str, settings: Config) -> Finding:
    """Send an empty request to the endpoint of a signal, and return what it answers."""
    from verl_otel.exporting.otlp.transport import connect, load_endpoint

    name = f"OTLP {signal}"
    try:
        endpoint = load_endpoint(signal, settings.token_file)
        transport = connect(endpoint)
    except (ConfigError, OSError) as error:
        return Finding("fail", name, str(error), "correct the variable: `env | grep OTEL_EXPORTER_OTLP` lists all")
    try:  # its time-out is that of one read: an endpoint that sends a byte now and then would hold the command
        answer = call_for(2 * OTLP_SECONDS, "verl-otel-check", lambda: transport.send(b"", OTLP_SECONDS))
    except TimeoutError:
        return Finding("fail", name, f"{endpoint.shown} gives no answer in time", _START)
    transport.close()
    if answer.doubt:
        return Finding("note", name, answer.doubt, _CORRECT)
    if answer.ok:
        return Finding("ok", name, f"{endpoint.shown} takes requests")
    if answer.retry:
        return Finding("fail", name, answer.reason, _START)
    return Finding("fail", name, answer.reason, _CORRECT)


def _check_port(settings: Config) -> Iterator[Finding]:
    host, port = strip_brackets(settings.prometheus_host), settings.prometheus_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shown = show_address(host, port)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except UnicodeError as error:  # no name of a host
        text = f"{shown} cannot be bound: {error}"
        yield Finding("fail", "Prometheus", text, _OWN_ADDRESS)
        return
    except OSError as error:
        if port and error.errno == errno.EADDRINUSE:
            text = f"{shown} is in use: all processes of a run take free ports"
            yield Finding("note", "Prometheus", text, _FREE_PORTS)
            return
        text = f"{shown} cannot be bound: {error.strerror}"
        yield Finding("fail", "Prometheus", text, _OWN_ADDRESS)
        return
    if port:
        text = f"{shown} is free: one process of a run takes it, all others take free ports"
        yield Finding("note", "Prometheus", text, _FREE_PORTS)
    else:
        yield Finding(
            "ok", "Prometheus", f"{host}, a free port for each process; targets in {settings.run_dir / 'targets'}"
        )


# -- The guards that are switched on --

STOPPABLE: Final = ((0, 8), (0, 9))
"""First and last release of verl in which a guard has stopped a training."""
_STOP_ON: Final = "stop_on_"


def check_guards(settings: config.Config) -> Iterator[Finding]:
    """Whether the guards that are switched on can do their work. Yields nothing if none is."""
    used = [one.variable for one in SETTINGS if one.field.startswith(_STOP_ON) and getattr(settings, one.field)]
    if used:
        yield Finding(
            "note",
            "guards",
            f"{', '.join(used)}: can stop every trainer of verl 0.9 but the fully asynchronous one, which takes its end from its rollouter",
            "use the alerts there: verl-otel runbook",
        )
        release = read_version("verl")
        if release is not None and not STOPPABLE[0] <= release[:2] <= STOPPABLE[1]:
            text = ".".join(map(str, release))
            yield Finding("note", "guards", f"a stop was not tried with verl {text}", "try it on a short training")
    if settings.best_checkpoint:
        yield _check_best(BestMetric(settings.best_checkpoint))


def _check_best(best: BestMetric) -> Finding:
    """Whether the scalar of the best checkpoint is one that verl is known to log."""
    known = {*BY_NAME, *(key for keys in BY_NAME.values() for key in keys)}
    if best.key in known or best.key.startswith(VALIDATION):
        text = f"{best.name}: of the checkpoints that verl saves, which needs trainer.save_freq above 0"
        return Finding("ok", "best checkpoint", text)
    text = f"{best.key} is no scalar that verl is known to log; {describe_missing(best.key, known)}"
    return Finding("note", "best checkpoint", text, "try it on a recorded run: `verl-otel guards RUN --best KEY`")
