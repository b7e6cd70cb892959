"""One cluster, one shell on its node, one installed release for all tests; each test leaves the release as it was."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from agent.demo.profiles import small
from tests.e2e.arm_node import missing_guest
from tests.e2e.cluster import Cluster, missing, open_cluster
from tests.e2e.node import FOLDER, Shell, StandIn
from tests.e2e.release import AgentPod, Release
from tests.e2e.workload import NAMESPACE, Workload

LABEL = "cpubind.dev/node"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a cluster one of these tests is skipped, for all of them: the reason is worth one line. So it is with
    those on an ARM64 node, which come last: they remove what the others share."""
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in own:
        item.add_marker("e2e")
    arm = [item for item in own if item.path.name == "test_whole_way.py"]
    if own and (problem := missing()):
        _skip(config, items, own, f"tests of tests/e2e: {problem}")
    elif arm and (problem := missing_guest()):
        _skip(config, items, arm, f"tests of {arm[0].path.name}: {problem}")
    items.sort(key=lambda item: item in arm)


def _skip(config: pytest.Config, items: list[pytest.Item], out: list[pytest.Item], why: str) -> None:
    out[0].add_marker(pytest.mark.skip(f"all {len(out)} {why}"))
    items[:] = [item for item in items if item not in out[1:]]
    config.hook.pytest_deselected(items=out[1:])


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with open_cluster() as found:
        yield found


@pytest.fixture(scope="session")
def shell(cluster: Cluster) -> Iterator[Shell]:
    """A root shell on the node, which carries the label that the chart's default affinity looks for."""
    kubectl = cluster.kubectl
    kubectl("label", "node", cluster.node, f"{LABEL}=true", "--overwrite")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    opened = Shell(cluster, NAMESPACE)
    opened.start()
    yield opened
    opened(f"rm -rf /node{FOLDER}")
    if cluster.disposable:
        return
    kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")
    kubectl("label", "node", cluster.node, f"{LABEL}-")


@pytest.fixture(scope="session")
def stand_in(cluster: Cluster, shell: Shell) -> StandIn:
    """npu-smi of two NPUs 910B3 on this node."""
    made = StandIn(shell, small(cluster.cpus, 1, 2))
    made.install()
    return made


@pytest.fixture(scope="session")
def installed(
    cluster: Cluster, shell: Shell, stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    release = Release(cluster, tmp_path_factory.mktemp("helm"))
    _remove(release, shell)
    yield release
    _remove(release, shell)


def _remove(release: Release, shell: Shell) -> None:
    """All that a release leaves on cluster and node: an earlier run may have been killed."""
    if not release.cluster.disposable:
        release.remove()
    shell("rm -rf /node/var/lib/cpubind /node/run/cpubind")
    shell(
        "cd /node && rmdir run/irqbalance usr/local/dcmi usr/local/Ascend/driver usr/local/Ascend 2>/dev/null || true"
    )


@pytest.fixture
def release(installed: Release) -> Release:
    """The release with its plain values, its agent ready."""
    installed.ensure()
    return installed


@pytest.fixture
def agent(release: Release) -> Iterator[AgentPod]:
    """The agent's pod. Whatever a test does, Kubernetes must not have to restart it, nor its log show a fault."""
    found = AgentPod(release)
    found.wait_ready()
    yield found
    assert found.complaints() == []


@pytest.fixture
def workload(cluster: Cluster, shell: Shell, stand_in: StandIn) -> Iterator[Workload]:
    made = Workload(cluster, shell, stand_in)
    yield made
    made.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failure goes what the agent said and what it published."""
    report = yield
    agent = getattr(item, "funcargs", {}).get("agent")
    if report.failed and isinstance(agent, AgentPod):
        for title, args in (
            ("agent", ("logs", "-n", "cpubind", "-l", agent.selector, "--tail=100", "--prefix")),
            ("pods", ("get", "pods", "-A", "-o", "wide")),
            ("plans", ("get", "cbp", "-o", "yaml")),
        ):
            done = agent.kubectl.attempt(*args)
            report.sections.append((title, done.stdout + done.stderr))
    return report
