# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""List every process of the active trainings that serves /metrics, and check each.

These are processes with verl-otel and the engines of rollout, reward and teacher replicas. Those of this machine come from the targets files in
the run directory, those of all nodes from the Ray cluster. An engine whose own statistics are off is listed with the setting of verl that
switches them on. With --serve nothing is checked: the list is served to Prometheus as HTTP service discovery, up to date at every request, until
the command is stopped.

Exit code: 0 each process answers, 1 one does not, or there is none.

Examples:
  verl-otel discover
  verl-otel discover --address 10.0.0.1:6379 --run 20261121-093000-a3f2 --json
  verl-otel discover --serve
  verl-otel discover --serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --basic-auth-file users.txt

For prometheus.yml, with --serve:
  scrape_configs:
    - job_name: verl
      http_sd_configs: [{url: "http://127.0.0.1:9465/"}]
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qs

from verl_otel import config
from verl_otel._internal.call_timeout import call_for
from verl_otel._internal.printable import show
from verl_otel.cli import options, run_folders
from verl_otel.cli.documents.base import fill
from verl_otel.cli.documents.tools import Discover
from verl_otel.cli.formatting import SENTENCE, align, print_json
from verl_otel.cli.run_folders import list_runs
from verl_otel.cli.serving import Encryption, HttpAuth, catch_signals, wait_for_end
from verl_otel.errors import VerlOtelError
from verl_otel.exporting import http_server
from verl_otel.exporting.http_server import Reply, Request, make_plain_reply
from verl_otel.session import prometheus_targets
from verl_otel.session.prometheus_targets import TargetEntries, TargetEntry

PORT: Final = 9465
_ANSWERS: Final = ("ok", "statistics off")
"""States of a responding target."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--run", metavar="ID", help="list this run only")
    options.add_address(parser)
    parser.add_argument("--local", action="store_true", help="list this machine only, without Ray")
    options.add_run_dir(parser)
    parser.add_argument(
        "--timeout", type=options.timeout, default=2.0, metavar="SECONDS", help="time-out for each target (2)"
    )
    options.add_json(parser)
    group = parser.add_argument_group("HTTP service discovery")
    group.add_argument("--serve", action="store_true", help="serve the list to Prometheus until stopped")
    group.add_argument("--host", default="127.0.0.1", help="address to bind to (127.0.0.1)")
    group.add_argument("--port", type=options.port, default=PORT, help=f"port; 0 takes a free one ({PORT})")
    options.add_tls(group)
    group.add_argument(
        "--basic-auth-file",
        type=Path,
        metavar="FILE",
        help="allowed users: lines user:password; not readable by others",
    )


def run(arguments: argparse.Namespace) -> int:
    """List and check, or serve. Returns 1 when a target does not answer or there is none."""
    if arguments.local and arguments.address:
        raise VerlOtelError("--local and --address exclude each other")
    folder = config.read("run_dir", arguments.run_dir) / prometheus_targets.TARGETS_FOLDER
    find = functools.partial(find_entries, folder, arguments.address, arguments.run, local=arguments.local)
    if arguments.serve:
        access = HttpAuth(arguments.tls_cert, arguments.tls_key, arguments.basic_auth_file)
        return serve((arguments.host, arguments.port), access, functools.partial(find, linger=True))
    answers = probe_all(find(), arguments.timeout)
    if arguments.json:
        rows = [{**answer.entry, "state": answer.state, "detail": answer.text} for answer in answers]
        print_json(fill(Discover, None, targets=rows, next=[_find_next(answers)]))
    else:
        print("\n".join(_lines(answers)) or _describe_none(folder, arguments.run, local=arguments.local))
    return int(not answers or any(answer.state not in _ANSWERS for answer in answers))


def _find_next(answers: Sequence[Answer]) -> str:
    """Return the command that collects from the targets; the one that checks the set-up where there is none, or none that answers."""
    return "verl-otel stack" if any(answer.state in _ANSWERS for answer in answers) else "verl-otel check"


def _describe_none(folder: Path, run_id: str | None, *, local: bool) -> str:
    """Return the message for no targets: where they were searched for, and what makes them."""
    if run_id is not None and not (folder.parent / run_id).is_dir():
        return show(run_folders.describe_name(run_id, folder.parent, list_runs(folder.parent)), SENTENCE)
    of_run = "" if run_id is None else f" of run {show(run_id)}"
    return (
        f"no targets{of_run} in {show(folder)}{'' if local else ' nor in a Ray cluster'}: running processes are listed "
        "whose VERL_OTEL_EXPORTERS has prometheus"
    )


def find_entries(
    folder: Path, address: str | None, run_id: str | None, *, local: bool = False, linger: bool = False
) -> TargetEntries:
    """Return the targets of this machine and of the Ray cluster without duplicates, ordered by run and instance.

    With ``linger`` trainers of this machine that died stay for a while; see `targets.LINGER`.

    Raises:
        ClusterError: A Ray cluster was given or found, and does not answer.
    """
    entries: dict[tuple[str, str], TargetEntry] = {}
    for entry in [*([] if local else _read_cluster(address)), *prometheus_targets.read_folder(folder, linger=linger)]:
        labels = entry.get("labels", {})
        if entry["targets"] and run_id in (None, labels.get("verl_run_id")):
            entries[str(entry["targets"][0]), str(labels.get("instance", ""))] = entry
    return sorted(entries.values(), key=lambda entry: (_label(entry, "verl_run_id"), _label(entry, "instance")))


def _read_cluster(address: str | None) -> TargetEntries:
    from verl_otel.integrations.ray import discovery

    try:
        cluster = discovery.find_cluster(address)
    except discovery.NoClusterError as error:
        if address:
            raise
        print_once(f"verl-otel: {error}; only the targets of this machine are listed")
        return []
    return [entry for note in discovery.read_notes(cluster) for entry in note.entries]


def _label(entry: TargetEntry, name: str) -> str:
    return str(entry.get("labels", {}).get(name, ""))


def _lines(answers: Sequence[Answer]) -> list[str]:
    rows = [
        tuple(map(show, (answer.state, answer.address, _label(answer.entry, "instance"), answer.text)))
        for answer in answers
    ]
    if not rows:
        return []
    lines = align(rows, right=())
    bad = sum(answer.state not in _ANSWERS for answer in answers)
    off = sum(answer.state == "statistics off" for answer in answers)
    summary = f"{bad} of {len(rows)} targets do not answer" if bad else f"All {len(rows)} targets answer"
    rest = f"; of {off} {'engine' if off == 1 else 'engines'} the statistics are off" if off else ""
    return [*lines, f"\n{summary}{rest}."]


# -- Probes: one request each, several in parallel, of which a number of bytes is read --

AT_ONCE: Final = 16
MAX_BYTES: Final = 1 << 22
"""Maximum number of bytes of a body that are read."""
_SAMPLE: Final = re.compile(rb"^[A-Za-z_:][A-Za-z0-9_:]*(?:\{.*\})? \S+", re.MULTILINE)
_COMMENT: Final = re.compile(rb"^# (?:HELP|TYPE|EOF)\b", re.MULTILINE)
"""Content of the page of an engine that has not generated anything yet."""
_OWN: Final = {
    "vllm": re.compile(rb"^(?:# (?:HELP|TYPE) )?vllm:", re.MULTILINE),
    "sglang": re.compile(rb"^(?:# (?:HELP|TYPE) )?sglang:", re.MULTILINE),
}
"""A series, or the declaration of one, that the page of an engine has if its statistics are enabled."""
_ROLLOUTS: Final = {
    "llm_server": "actor_rollout_ref.rollout",
    "reward": "reward.reward_model.rollout",
    "teacher": "distillation.teacher_models.<name>.inference",
}
"""Prefix of verl's settings for the engines of a role."""
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
State = Literal["ok", "statistics off", "refused", "silent", "no metrics"]


class Answer(NamedTuple):
    """The response of a target."""

    entry: TargetEntry
    state: State
    text: str

    @property
    def address(self) -> str:
        """The target's ``host:port``."""
        return str(self.entry["targets"][0])


def probe_all(entries: Sequence[TargetEntry], timeout: float) -> list[Answer]:
    """Probe all targets; returns the answers in the same order."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verl-otel-probe") as pool:
        return list(pool.map(lambda entry: probe(entry, timeout), entries))


def probe(entry: TargetEntry, timeout: float) -> Answer:
    """Request the metrics of one target. Proxies are not used: targets are inside of the cluster.

    Args:
        entry: The target.
        timeout: Seconds to wait for the whole response.
    """

    def read() -> bytes:
        with _OPENER.open(f"http://{entry['targets'][0]}/metrics", timeout=timeout) as answer:
            return bytes(answer.read(MAX_BYTES))

    try:
        page = call_for(timeout, "verl-otel-probe", read)
    except urllib.error.HTTPError as error:
        advice = f"; {_advise(entry)}" if _label(entry, "verl_engine") == "sglang" else ""
        return Answer(entry, "no metrics", f"/metrics answers {error.code} {error.reason}{advice}")
    except (OSError, ValueError, HTTPException) as error:
        return Answer(entry, *_explain(error, timeout))
    samples = len(_SAMPLE.findall(page))
    if not samples and not _COMMENT.search(page):
        return Answer(entry, "no metrics", "what /metrics answers is not in Prometheus's format, or empty")
    own = _OWN.get(_label(entry, "verl_engine"))
    if own is not None and not own.search(page) and len(page) < MAX_BYTES:
        return Answer(entry, "statistics off", f"{samples} samples, none of the engine: {_advise(entry)}")
    return Answer(entry, "ok", f"{samples} samples")


def _advise(entry: TargetEntry) -> str:
    """Return the settings of verl that enable the statistics of an engine. SGLang needs both: verl checks that."""
    rollout = _ROLLOUTS.get(_label(entry, "verl_role"), _ROLLOUTS["llm_server"])
    settings = [f"{rollout}.disable_log_stats=False"]
    if _label(entry, "verl_engine") == "sglang":
        settings.append(f"{rollout}.prometheus.enable=True")
    return f"set {' and '.join(settings)}"


def _explain(error: Exception, timeout: float) -> tuple[State, str]:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "silent", f"no complete answer within {timeout:g} s: gone, busy, or behind a firewall"
    if isinstance(reason, ConnectionRefusedError):
        return "refused", "nothing listens there, or only on another address of that machine"
    return "silent", str(reason) or type(error).__name__


# -- A server for Prometheus's HTTP service discovery: answers every GET with the current targets. While they cannot be read the answer is 503, on which Prometheus keeps its current ones --

FRESH_SECONDS: Final = 3.0
"""Seconds for which a list, or an error, is cached."""
MAX_PRINTED: Final = 100
_LOOPBACK: Final = ("127.", "::1", "localhost")
_printed: set[str] = set()


class TargetList:
    """The targets, read again on request when the cached list or error has expired."""

    def __init__(self, find: Callable[[], TargetEntries]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._entries: TargetEntries = []
        self._error: VerlOtelError | None = None
        self._read_at = float("-inf")

    def read(self) -> TargetEntries:
        """Return the targets. Raises `VerlOtelError` when they cannot be read."""
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                try:
                    self._entries, self._error = self._find(), None
                except VerlOtelError as error:  # asking an unreachable cluster takes seconds
                    self._error = error
                self._read_at = time.monotonic()
            if self._error is not None:
                raise self._error.with_traceback(None)
            return self._entries


class Server(http_server.Server):
    """Serves the targets to authorized clients. Raises `OSError` when the address cannot be bound."""

    def __init__(self, address: tuple[str, int], access: HttpAuth, targets: TargetList) -> None:
        self._access, self._targets = access, targets
        self._encryption = Encryption(access)
        access.read_users()
        super().__init__(address, self._find_answer, self._encryption.wrap)

    @property
    def url(self) -> str:
        """URL of the targets."""
        return f"{self._encryption.scheme}://{http_server.show_address(self.host, self.port)}/"

    def _find_answer(self, request: Request) -> Reply:
        try:
            if request.path == "/-/healthy":
                return make_plain_reply(200, "ok")
            if not self._access.allows(request.headers.get("authorization", "")):
                return make_plain_reply(401, "401 Unauthorized", ("WWW-Authenticate", 'Basic realm="verl-otel"'))
            if request.path not in ("/", "/targets"):
                return make_plain_reply(404, "the targets are at /")
            wanted = parse_qs(request.query).get("run", [])
            entries = [entry for entry in self._targets.read() if not wanted or _label(entry, "verl_run_id") in wanted]
            return Reply(200, (("Content-Type", "application/json"),), json.dumps(entries).encode())
        except VerlOtelError as error:
            print_once(f"verl-otel: {error}")
            return make_plain_reply(503, str(error))


def serve(address: tuple[str, int], access: HttpAuth, find: Callable[[], TargetEntries]) -> int:
    """Serve until a signal comes. Returns 0.

    Raises:
        VerlOtelError: The port is taken, or a file of ``access`` cannot be used.
    """
    try:
        server = Server(address, access, TargetList(find))
    except (OSError, UnicodeError) as error:  # the latter: no name of a host
        reason = getattr(error, "strerror", None) or error
        raise VerlOtelError(f"{address[0]}:{address[1]} cannot be bound: {reason}") from None
    with catch_signals() as ended:
        server.start()
        try:
            print(f"serving the targets at {server.url} (SIGTERM or Ctrl-C ends)", flush=True)
            if not address[0].startswith(_LOOPBACK):
                _warn(access)
            wait_for_end(ended)
        finally:
            server.close()
    return 0


def _warn(access: HttpAuth) -> None:
    if access.users is None:
        print_once(
            "verl-otel: anyone who reaches this port can list the targets; --basic-auth-file asks for a password"
        )
    elif access.certificate is None:
        print_once("verl-otel: passwords are sent unencrypted; --tls-cert and --tls-key change that")


def print_once(text: str) -> None:
    """Print a line to standard error, repeated ones only once."""
    text = show(text, 2000)
    if text not in _printed:
        if len(_printed) >= MAX_PRINTED:
            _printed.clear()
        _printed.add(text)
        print(text, file=sys.stderr, flush=True)
