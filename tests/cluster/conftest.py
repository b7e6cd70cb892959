"""Tests of the clusters that other tests use."""

from __future__ import annotations

from tests.cluster.fixtures import cluster, fake_cluster, real_cluster

__all__ = ["cluster", "fake_cluster", "real_cluster"]
