"""`profile: restricted` on a real runtime, with its default seccomp profile: all but moving memory works."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent.node.capabilities import Capability
from tests.e2e.cluster import Cluster
from tests.e2e.node import Shell
from tests.e2e.release import AgentPod, Release, conditions
from tests.e2e.wait import until
from tests.e2e.workload import Workload

FIVE = sum(1 << one for one in Capability)

_MOVE = """
import os, sys
pid = int(sys.argv[1])
before = os.sched_getaffinity(pid)
os.sched_setaffinity(pid, {min(before)})
moved = os.sched_getaffinity(pid) == {min(before)}
os.sched_setaffinity(pid, before)
print(moved)
"""


@pytest.fixture
def restricted(installed: Release) -> Iterator[AgentPod]:
    """The agent's pod."""
    installed.install(profile="restricted")
    agent = AgentPod(installed)
    agent.wait_ready()
    yield agent
    assert agent.complaints() == []


def checks(agent: AgentPod) -> dict[str, dict[str, str]]:
    done = agent.attempt("doctor", "-o", "json")
    return {check["name"]: check for check in json.loads(done.stdout)}


def test_it_runs_with_just_the_five_and_filtered_and_lacks_nothing_but_to_move_memory(
    restricted: AgentPod, shell: Shell
) -> None:
    container = restricted.pod()["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    pids = shell.pids(container)
    assert pids
    for pid in pids:
        text = shell(f"cat /proc/{pid}/status")
        status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        for name in ("CapBnd", "CapPrm", "CapEff"):
            assert int(status[name], 16) == FIVE, (name, status[name])
        assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    found = checks(restricted)
    wanted = [f"CAP_{one.name}" for one in Capability]
    wanted += ["kernel", "mounts", "topology", "cgroups", "interrupts", "npu-smi", "journal", "lock", "events"]
    wanted += ["taskstats", "API server", "rights", "CpuBindingPlan", "Node"]
    assert {name: found[name]["message"] for name in wanted if found[name]["result"] != "ok"} == {}
    assert (found["memory"]["result"], found["memory"]["message"]) == ("warn", "move_pages: Operation not permitted")


def test_without_the_runtimes_seccomp_profile_memory_can_be_moved_too(installed: Release, restricted: AgentPod) -> None:
    installed.install(profile="restricted", securityContext={"seccompProfile": {"type": "Unconfined"}})
    restricted.wait_ready()
    assert checks(restricted)["memory"]["result"] == "ok"


def test_it_finds_workers_of_pods_and_may_place_their_threads(
    restricted: AgentPod, workload: Workload, cluster: Cluster
) -> None:
    worker = workload.start(0, securityContext={"runAsUser": 65534})
    entry = workload.wait_entry(worker)
    assert (entry["pod"], entry["container"]) == (worker.name, "main")
    enough = cluster.cpus >= 10
    until(lambda: (workload.entry(worker) or {}).get("state") == ("Bound" if enough else "Failed"), "it was tried")
    if not enough:
        assert (workload.entry(worker) or {})["reason"] == "InsufficientCpus"
    # With too few CPUs for a plan: the same call, from the same container.
    moved = restricted.kubectl("exec", "-n", "cpubind", restricted.name, "--", "python3", "-c", _MOVE, str(worker.pid))
    assert moved.strip() == "True"
    plan = cluster.kubectl.get("cbp", cluster.node)
    assert conditions(plan)["Degraded"]["reason"] not in ("EventsUnavailable", "PermissionDenied")
    assert "EventsUnavailable" not in restricted.logs()
