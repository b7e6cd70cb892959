"""``cpubind run`` as the program that it is, in a pod that a test plays: start, probes, locks, signals, memory."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.node.storage import HostLock
from tests.api.agent_process import NODE, TIMEOUT, AgentProcess
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import FaultProxy

GRACE_SECONDS = 10
"""terminationGracePeriodSeconds of the chart: after it kubelet kills."""

Start = Callable[..., AgentProcess]

FEW_CPUS = "" if (os.cpu_count() or 1) <= 4 else f"4-{(os.cpu_count() or 1) - 1}"
"""What to reserve, so that no NPU of eight gets five CPUs."""


@pytest.fixture
def proxy(fake_cluster: FakeApiServer) -> Iterator[FaultProxy]:
    with FaultProxy(fake_cluster) as proxy:
        yield proxy


@pytest.fixture
def start(fake_cluster: FakeApiServer, tmp_path: Path) -> Iterator[Start]:
    """Starts agents of a Node that is registered; by a proxy if one is given. All are killed at the end."""
    started: list[AgentProcess] = []
    fake_cluster.nodes.named(NODE)
    fake_cluster.service_account_dir(tmp_path / "account")

    def run(*args: str, proxy: FaultProxy | None = None, **how: Any) -> AgentProcess:
        account = proxy.service_account_dir(tmp_path / "other-account") if proxy else tmp_path / "account"
        server = (proxy or fake_cluster).host, (proxy or fake_cluster).port
        how = {"server": server, "account": account, **how}
        started.append(AgentProcess(tmp_path, how.pop("server"), how.pop("account"), *args, **how))
        return started[-1]

    yield run
    for agent in started:
        agent.kill()


def plan_of(cluster: FakeApiServer) -> dict[str, Any]:
    """The plan once it has a status."""
    found = cluster.plans.find(NODE) or {}
    return found if found.get("status") else {}


def condition(cluster: FakeApiServer, kind: str) -> tuple[str, str]:
    """(status, reason) of a condition; empty where it is not there."""
    conditions = plan_of(cluster).get("status", {}).get("conditions", [])
    return next(((one["status"], one["reason"]) for one in conditions if one["type"] == kind), ("", ""))


def test_a_node_without_npus_is_ready_has_no_plan_and_says_so_once(fake_cluster: FakeApiServer, start: Start) -> None:
    agent = start(npus=False)
    assert agent.until_ready(200).startswith("no NPU on this node: ")
    assert agent.get("/healthz")[0] == 200
    assert "There is no plan yet: no NPU on this node" in agent.get("/")[1]
    time.sleep(1.0)
    status, seconds = agent.terminate()
    assert (status, seconds < GRACE_SECONDS) == (0, True)
    (line,) = agent.lines("no NPU")
    assert line.endswith("no npu-smi; nothing to do; looking again every 10 minutes")
    assert fake_cluster.requests() == []


def test_it_publishes_the_plan_and_answers_probes_and_scrapes(fake_cluster: FakeApiServer, start: Start) -> None:
    agent = start(PAGE_SECRET="not-for-everybody")
    plan = agent.until(lambda: plan_of(fake_cluster), "the plan is published")
    print(
        f"{time.monotonic() - agent.begun:.2f} s from the start of the process to the plan; {agent.rss_mib():.0f} MiB"
    )
    assert [owner["name"] for owner in plan["metadata"]["ownerReferences"]] == [NODE]
    assert {npu["state"] for npu in plan["status"]["npus"]} == {"Skipped"}
    assert condition(fake_cluster, "PlanValid") == ("False", "UnsupportedArchitecture")
    assert agent.until_ready() == "plan computed: UnsupportedArchitecture"
    status, text = agent.get("/metrics", agent.metrics)
    assert status == 200
    assert "cpubind_npus 8.0\n" in text
    assert 'cpubind_api_requests_total{code="200",verb="watch"} 2.0\n' in text
    assert 'cpubind_drift_detected_total{kind="thread"} 0.0\n' in text
    assert agent.get("/metrics")[0] == 404
    status, page = agent.get("/")
    assert status == 200
    assert f"<h1>{NODE}</h1>" in page
    assert plan["status"]["planHash"] in page
    assert "PlanValid: False  UnsupportedArchitecture" in page
    assert re.search(r", \d+ s ago, when the agent last looked\.", page)
    for secret in ("not-for-everybody", "--journal-file"):
        assert secret not in page
    assert agent.rss_mib() < 128
    status, seconds = agent.terminate()
    assert (status, seconds < GRACE_SECONDS) == (0, True)
    assert agent.lines()[-1] == "stopped; bindings stay as they are"
    assert condition(fake_cluster, "Ready") == ("Unknown", "AgentStopped")


def test_an_agent_that_was_killed_is_followed_by_one_that_changes_nothing(
    fake_cluster: FakeApiServer, start: Start
) -> None:
    allowed = ("--allow-any-architecture", *(("--reserved-cpus", FEW_CPUS) if FEW_CPUS else ()))
    agent = start(*allowed)
    agent.until(lambda: condition(fake_cluster, "PlanValid") == ("False", "InsufficientCpus"), "the plan is published")
    agent.kill()
    plan = plan_of(fake_cluster)
    successor = start(*allowed)
    successor.until_ready(part="InsufficientCpus")
    time.sleep(1.0)
    assert plan_of(fake_cluster) == plan
    assert not successor.lines("made the plan")


def test_another_holder_of_the_lock_is_waited_for_and_named(
    fake_cluster: FakeApiServer, start: Start, tmp_path: Path
) -> None:
    lock = HostLock(tmp_path / "lock")
    lock.acquire("cpubind 0.0.1, pid 1, node other")
    agent = start()
    said = agent.until_ready(503, "waiting")
    assert said.startswith("waiting: Locked: another agent acts on this host: cpubind 0.0.1, pid 1, node other (lock ")
    time.sleep(1.5)
    assert agent.get("/healthz")[0] == 200
    assert agent.lines("another agent") == [said]
    assert plan_of(fake_cluster) == {}
    lock.release()
    agent.until(lambda: plan_of(fake_cluster), "the plan is published")
    assert agent.until_ready() == "plan computed: UnsupportedArchitecture"


def test_of_two_agents_in_pods_the_second_waits_not_ready_and_takes_over_when_the_first_is_killed(
    fake_cluster: FakeApiServer, start: Start
) -> None:
    first = start()
    plan = first.until(lambda: plan_of(fake_cluster), "the plan is published")
    first.until_ready()
    second = start()
    assert f"pid {first.pid}, node {NODE} (lock " in second.until_ready(503, "waiting: Locked")
    time.sleep(1.5)
    assert (second.get("/readyz")[0], first.get("/readyz")[0]) == (503, 200)
    assert "cpubind_npus 0.0\n" in second.get("/metrics", second.metrics)[1], "it has no plan of its own"
    first.kill()
    assert second.until_ready() == "plan computed: UnsupportedArchitecture"
    assert plan_of(fake_cluster) == plan


def test_an_agent_in_a_pod_waits_for_one_that_runs_on_the_host_without_kubernetes(
    fake_cluster: FakeApiServer, start: Start, tmp_path: Path
) -> None:
    host = start("--standalone", "--state-file", str(tmp_path / "plan.yaml"), server=None)
    host.until((tmp_path / "plan.yaml").exists, "it has written its plan")
    agent = start()
    assert f"pid {host.pid}, node {NODE} (lock " in agent.until_ready(503, "waiting: Locked")
    assert plan_of(fake_cluster) == {}
    assert host.terminate()[0] == 0
    assert agent.until_ready() == "plan computed: UnsupportedArchitecture"
    late = start("--standalone", "--state-file", str(tmp_path / "late.yaml"), server=None)
    assert late.process.wait(TIMEOUT) == 3
    assert f"pid {agent.pid}, node {NODE} (lock " in late.text
    assert not (tmp_path / "late.yaml").exists()


def test_outside_a_pod_it_says_so_and_ends(start: Start) -> None:
    agent = start(server=None)
    assert agent.process.wait(TIMEOUT) == 2
    (line,) = agent.text.splitlines()
    assert line.startswith(
        "cpubind: this is no pod (KUBERNETES_SERVICE_HOST is not set); without a cluster use --standalone"
    )


def test_a_token_that_is_not_there_yet_is_waited_for(fake_cluster: FakeApiServer, start: Start, tmp_path: Path) -> None:
    account = tmp_path / "late"
    agent = start(account=account)
    agent.until_said("cannot be used: No such file or directory; what is bound stays")
    agent.until(lambda: agent.get("/readyz")[0] == 200, "the host can be read all the same")
    fake_cluster.service_account_dir(account)
    agent.until(lambda: plan_of(fake_cluster), "the plan is published")
    assert len(agent.lines("what is bound stays")) <= 2


def test_a_port_that_somebody_else_has_is_told_in_the_plan_until_it_is_free(
    fake_cluster: FakeApiServer, start: Start, proxy: FaultProxy
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        agent = start(proxy=proxy, health=port)
        agent.until(lambda: condition(fake_cluster, "Degraded") == ("True", "PortInUse"), "the plan says so")
        assert agent.get("/metrics", agent.metrics)[0] == 200
    agent.until(lambda: condition(fake_cluster, "Degraded")[0] == "False", "it has the port")
    agent.until_ready(part="plan computed")

    # An API server that hangs holds up nobody who stops the agent: kubelet gives it ten seconds.
    proxy.hang()
    status, seconds = agent.terminate()
    print(f"{seconds:.1f} s to stop beside an API server that hangs")
    assert (status, seconds < GRACE_SECONDS) == (0, True)
    assert agent.lines()[-1] == "stopped; bindings stay as they are"


def test_an_api_server_that_goes_and_comes_is_told_in_a_line_or_two(
    fake_cluster: FakeApiServer, start: Start, proxy: FaultProxy
) -> None:
    agent = start(proxy=proxy)
    agent.until(lambda: plan_of(fake_cluster), "the plan is published")
    agent.until(lambda: proxy.streams() == 2, "it watches")
    version = plan_of(fake_cluster)["metadata"]["resourceVersion"]
    before = len(agent.log)
    proxy.refuse()
    agent.until_said("the API server: ApiUnreachable: watch of ")
    time.sleep(2.0)
    proxy.heal()
    agent.until(lambda: proxy.streams() == 2, "it watches again")
    time.sleep(1.0)
    assert plan_of(fake_cluster)["metadata"]["resourceVersion"] == version
    # The connection was cut, and then refused.
    assert all("ApiUnreachable" in line for line in agent.lines()[before:])
    assert len(agent.log) <= before + 2, agent.lines()
