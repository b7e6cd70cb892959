"""Tests of the clusters that other tests use."""

from __future__ import annotations

import pytest

from tests.cluster.fixtures import cluster, fake_cluster, real_cluster

__all__ = ["cluster", "fake_cluster", "real_cluster"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "api: needs the real API server (KUBEBUILDER_ASSETS)")
