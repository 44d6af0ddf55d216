# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""The files that come with the wheel and are no code: the Collector's configurations, boards, rules.

In a wheel they are in ``verl_otel/_data``, in a checkout where they are edited: beside the package.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from verl_otel.errors import VerlOtelError

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_PLACES: Final = (_PACKAGE / "_data", _PACKAGE.parent)


def find_folder(name: str) -> Path:
    """Return where the files of one kind are.

    Args:
        name: ``collector`` or ``dashboards``.

    Raises:
        VerlOtelError: This installation lacks them.
    """
    for place in _PLACES:
        if (place / name).is_dir():
            return place / name
    raise VerlOtelError(f"this installation of verl-otel lacks the folder {name}: install the wheel anew")


def list_files(folder: Path) -> list[Path]:
    """Return every file below a folder, as paths relative to it, in order; no caches and no hidden files."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith((".", "__pycache__")) for part in path.parts))


def add_export(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a command that writes such files into a folder."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    action = actions.add_parser("export", help="copy the files into a folder")
    action.add_argument("folder", type=Path, metavar="DIR", help="folder to write to; it is made")
    action.add_argument("--force", action="store_true", help="replace files that are there and differ")


def run_export(arguments: argparse.Namespace, source: Path, names: Sequence[Path]) -> str:
    """Copy files as the arguments say. Returns how many were written, in words."""
    written = export(source, names, arguments.folder, force=arguments.force)
    same = len(names) - len(written)
    return f"{len(written)} files written{f', {same} were there' if same else ''}"


def export(source: Path, names: Sequence[Path], target: Path, *, force: bool = False) -> list[Path]:
    """Copy files into a folder, all or none.

    Args:
        source: The folder that has them.
        names: Which, relative to it.
        target: The folder to write to; it is made.
        force: Whether files that are there already, and are different, are replaced.

    Returns:
        The files that were written; those that were there and equal are not among them.

    Raises:
        VerlOtelError: A file is there already and is different, or the folder cannot be written.

    Example:
        export(find_folder("collector"), [Path("local.yaml")], Path("otel"))
    """
    changed = [name for name in names if not _is_same(source / name, target / name)]
    folders = [name for name in changed if (target / name).is_dir()]
    if folders:
        raise VerlOtelError(f"{target / folders[0]} cannot be written: a folder is in its place")
    taken = [name for name in changed if (target / name).exists()]
    if taken and not force:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise VerlOtelError(f"{target / taken[0]}{more} would be replaced, and differs: --force does it")
    try:
        _write({target / name: source / name for name in changed})
    except OSError as error:
        raise VerlOtelError(f"{error.filename or target} cannot be written: {error.strerror}") from None
    return changed


def _write(sources: Mapping[Path, Path]) -> None:
    """Copy every file beside its place, then move all to their places: what fails (no room, no right) fails before the first is moved."""
    written: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for name, source in sources.items():
            made += _make_folders(name.parent)
            place = name.resolve()  # a link stays one
            beside = place.with_name(f".{place.name}.{os.getpid()}")
            written[beside] = place
            shutil.copyfile(source, beside)
            if place.exists():
                shutil.copymode(place, beside)
        for beside, place in written.items():
            beside.replace(place)
    except OSError:
        for beside in written:
            beside.unlink(missing_ok=True)
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return the new ones, from above to below."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False
