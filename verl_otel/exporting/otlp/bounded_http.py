# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Sessions of ``requests`` whose exchanges are bounded (see `verl_otel._internal.bounded_connection`)."""

from __future__ import annotations

from typing import Any

from requests import Session
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from verl_otel._internal.bounded_connection import Limits, make_connection


def make_session(limits: Limits) -> Session:
    """Return a session whose exchanges keep to limits, which the caller begins with each."""
    pools = {
        "http": _make_pool(HTTPConnectionPool, HTTPConnection, limits),
        "https": _make_pool(HTTPSConnectionPool, HTTPSConnection, limits),
    }

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, proxy: Any, **kwargs: Any) -> Any:
            manager = super().proxy_manager_for(proxy, **kwargs)
            if not str(proxy).lower().startswith("socks"):
                manager.pool_classes_by_scheme = pools
            return manager

    session = Session()
    for scheme in pools:
        session.mount(f"{scheme}://", Adapter())
    return session


def _make_pool(pool: Any, base: Any, limits: Limits) -> Any:
    """Return a class of connection pools whose connections keep to limits."""
    return type("Pool", (pool,), {"ConnectionCls": make_connection(base, limits)})
