# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Ray's store: asking for it never starts Ray."""

import pytest

from verl_otel.integrations import cluster_store


def test_ray_is_neither_started_nor_joined():
    """Ray's `get_runtime_context` would start a cluster, or join that of another program, which ends this process when the cluster is gone."""
    ray = pytest.importorskip("ray", reason="Ray is not installed in this environment")
    with pytest.raises(RuntimeError, match="not part of a Ray cluster"):
        cluster_store.runtime_context()
    assert not ray.is_initialized()
