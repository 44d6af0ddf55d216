# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Locates and exports the data files of the wheel: the Collector's configurations, boards, rules.

In a wheel they are in ``verl_otel/_data``, in a checkout in the folders next to the package.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from verl_otel.errors import VerlOtelError

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_PLACES: Final = (_PACKAGE / "_data", _PACKAGE.parent)


def find_folder(name: str) -> Path:
    """Return the folder of the files of one kind.

    Args:
        name: ``collector`` or ``dashboards``.

    Raises:
        VerlOtelError: They are missing in this installation.
    """
    for place in _PLACES:
        if (place / name).is_dir():
            return place / name
    raise VerlOtelError(f"this installation of verl-otel lacks the folder {name}: reinstall the wheel")


def list_files(folder: Path) -> list[Path]:
    """Return all files below a folder as sorted relative paths, without caches and hidden files."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if not any(part.startswith((".", "__pycache__")) for part in path.parts))


def add_export(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Declare the arguments of a command that exports data files; return the parser of its action."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    action = actions.add_parser("export", help="copy the files into a folder")
    action.add_argument("folder", type=Path, metavar="DIR", help="folder to write to; created if missing")
    action.add_argument("--force", action="store_true", help="replace existing files that differ")
    return action


def run_export(
    arguments: argparse.Namespace,
    source: Path,
    names: Sequence[Path],
    replaced: Mapping[Path, Path] = MappingProxyType({}),
) -> str:
    """Copy files as requested by the arguments. Returns a message with the number of files written.

    Args:
        arguments: Those of `add_export`.
        source: The folder of the files.
        names: Paths of the files, relative to ``source``.
        replaced: By path: another file, which is copied instead.
    """
    written = export(source, names, arguments.folder, replaced, force=arguments.force)
    same = len(names) - len(written)
    return f"{len(written)} files written{f', {same} were there' if same else ''}"


def export(
    source: Path,
    names: Sequence[Path],
    target: Path,
    replaced: Mapping[Path, Path] = MappingProxyType({}),
    *,
    force: bool = False,
) -> list[Path]:
    """Copy files into a folder; none if one of them would be replaced.

    Args:
        source: The folder of the files.
        names: Paths of the files, relative to ``source``.
        target: The folder to write to; created if missing.
        replaced: By path: another file, which is copied instead.
        force: Replace existing files that differ.

    Returns:
        The files that were written, without existing equal ones.

    Raises:
        VerlOtelError: A file is there already and is different, or the folder cannot be written.

    Example:
        export(find_folder("collector"), [Path("local.yaml")], Path("otel"))
    """
    sources = {name: replaced.get(name, source / name) for name in names}
    changed = [name for name in names if not _is_same(sources[name], target / name)]
    folders = [name for name in changed if (target / name).is_dir()]
    if folders:
        raise VerlOtelError(f"{target / folders[0]} cannot be written: a folder is in its place")
    taken = [name for name in changed if (target / name).exists()]
    if taken and not force:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise VerlOtelError(f"{target / taken[0]}{more} would be replaced, and differs: --force does it")
    try:
        for name in changed:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sources[name], target / name)
    except OSError as error:
        raise VerlOtelError(f"{error.filename or target} cannot be written: {error.strerror}") from None
    return changed


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.read_bytes() == other.read_bytes()
    except OSError:
        return False
