"""The chart, for pages that speak of what is in it. Modules that ask for it begin with `need_helm`."""

from __future__ import annotations

import pytest

from tests.chart.helm import Helm, Rendered, find_helm


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    program = find_helm()
    assert program is not None
    return Helm(program, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def plain(helm: Helm) -> Rendered:
    """The chart as the page installs it."""
    return helm.render(namespace="cpubind")
