# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The checks behind ``verl-otel check``: small functions that return findings, in the order in which they are shown."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from verl_otel import config
from verl_otel._internal.error_boundary import RAISE_INTERNAL_ERRORS
from verl_otel._internal.printable import counted
from verl_otel.cli.check import cluster as cluster_checks
from verl_otel.cli.check.cluster import Finding
from verl_otel.cli.check.exporter_checks import REINSTALL, check_exporters
from verl_otel.cli.check.guard_checks import check_guards
from verl_otel.cli.check.stack_checks import check_stack
from verl_otel.cli.run_folders import list_runs
from verl_otel.config import SETTINGS, is_service_link
from verl_otel.errors import ConfigError
from verl_otel.health import profiles
from verl_otel.integrations.source_inspection import read_version
from verl_otel.semconv.attributes import EARLIER_ACTORS
from verl_otel.session import run_manifest

SUPPORTED_VERL: Final = ((0, 7), (0, 9))
"""First and last supported release."""
SUPPORTED_RAY: Final = ((2, 41), (2, 60))
_PREFIX: Final = "VERL_OTEL_"
_OTHER_VARIABLES: Final = ("VERL_OTEL_BOARDS", RAISE_INTERNAL_ERRORS)
"""Variables that are no settings: Grafana's path of the boards, and that of verl-otel's own tests."""


def run_all(*, cluster: bool = False, stack: bool = False) -> list[Finding]:
    """Run every check."""
    findings = list(check_settings())
    usable = all(finding.state != "fail" for finding in findings)
    findings += check_names()
    if not usable:
        return findings
    settings = config.load()
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
        findings += cluster_checks.ask_nodes()
    if stack:
        findings += check_stack(settings)
    return findings


def check_settings() -> Iterator[Finding]:
    """Whether every setting can be used."""
    try:
        settings = config.load()
    except ConfigError as error:
        yield Finding("fail", "settings", str(error), "correct the variable; the guide has the table of settings")
        return
    exporters = ", ".join(settings.exporters) or "none"
    yield Finding("ok", "settings", f"exporters {exporters}; run folder below {settings.run_dir}")
    if settings.token_file is not None and not os.access(settings.token_file, os.R_OK):
        yield Finding(
            "fail", "token file", f"{settings.token_file} cannot be read", "create it, readable for the training's user"
        )
    try:
        profiles.load(settings.health_profile)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield Finding(
            "fail", "profile", f"{settings.health_profile}: {reason}", "correct it; the defaults apply until then"
        )


def check_names() -> Iterator[Finding]:
    """Whether a variable that begins as settings do is none: a mistyped one has no effect, and nothing else reports it."""
    settings = [setting.variable for setting in SETTINGS]
    ours = [name for name in sorted(os.environ) if name.startswith(_PREFIX)]
    links = [name for name in ours if is_service_link(name, os.environ[name])]
    if links:
        yield Finding(
            "note",
            "variable",
            f"Kubernetes set {', '.join(links)} for a Service of this namespace; they are no settings and have no effect",
            "set enableServiceLinks: false in the pod, or give the Service a name that does not begin with verl-otel",
        )
    for name in ours:
        if name in links or name in settings or name in _OTHER_VARIABLES:
            continue
        meant = _find_similar(name, settings)
        if meant and not os.environ.get(meant):
            yield Finding("fail", "variable", f"{name} is no setting; did you mean {meant}?", "correct the name")
        else:
            yield Finding(
                "note", "variable", f"{name} is no setting and has no effect", "the guide has the table of settings"
            )


def _find_similar(name: str, settings: list[str]) -> str:
    """Return the setting whose name without its prefix is the most similar; empty if none is."""
    suffixes = {setting.partition("OTEL_")[2]: setting for setting in settings}
    similar = difflib.get_close_matches(name.removeprefix(_PREFIX), suffixes, n=1)
    return suffixes[similar[0]] if similar else ""


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
            "pip install verl-otel into the environment that trains",
        )
        return
    yield _load(plugins[0])
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "verl_otel" not in (name.strip() for name in policy.split(",")):
        yield Finding(
            "fail",
            "plug-in policy",
            f"VERL_USE_EXTERNAL_PLUGINS={policy!r} keeps verl from loading it",
            "unset it, or add verl_otel to the list",
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
            "what its hooks still find is below; training is never harmed",
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
    """Whether context is propagated through Ray's actor calls, and whether the job has its own setup hook."""
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
        yield Finding(
            "ok",
            "Ray carrier",
            f"Ray {text}: context goes with actor calls; streaming generators and remote functions are left alone",
        )
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
            "its spans go where it sends them and, unless both send by OTLP, to the exporters above; verl-otel's go to these only",
        )
    else:
        yield Finding(
            "ok",
            "OpenTelemetry provider",
            "none is set here: your own spans and metrics will use verl-otel's exporters",
        )
