# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Show runs in a browser while they train: all runs of a folder, and one run with everything that is known of it.

RUN is the folder of a run, or its id or the beginning of it; FOLDER holds one folder per run. Without both, all runs of
VERL_OTEL_RUN_DIR are shown. Folders of the same name are nodes of one run. The page reads files and changes nothing.
The printed address has a token: other users of the machine reach the port, but read nothing without it.

Examples:
  verl-otel view
  verl-otel view 20261121-093000
  verl-otel view node-1/RUN node-2/RUN
  verl-otel view /data/runs --port 0

Exit code: 0 stopped by Ctrl-C, 2 wrong usage, or the port is taken.
"""

from __future__ import annotations

import argparse
import os
import secrets
import threading
from pathlib import Path
from typing import Final

from verl_otel import config
from verl_otel._internal.printable import show
from verl_otel.cli import options, run_selection
from verl_otel.cli.serving import Encryption, HttpAuth, catch_signals, wait_for_end
from verl_otel.cli.view.access import Access, is_loopback, read_token
from verl_otel.cli.view.listing import Listing
from verl_otel.cli.view.site import Site
from verl_otel.cli.view.watching import Catalogue, Watcher
from verl_otel.errors import VerlOtelError
from verl_otel.exporting.http_server import Server, show_address

PORT: Final = 9466
CLOSE_SECONDS: Final = 2.0
IDLE_SHARE: Final = 0.25
"""This process serves pages and nothing else; its low priority protects a training beside it."""
NICE: Final = 10
TOKEN_BYTES: Final = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="RUN|FOLDER", help="runs, or folders that hold one folder per run"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (127.0.0.1)")
    parser.add_argument("--port", type=options.port, default=PORT, help=f"port; 0 takes a free one ({PORT})")
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token that viewers need (default: a new one each time)",
    )
    token.add_argument(
        "--no-token", action="store_true", help="show the page to every user of this machine; on the loopback only"
    )
    options.add_tls(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    named = run_selection.find_places(arguments.folders, "view") if arguments.folders else []
    encryption = Encryption(HttpAuth(arguments.tls_cert, arguments.tls_key))
    token = _make_token(arguments)
    access = Access(token, secure=encryption.scheme == "https")
    catalogue = Catalogue(named or [config.read("run_dir")])
    watcher = Watcher(catalogue)
    listing = Listing(catalogue, watcher)
    site = Site(listing, watcher, access)
    try:
        server = Server((arguments.host, arguments.port), site.answer, encryption.wrap, IDLE_SHARE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no host name"
        raise VerlOtelError(f"{arguments.host}:{arguments.port} cannot be bound: {reason}") from None
    os.nice(NICE)
    with catch_signals() as ended:
        server.start()
        reader = threading.Thread(
            target=watcher.run, args=(ended, listing.analyse()), name="verl-otel-view", daemon=True
        )
        reader.start()
        # The token of a file is not printed: what is printed may go to the log of a service.
        query = f"?token={token}" if token and arguments.token_file is None else ""
        address = f"{encryption.scheme}://{show(show_address(server.host, server.port))}/{query}"
        print(f"{address}   Ctrl-C ends it.", flush=True)
        wait_for_end(ended)
        server.close()
        reader.join(CLOSE_SECONDS)
    return 0


def _make_token(arguments: argparse.Namespace) -> str:
    """Return what viewers need; empty: nothing.

    Raises:
        VerlOtelError: The token file cannot be used, or other machines can reach the page and it has no token.
    """
    if arguments.token_file is not None:
        return read_token(arguments.token_file)
    if not arguments.no_token:
        return secrets.token_urlsafe(TOKEN_BYTES)
    if not is_loopback(arguments.host):
        raise VerlOtelError(f"--host {arguments.host} can be reached by other machines: leave out --no-token")
    return ""
