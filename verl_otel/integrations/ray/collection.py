# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Read the files of a run on every node of a Ray cluster: one task per node lists them, one sends them in pieces.

The functions that run on a node are pickled by value: a node without verl-otel, or with another version, runs them too. They open
regular files below the run's folder and follow no link.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from verl_otel.integrations.ray.discovery import ClusterError, read_notes

TIMEOUT: Final = 60.0
"""Seconds in which a node must begin, and then send the next piece."""
PIECE_BYTES: Final = 4 << 20
PIECES_AHEAD: Final = 4
"""Pieces that may wait in the memory of a node, and so all that a transfer takes there."""


class NodeError(Exception):
    """A node did not do its part; the text says why, in one line."""


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
    """Checksum of the first bytes: with name and inode it tells whether two nodes show the same file of a shared disk."""


@contextlib.contextmanager
def join(cluster: str) -> Iterator[Any]:
    """Be a driver of a cluster for a while; gives the module ``ray``.

    Args:
        cluster: What `discovery.find_cluster` has returned.

    Raises:
        ClusterError: It cannot be joined from here.
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
    """Return the nodes that live, this one first, each with a name of its own."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node.get("Alive")]
    names = [str(node.get("NodeManagerHostname") or node["NodeManagerAddress"]) for node in alive]
    found = [
        Node(node["NodeID"], name if names.count(name) == 1 else f"{name}-{node['NodeID'][:6]}", node["NodeID"] == here)
        for node, name in zip(alive, names, strict=True)
    ]
    return sorted(found, key=lambda node: (not node.is_local, node.name))


def find_folders(cluster: str, run_id: str) -> dict[str, list[str]]:
    """Return, by node, the folders that processes of a running run have told; none of a run that has ended.

    Raises:
        ClusterError: The head does not answer.
    """
    found: dict[str, list[str]] = {}
    for note in read_notes(cluster):
        if note.run_id == run_id and note.folder not in found.setdefault(note.node, []):
            found[note.node].append(note.folder)
    return found


def list_files(ray: Any, node: Node, folders: Sequence[str]) -> list[File]:
    """Return the files of a run on a node. Folders that it does not have are passed over.

    Raises:
        NodeError: The node did not answer, or a file there cannot be read.
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
    """Yield the files of a node in pieces, each file from its beginning to the length that it was listed with.

    A file of length 0 yields one empty piece, and one that has gone meanwhile yields nothing.

    Raises:
        NodeError: The node went away, or a file there cannot be read.
    """
    function = _make_sender()
    wanted = [(each.folder, each.path, each.size) for each in files]
    try:
        pieces = function(wanted, PIECE_BYTES) if node.is_local else _stream(ray, node, function, wanted)
        for index, data in pieces:
            yield files[index], data
    except (OSError, ray.exceptions.RayError) as error:
        raise NodeError(_one_line(error)) from None


def _on(ray: Any, node: Node) -> dict[str, Any]:
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
    return {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": strategy}


def _stream(ray: Any, node: Node, function: Callable[..., Any], wanted: list[Any]) -> Iterator[tuple[int, bytes]]:
    options = {"num_returns": "streaming", "_generator_backpressure_num_objects": PIECES_AHEAD, **_on(ray, node)}
    pieces = ray.remote(function).options(**options).remote(wanted, PIECE_BYTES)
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
                            continue  # a link, a file that has just gone, a socket
                        raise
                    try:
                        found = os.fstat(handle)
                        if stat.S_ISREG(found.st_mode):
                            head = zlib.crc32(os.pread(handle, 512, 0))
                            rows.append((folder, str(path.relative_to(folder)), found.st_size, found.st_ino, head))
                    finally:
                        os.close(handle)
        return rows

    return list_run


def _make_sender() -> Callable[[list[tuple[str, str, int]], int], Iterator[tuple[int, bytes]]]:
    def send_run(wanted: list[tuple[str, str, int]], piece: int) -> Iterator[tuple[int, bytes]]:
        import os
        from pathlib import Path

        for index, (folder, relative, size) in enumerate(wanted):
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
