# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Copy the files of a run from all nodes of its Ray cluster into one folder.

RUN is the id of a run, which is searched for in the run directory of this shell (VERL_OTEL_RUN_DIR, --run-dir) and, while the run is active, where its
processes write; or the path of its folder, if it is the same on every node. Files on a shared disk are copied once. An active run can be copied, too.

Exit code: 0 every node answered, 1 one did not, or no node has files of this run; the files of the others were copied.

Examples:
  verl-otel collect 20261121-093000-a3f2
  verl-otel collect 20261121-093000-a3f2 --output /data/runs/a3f2 && verl-otel report /data/runs/a3f2
  verl-otel collect /scratch/runs/20261121-093000-a3f2 --address 10.0.0.1:6379
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any, Final

from verl_otel import config
from verl_otel._internal import safe_files
from verl_otel._internal.printable import show
from verl_otel.analysis.io.run_files import merge_status
from verl_otel.cli.formatting import show_bytes
from verl_otel.config import parse_name
from verl_otel.errors import VerlOtelError
from verl_otel.integrations.ray import discovery, run_files
from verl_otel.integrations.ray.run_files import File, Node, NodeError
from verl_otel.session import run_manifest

_SHOW_EVERY: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_name", metavar="RUN", help="id of the run, or the path of its folder")
    parser.add_argument("--address", metavar="HOST:PORT", help="Ray cluster (default: RAY_ADDRESS, or the one here)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder to write to (./collected-RUN)")
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder that holds one folder per run, on every node"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetch the files of every node. Returns 1 when a node failed or none has files."""
    default = _find_default(arguments.run_name, arguments.run_dir)
    safe_files.use_group(config.read("files_group"))
    out = (arguments.output or Path(f"collected-{default.name}")).absolute()
    failed = 0
    cluster = discovery.find_cluster(arguments.address)
    folders_by_node = run_files.find_folders(cluster, default.name)
    with run_files.join(cluster) as ray:
        nodes = run_files.list_nodes(ray)
        gathering = Gathering(out, default.name)
        for node in nodes:
            folders = list(dict.fromkeys([*folders_by_node.get(node.id, []), str(default)]))
            if node.is_local and out.resolve() in [Path(folder).resolve() for folder in folders]:
                raise VerlOtelError(f"{out} is the run's own folder: give another one with --output")
            try:
                gathering.fetch(ray, node, folders)
            except NodeError as error:
                failed += 1
                print(f"{show(node.name)}: FAILED: {show(error)}")
    gathering.finish()
    if not gathering.files:
        print(f"no node has files of {default.name} (looked in {show(default)}; --run-dir says where else)")
        return 1
    lacking = f", without {failed} of {len(nodes)} nodes" if failed else ""
    following = show(shlex.join(["verl-otel", "report", str(out)]), 1000)
    print(f"{gathering.files} files, {show_bytes(gathering.bytes)} in {show(out)}{lacking}: {following}")
    return int(failed > 0)


def _find_default(run_name: str, run_dir: Path | None) -> Path:
    """Return the default folder of the run, for nodes that reported no other."""
    if "/" in run_name:
        return Path(run_name).absolute()
    try:
        return Path(config.read("run_dir", run_dir), parse_name(run_name))
    except ValueError as error:
        raise VerlOtelError(f"{run_name!r}: no id of a run: {error}") from None


class Gathering:
    """The folder that files of all nodes are written to.

    Args:
        out: The folder; created with the first file.
        run_id: Id for the run's manifest if no node has one.
    """

    def __init__(self, out: Path, run_id: str) -> None:
        self.files = 0
        self.bytes = 0
        self._out = out
        self._run_id = run_id
        self._seen: set[tuple[str, int, int]] = set()
        self._taken: set[str] = set()
        self._records: list[dict[str, Any]] = []
        self._shown_at = float("-inf")

    def fetch(self, ray: Any, node: Node, folders: list[str]) -> None:
        """Fetch from one node the files that are not here yet, and print a summary line.

        Raises:
            NodeError: The node, or the disk here, failed; files that were complete stay.
        """
        begin, bytes_before, files_before = time.monotonic(), self.bytes, self.files
        listed = run_files.list_files(ray, node, folders)
        wanted = [file for folder in folders for file in self._choose(folder, listed)]
        total = sum(file.size for file in wanted)
        try:
            self._receive(ray, node, wanted, total)
        finally:
            self._clear_line()
        shared = len(listed) - len(wanted)
        parts = [f"{self.files - files_before} files", show_bytes(self.bytes - bytes_before)] if wanted else []
        parts += [f"{shared} files{' more' if wanted else ''} are on a disk that was read before"] if shared else []
        print(f"{show(node.name)}: {', '.join(parts) or 'no files'}, {time.monotonic() - begin:.1f} s")

    def _choose(self, folder: str, listed: list[File]) -> list[File]:
        """Return the files of a folder that are not here yet: on a shared disk those that no other node has listed."""
        files = [file for file in listed if file.folder == folder]
        marks = {(file.path, file.inode, file.head) for file in files}
        if marks & self._seen:
            shown = {path for path, _, _ in self._seen}
            files = [file for file in files if file.path not in shown]
        self._seen |= marks
        return files

    def _receive(self, ray: Any, node: Node, wanted: list[File], total: int) -> None:
        current: File | None = None
        part: Path | None = None
        done = 0
        try:
            for file, data in run_files.read_files(ray, node, wanted):
                if file is not current:
                    self._complete(current, part, node)
                    current, part = file, None  # complete: it stays if the next one fails
                    part = self._begin(file)
                with os.fdopen(safe_files.open_private(part), "ab") as handle:  # type: ignore[arg-type]  # made right above
                    handle.write(data)
                self.bytes += len(data)
                done += len(data)
                self._show(node, done, total)
            self._complete(current, part, node)
        except OSError as error:
            raise NodeError(f"cannot write {self._out}: {error.strerror}") from None
        except BaseException:
            if part is not None:
                part.unlink(missing_ok=True)
            raise

    def _begin(self, file: File) -> Path:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise NodeError(f"it sent a path outside of the run: {file.path!r}")
        part = self._out / f"{path}.part"
        safe_files.make_folder(part.parent)
        part.unlink(missing_ok=True)
        return part

    def _complete(self, file: File | None, part: Path | None, node: Node) -> None:
        if file is None or part is None:
            return
        self.files += 1
        if file.path == run_manifest.NAME:
            self._records.append(_read_record(part))
            part.unlink()
            return
        path = PurePosixPath(file.path)
        names = [
            file.path,
            *(str(path.with_name(f"{path.stem}@{node.name}{mark}{path.suffix}")) for mark in ("", "-2")),
        ]
        # Another name than that of a process with the same name on another node.
        name = next((candidate for candidate in names if candidate not in self._taken), names[-1])
        self._taken.add(name)
        part.replace(self._out / name)

    def finish(self) -> None:
        """Write the run's manifest, merged from those of all nodes."""
        if not self._records:
            return
        merged: dict[str, Any] = {}
        for record in reversed(self._records):  # this node's values take precedence
            merged |= record
        attempts = [listed for record in self._records if isinstance(listed := record.get("attempts"), list)]
        merged |= {"run_id": self._run_id, "attempts": max(attempts, key=len, default=[])}
        merged |= merge_status(self._records)
        safe_files.write_atomically(self._out / run_manifest.NAME, json.dumps(merged, indent=1) + "\n")

    def _show(self, node: Node, done: int, total: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._shown_at >= _SHOW_EVERY:
            self._shown_at = time.monotonic()
            text = f"{show(node.name)}: {show_bytes(done)} of {show_bytes(total)}"
            print(f"\r{text[: os.get_terminal_size(2).columns - 1]}\033[K", end="", file=sys.stderr, flush=True)

    def _clear_line(self) -> None:
        if self._shown_at > float("-inf"):
            self._shown_at = float("-inf")
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = safe_files.read_json(path)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
