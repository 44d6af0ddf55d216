# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a run on every node of a Ray cluster: one task per node lists them, another one sends them in chunks.

The functions that run on a node are pickled by value, so that they run on a node without verl-otel or with another version. They open
regular files below the folder of the run and follow no links.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from verl_otel.integrations.ray.discovery import ClusterError, read_notes

TIMEOUT: Final = 60.0
"""Timeout in seconds for the start of a task, and for each chunk."""
PIECE_BYTES: Final = 4 << 20
PIECES_AHEAD: Final = 4
"""Maximum number of chunks in the memory of a node, which bounds the memory of a transfer."""


class NodeError(Exception):
    """A node failed; the message is the reason, in one line."""


class Node(NamedTuple):
    """A node of the cluster that is alive."""

    id: str
    name: str
    is_local: bool


class File(NamedTuple):
    """A file of a run on one node."""

    folder: str
    path: str
    """Relative to the folder."""
    size: int
    inode: int
    head: int
    """Checksum of the first bytes: with name and inode it identifies a file that two nodes share."""


@contextlib.contextmanager
def join(cluster: str) -> Iterator[Any]:
    """Join a cluster as a driver; a context manager that returns the module ``ray``.

    Args:
        cluster: Result of `discovery.find_cluster`.

    Raises:
        ClusterError: The cluster cannot be joined from this machine.
    """
    import ray

    try:
        ray.init(address=cluster, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        reason = f"the Ray cluster at {cluster} cannot be joined: {_one_line(error)}"
        raise ClusterError(f"{reason} (start this on one of its nodes)") from None
    try:
        yield ray
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()


def list_nodes(ray: Any) -> list[Node]:
    """Return the nodes that are alive, this one first, with unique names."""
    own_id = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node.get("Alive")]
    names = [str(node.get("NodeManagerHostname") or node["NodeManagerAddress"]) for node in alive]
    nodes = [
        Node(
            node["NodeID"], name if names.count(name) == 1 else f"{name}-{node['NodeID'][:6]}", node["NodeID"] == own_id
        )
        for node, name in zip(alive, names, strict=True)
    ]
    return sorted(nodes, key=lambda node: (not node.is_local, node.name))


def find_folders(cluster: str, run_id: str) -> dict[str, list[str]]:
    """Return the folders of a running run by node, from the notes of its processes; empty for a run that has ended.

    Raises:
        ClusterError: The head does not respond.
    """
    folders: dict[str, list[str]] = {}
    for note in read_notes(cluster):
        if note.run_id == run_id and note.folder not in folders.setdefault(note.node, []):
            folders[note.node].append(note.folder)
    return folders


def list_files(ray: Any, node: Node, folders: Sequence[str]) -> list[File]:
    """Return the files of a run on a node. Folders that it does not have are passed over.

    Raises:
        NodeError: The node did not respond, or a file cannot be read.
    """
    function = _make_lister()
    try:
        if node.is_local:
            rows = function(list(folders))
        else:
            reference = ray.remote(function).options(**_on(ray, node)).remote(list(folders))
            ready, _ = ray.wait([reference], timeout=TIMEOUT)
            if not ready:
                ray.cancel(reference, force=True)
                raise NodeError(f"no answer within {TIMEOUT:g} s")
            rows = ray.get(reference)
    except (OSError, ray.exceptions.RayError) as error:
        raise NodeError(_one_line(error)) from None
    return [File(*row) for row in rows]


def read_files(ray: Any, node: Node, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
    """Yield the files of a node in chunks, each file up to the size that it was listed with.

    A file of size 0 yields one empty chunk; a file that was deleted meanwhile yields nothing.

    Raises:
        NodeError: The node is gone, or a file cannot be read.
    """
    function = _make_sender()
    requested = [(file.folder, file.path, file.size) for file in files]
    try:
        pieces = function(requested, PIECE_BYTES) if node.is_local else _stream(ray, node, function, requested)
        for index, data in pieces:
            yield files[index], data
    except (OSError, ray.exceptions.RayError) as error:
        raise NodeError(_one_line(error)) from None


def _on(ray: Any, node: Node) -> dict[str, Any]:
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
    return {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": strategy}


def _stream(ray: Any, node: Node, function: Callable[..., Any], requested: list[Any]) -> Iterator[tuple[int, bytes]]:
    options = {"num_returns": "streaming", "_generator_backpressure_num_objects": PIECES_AHEAD, **_on(ray, node)}
    pieces = ray.remote(function).options(**options).remote(requested, PIECE_BYTES)
    try:
        while True:
            ready, _ = ray.wait([pieces], timeout=TIMEOUT, fetch_local=False)
            if not ready:
                raise NodeError(f"no data within {TIMEOUT:g} s")
            try:
                reference = next(pieces)
            except StopIteration:
                return
            yield ray.get(reference, timeout=TIMEOUT)
            del reference
    finally:
        with contextlib.suppress(Exception):
            ray.cancel(pieces, force=True)


def _make_lister() -> Callable[[list[str]], list[tuple[str, str, int, int, int]]]:
    def list_run(folders: list[str]) -> list[tuple[str, str, int, int, int]]:
        import errno
        import os
        import stat
        import zlib
        from pathlib import Path

        rows = []
        for folder in folders:
            for root, _, names in os.walk(folder) if not Path(folder).is_symlink() else ():  # follows no links
                for path in (Path(root, name) for name in sorted(names) if not name.endswith((".tmp", ".part"))):
                    try:
                        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                    except OSError as error:
                        if error.errno in (errno.ELOOP, errno.ENOENT, errno.ENXIO):
                            continue  # a link, a deleted file, a socket
                        raise
                    try:
                        status = os.fstat(handle)
                        if stat.S_ISREG(status.st_mode):
                            head = zlib.crc32(os.pread(handle, 512, 0))
                            rows.append((folder, str(path.relative_to(folder)), status.st_size, status.st_ino, head))
                    finally:
                        os.close(handle)
        return rows

    return list_run


def _make_sender() -> Callable[[list[tuple[str, str, int]], int], Iterator[tuple[int, bytes]]]:
    def send_run(requested: list[tuple[str, str, int]], piece: int) -> Iterator[tuple[int, bytes]]:
        import os
        from pathlib import Path

        for index, (folder, relative, size) in enumerate(requested):
            path = Path(folder, relative)
            try:
                if not path.resolve(strict=True).is_relative_to(Path(folder).resolve()):
                    continue
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                continue
            try:
                left = size
                while True:
                    data = os.read(handle, min(piece, left))
                    if data or left == size:
                        yield index, data
                    left -= len(data)
                    if not data or not left:
                        break
            finally:
                os.close(handle)

    return send_run


def _one_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(cause).__name__
