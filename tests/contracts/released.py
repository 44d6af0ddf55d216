# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of the hosts as they were released: taken out of their wheels, into ``.cache/wheels``, and never imported.

A wheel is fetched by pip. vLLM's has hundreds of megabytes, so single files are read out of it where it lies.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[2]
CACHE = TOP / ".cache" / "wheels"
_TARGET = ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=none"]
_TARGET += [f"--platform=manylinux_2_{minor}_x86_64" for minor in (34, 28, 17)] + ["--platform=any"]
_AHEAD = 1 << 18
"""Bytes that are read at once out of a wheel that lies elsewhere."""


class Release(NamedTuple):
    """One release of a host, and which of its files are looked at."""

    distribution: str
    version: str
    parts: tuple[str, ...]
    large: bool = False

    @property
    def package(self):
        """The name that is imported."""
        return self.parts[0].partition("/")[0]

    def __str__(self):
        return f"{self.distribution} {self.version}"


RELEASES = (
    *(Release("verl", version, ("verl/",)) for version in ("0.7.1", "0.8.0", "0.9.1")),
    *(Release("vllm", version, ("vllm/v1/engine/", "vllm/tracing/"), large=True) for version in ("0.24.0", "0.33.0")),
    *(Release("sglang", version, ("sglang/srt/managers/", "sglang/srt/utils/")) for version in ("0.5.12", "0.5.23")),
    Release("TransferQueue", "0.1.11", ("transfer_queue/",)),
)


class UnreachableError(Exception):
    """Neither the cache nor the package registry has it."""


def find_sources(release):
    """Return the folder that holds a release's sources, fetching them if they are not there yet.

    Raises:
        UnreachableError: They are not, and cannot be had.
    """
    folder = CACHE / f"{release.distribution}-{release.version}"
    mark = folder / "complete.json"
    with contextlib.suppress(OSError, ValueError):
        if json.loads(mark.read_text()) == list(release.parts):
            return folder
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            _unpack(release, Path(made))
            (Path(made) / mark.name).write_text(json.dumps(list(release.parts)))
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(made, folder)
    except (OSError, subprocess.SubprocessError, zipfile.BadZipFile, LookupError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise UnreachableError(f"{release}: not in the cache, and not fetched: {said.strip()[-300:]}") from error
    return folder


def _unpack(release, folder):
    with contextlib.ExitStack() as stack:
        if release.large:
            file = stack.enter_context(io.BufferedReader(RemoteFile(_find_url(release)), _AHEAD))
        else:
            file = _download(release, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        wheel = stack.enter_context(zipfile.ZipFile(file))
        names = [name for name in wheel.namelist() if name.startswith(release.parts) and name.endswith(".py")]
        if not names:
            raise LookupError("its wheel has none of the files that are looked for")
        wheel.extractall(folder, names)


def _download(release, folder):
    """Fetch a wheel from whatever index pip is configured with."""
    command = [*_find_pip(), "download", "--quiet", "--no-deps", *_TARGET, "--dest", folder]
    _run([*command, f"{release.distribution}=={release.version}"])
    return next(folder.glob("*.whl"))


def _find_pip():
    for python in (sys.executable, TOP / ".cache" / "uv" / "bin" / "python", shutil.which("python3")):
        if (
            python
            and not subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode
        ):
            return [python, "-m", "pip"]
    raise LookupError("there is no pip")


def _find_url(release):
    """Return where a wheel lies, without fetching it: pip has no way to say so, uv writes it into its lock."""
    uv = TOP / ".cache" / "uv" / "bin" / "uv"
    command = [uv if uv.exists() else "uv", "pip", "compile", "--quiet", "--no-deps", "--no-python-downloads"]
    if "PIP_INDEX_URL" in os.environ and "UV_INDEX_URL" not in os.environ:
        command += ["--index-url", os.environ["PIP_INDEX_URL"]]
    command += ["--format=pylock.toml", "--python-platform=x86_64-manylinux_2_31", "-"]
    lock = _run(command, input=f"{release.distribution}=={release.version}\n").stdout
    return next(url for url in re.findall(r'url = "([^"]+\.whl)"', lock) if "x86_64" in url or "-any" in url)


def _run(command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, **more)


class RemoteFile(io.RawIOBase):
    """A file on a web server, read in pieces."""

    def __init__(self, url):
        self._url = url
        self._at = 0
        with self._open("bytes=0-0") as response:
            self._size = int(response.headers["Content-Range"].rpartition("/")[2])

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._at

    def seek(self, offset, whence=io.SEEK_SET):
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer):
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        with self._open(f"bytes={self._at}-{self._at + length - 1}") as response:
            found = response.read(length)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _open(self, part):
        response = urllib.request.urlopen(urllib.request.Request(self._url, headers={"Range": part}), timeout=60)
        if response.status != 206:
            response.close()
            raise OSError("the server gives no parts of files")
        return response
