"""The doctor asks the API server what the agent may do; where that fails it says why in a line, soon, and ends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kube import api, bounds
from tests.cli.conftest import Cpubind, cpubind
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import FaultProxy
from tests.faults.api_rows import DOCTOR_ROWS, ApiRow

__all__ = ["cpubind"]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(api, "TIMEOUT", (1.0, 0.5))
    monkeypatch.setattr(bounds, "MAX_ANSWER", 1 << 20)
    server = FakeApiServer()
    with FaultProxy(server) as made:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", made.host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(made.port))
        yield made
    server.close()


@pytest.mark.parametrize("row", DOCTOR_ROWS, ids=[row.key for row in DOCTOR_ROWS])
def test_the_doctor_says_in_a_line_what_ails_the_api_server(
    cpubind: Cpubind, proxy: FaultProxy, tmp_path: Path, row: ApiRow
) -> None:
    account = proxy.service_account_dir(tmp_path / "account")

    def checked() -> tuple[int, dict[str, dict[str, str]]]:
        result = cpubind("doctor", "--cluster", "-o", "json", "--service-account-dir", account)
        assert not result.err
        return result.status, {check["name"]: check for check in json.loads(result.out)}

    row.begin(proxy, row.asked)
    begun = time.monotonic()
    status, found = checked()
    assert time.monotonic() - begun < 10.0
    if row.reason is None:
        assert status == 0
    else:
        assert (status, list(found)) == (1, ["API server"])
        assert found["API server"]["result"] == "fail"
        assert found["API server"]["message"].startswith(f"{row.reason.value}: ")
    proxy.heal()
    proxy.service_account_dir(account)
    status, found = checked()
    assert (status, {check["result"] for check in found.values()}) == (0, {"ok"})
