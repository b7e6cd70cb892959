"""helm for these tests."""

from __future__ import annotations

import pytest

from tests.chart.helm import Helm, Rendered, find_helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    program = find_helm()
    assert program is not None
    return Helm(program, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def plain(helm: Helm) -> Rendered:
    """A release as it comes, without any value set."""
    return helm.render()
