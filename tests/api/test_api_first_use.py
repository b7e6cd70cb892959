"""What somebody meets who has read the README and no more: installs the chart, annotates a pod, looks; and at night,
when irqbalance, npu-smi or a cpuset is at fault, finds the cause by what kubectl, the commands, the alerts and their
pages say. Each message has to name the thing, the reason and what to do."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.demo.fake_irqbalance import FakeIrqbalance
from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.workload import Worker
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.reason import Reason
from agent.model.remedies import REMEDIES
from tests.api.scene import MEDDLED
from tests.api.test_api_chart import Node, Release, release
from tests.api.test_api_commands import Beside, beside
from tests.api.tools import ToolError
from tests.cli.conftest import Cpubind, Result, cpubind
from tests.cluster.background import free_port
from tests.docs.pages import ROOT, one_line
from tests.monitoring.server import Prometheus, prometheus
from tests.monitoring.test_alerts_alive import found

__all__ = ["beside", "cpubind", "release"]

pytestmark = pytest.mark.api

NODE, POD = "a2-0", "llm-0"


class Tour:
    """A cluster with the chart installed and one node, a Prometheus that scrapes the agent there, and what a person may
    type."""

    def __init__(self, node: Node, release: Release, run: Cpubind, watching: Prometheus) -> None:
        self.node = node
        self._release = release
        self._run = run
        self._watching = watching

    def kubectl(self, *args: str) -> str:
        """What it prints, be it with an error."""
        try:
            return self._release.tools.kubectl(*args)
        except ToolError as error:
            return f"{error.out}{error}"

    def cpubind(self, *args: str) -> Result:
        """In the agent's pod."""
        self.node.node.kernel.sync()
        return self._run(*args)

    def serve(self, npu: int, own_cpus: CpuSet = EMPTY) -> Worker:
        """A pod that asks to be bound, with a worker."""
        _, (worker,) = self.node.run_pod(POD, [npu], own_cpus=own_cpus)
        return worker

    def until(self, kind: str, reason: str) -> str:
        """Waits for the reason of a condition; its message."""
        self.node.until(lambda: self.node.condition(kind).get("reason") == reason, f"{kind}: {reason}", 40)
        message: str = self.node.condition(kind)["message"]
        return message

    def get(self) -> tuple[str, str, str]:
        """READY, REASON and MESSAGE of `kubectl get cbp -o wide`."""
        head, row = self.kubectl("get", "cbp", NODE, "-o", "wide").splitlines()
        values = row.split(maxsplit=len(head.split()) - 1)
        return values[8], values[9], values[12]

    def events(self, *what: str) -> str:
        """Those that `kubectl describe` ends with."""
        return one_line(self.kubectl("describe", *what).partition("Events:")[2])

    def alerts(self) -> dict[str, list[dict[str, str]]]:
        """What fires once it has lasted."""
        self._watching.scraped()
        return found(self._watching)

    def npu_smi_alerts(self) -> list[str]:
        """The reasons for which CpubindNpuSmiFailing would fire."""
        return [alert["reason"] for alert in self.alerts().get("CpubindNpuSmiFailing", [])]


def page(alert: str) -> str:
    return (ROOT / f"docs/runbooks/{alert}.md").read_text()


@pytest.fixture
def tour(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: Beside, cpubind: Cpubind
) -> Iterator[Tour]:
    program = tmp_path / "bin/kubectl-cpubind"
    program.parent.mkdir()
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from agent.cli import kubectl_main; kubectl_main()"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "300")
    release.install()
    port = free_port()
    node = Node(release, tmp_path, monkeypatch, interrupts=True, metrics_address=f"127.0.0.1:{port}")
    with node:
        node.register()
        node.start()
        beside(node, npu_smi_timeout="0.5")
        with prometheus(tmp_path, port, {"node": NODE}) as watching:
            watching.scraped()
            yield Tour(node, release, cpubind, watching)


@contextmanager
def repeated(action: Callable[[], object], seconds: float = 0.2) -> Iterator[None]:
    """Somebody does it again and again."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(seconds):
            action()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_pod_that_is_annotated_is_bound_and_everything_that_one_looks_at_says_so(tour: Tour) -> None:
    _, (worker,) = tour.node.run_pod(POD, [0], annotations={})
    tour.node.until(lambda: tour.node.npu(0).get("reason") == "NotOptedIn", "it is seen")
    assert "in use by pod prod/llm-0 and not to be bound; annotate its pod" in tour.kubectl("describe", "cbp", NODE)
    told = tour.kubectl("cpubind", "explain", POD, "-n", "prod")
    assert 'It did not ask to be bound: annotate its template with cpubind.dev/enabled: "true".' in told
    assert "NPU 0 of node a2-0 is Idle (NotOptedIn: in use by pod prod/llm-0" in told

    tour.kubectl("annotate", "pod", "-n", "prod", POD, "cpubind.dev/enabled=true")
    tour.node.until_bound([worker])
    assert tour.get() == ("True", "AsPlanned", "the plan is in force")
    assert "Normal CpuBound" in tour.events("pod", "-n", "prod", POD)
    assert "main 146-165, acl 166, release 167" in tour.events("pod", "-n", "prod", POD)
    assert "1 nodes, 1 ready; 1 workers, 1 bound" in tour.kubectl("cpubind", "status")
    assert "works on NPU 0 of node a2-0: Bound." in tour.kubectl("cpubind", "explain", POD, "-n", "prod")
    assert "The agent last reported NPU 0 as Bound." in tour.cpubind("explain", f"prod/{POD}").out
    assert tour.cpubind("verify").out == "every thread of 1 workers is in place\n"
    assert tour.alerts() == {}


def test_an_irqbalance_that_moves_interrupts_back_is_named_with_what_to_configure(tour: Tour) -> None:
    tour.node.until_bound([tour.serve(0)])
    with FakeIrqbalance(tour.node.node, listens=False) as irqbalance, repeated(irqbalance.balance):
        # irqbalance itself is looked for now and then.
        told = f"; {REMEDIES[Reason.CPU_BINDING_CONFLICT]} (also: IrqbalanceActive)"
        tour.node.until(lambda: tour.node.condition("Degraded")["message"].endswith(told), told, 40)
        conflict = tour.until("Degraded", "CpuBindingConflict")
        assert conflict.startswith("NPU 0: somebody else keeps moving its interrupts; left for ")
        assert tour.alerts() == {
            "CpubindDriftFight": [{"node": NODE, "kind": "irq"}],
            "CpubindPlanDegraded": [{"node": NODE, "type": "Degraded", "reason": "CpuBindingConflict"}],
        }
        # As the page of the first of these leads.
        ready, reason, message = tour.get()
        assert (ready, reason) == ("True", "AsPlanned"), "threads are in place"
        assert message.startswith("the plan is in force; Degraded: CpuBindingConflict: NPU 0: somebody else")
        events = tour.events("cbp", NODE)
        pid = irqbalance.process.pid
        assert "IrqbalanceActive" in events
        assert f"irqbalance ({pid}): it has no socket; start it with --banmod=" in events
        assert "17 interrupts of its NPU put back" in tour.events("pod", "-n", "prod", POD)
        listed = tour.cpubind("verify")
        assert listed.status == 1
        assert "(sq_send_trigger_irq of NPU 0): on " in listed.out, "where they are, and where they belong"
        checked = tour.cpubind("doctor").out
        assert f"warn  irqbalance: irqbalance ({pid}): it has no socket" in checked
        assert "to do: mount the host's /run/irqbalance; or add --banmod=MODULE" in checked
    for command in ("describe cbp NODE", "cpubind verify", "cpubind doctor"):
        assert command in page("CpubindDriftFight")
    assert "irqbalance" in page("CpubindDriftFight")


BREAKS: dict[Reason, tuple[Callable[[NpuSmiStandIn], None], str]] = {
    Reason.DRIVER_NOT_READY: (NpuSmiStandIn.fail, "dcmi module initialize failed. ret is -8005"),
    Reason.NPU_SMI_HUNG: (NpuSmiStandIn.hang, "npu-smi info"),
    Reason.TABLE_UNREADABLE: (lambda npu_smi: npu_smi.fail("\x1b[31m?!\x00 +--\n", 0), "npu-smi info holds no table"),
}
"""What npu-smi does, and what of it the messages have."""


def test_an_npu_smi_that_fails_hangs_or_prints_garbage_is_named_with_what_it_said_and_what_to_do(tour: Tour) -> None:
    worker = tour.serve(0)
    tour.node.until_bound([worker])
    for reason, (breaks, said) in BREAKS.items():
        tour.node.node.npu_smi.recover()
        breaks(tour.node.node.npu_smi)
        told, remedy = tour.until("Degraded", reason), REMEDIES[reason]
        assert "npu-smi info" in told
        assert said in told
        assert told.endswith(f"; {remedy}")
        ready, state, message = tour.get()
        assert (ready, state) == ("True", "AsPlanned"), "who is bound stays bound"
        assert message == f"the plan is in force; Degraded: {reason}: {told}"
        tour.node.until(lambda reason=reason: tour.node.events(reason), "it is told")  # type: ignore[misc]
        assert f"Warning {reason}" in tour.events("cbp", NODE)
        assert f"a2-0: goes without something: {reason}: {told}" in tour.kubectl("cpubind", "status")

        explained = tour.cpubind("explain", f"prod/{POD}")
        assert explained.status == 1
        assert f"The agent last reported process {worker.pid} as Bound." in explained.out
        for failed in (explained, tour.cpubind("verify"), tour.cpubind("plan")):
            assert f"cpubind: {reason}: npu-smi info" in failed.err
            assert remedy in failed.err
            assert "the agent last reported 1 of 1 workers bound, Ready True" in failed.err
        checked = tour.cpubind("doctor").out
        assert f"fail  npu-smi: {reason}: npu-smi info" in checked
        assert f"to do: {remedy}" in checked

        alerts = tour.alerts()
        assert alerts["CpubindPlanDegraded"] == [{"node": NODE, "type": "Degraded", "reason": reason}]
        tour.node.until(lambda reason=reason: reason in tour.npu_smi_alerts(), "the alert", 40)  # type: ignore[misc]
        assert f"`{reason}`" in (ROOT / "docs/conditions.md").read_text()
    assert "conditions.md#reading" in page("CpubindNpuSmiFailing")


def test_a_cpuset_that_is_too_small_is_named_with_its_pod_its_size_and_what_to_do(tour: Tour) -> None:
    worker = tour.serve(0, own_cpus=CpuSet.parse("4-7"))
    few = "an NPU needs 5 CPUs, only 4 (4-7) of its CPUs may be used (cpuset, reserved, other owners)"
    told = f"pod prod/llm-0 on NPU 0: {few}; {REMEDIES[Reason.INSUFFICIENT_CPUS]}"
    tour.node.until(lambda: tour.node.condition("Ready").get("message") == told, told)
    assert tour.get() == ("False", "InsufficientCpus", told)
    assert f"process {worker.pid} on NPU 0: InsufficientCpus: {few}; {REMEDIES[Reason.INSUFFICIENT_CPUS]}" in (
        tour.events("pod", "-n", "prod", POD)
    )
    assert f"a2-0: InsufficientCpus: {told}" in tour.kubectl("cpubind", "status")
    assert f"NPU 0: Failed (InsufficientCpus: {few}" in tour.kubectl("cpubind", "explain", POD, "-n", "prod")
    explained = tour.cpubind("explain", f"prod/{POD}").out
    assert "These CPUs are its container's own: 4-7, by cpu_manager_state." in explained
    assert f"What would change it: {REMEDIES[Reason.INSUFFICIENT_CPUS]}." in explained
    verified = tour.cpubind("verify")
    assert (verified.status, "not planned: InsufficientCpus" in verified.out) == (1, True)
    assert tour.alerts() == {"CpubindWorkerUnbound": [{"node": NODE}]}
    assert "`InsufficientCpus` (reserve fewer CPUs, or give the pod more)" in one_line(page("CpubindWorkerUnbound"))


def test_somebody_who_moves_threads_an_annotation_and_rights_that_are_wrong_are_named(tour: Tour) -> None:
    worker = tour.serve(3)
    tour.node.run_pod("typo", [0], annotations={"cpubind.dev/enabled": "yes"})
    tour.node.run_pod("misspelt", [1], annotations={"cpubind.dev/enable": "true"})
    tour.node.until_bound([worker])
    tour.node.until(lambda: tour.node.events("InvalidAnnotation"), "it is told")
    wrong = "cpubind.dev/enabled: 'yes' is not true or false"
    assert wrong in tour.events("pod", "-n", "prod", "typo")
    for told in (tour.kubectl("cpubind", "explain", "typo", "-n", "prod"), tour.cpubind("explain", "typo").err):
        assert f"{wrong}; the pod is left as it is; correct the annotation" in told
    unknown = "annotation cpubind.dev/enable means nothing"
    assert unknown in tour.kubectl("cpubind", "explain", "misspelt", "-n", "prod")
    assert unknown in tour.cpubind("explain", "misspelt").err

    with repeated(lambda: worker.drift(MEDDLED, 3)):
        told = tour.until("Ready", "CpuBindingConflict")
        assert told.startswith(f"pod prod/llm-0 on NPU 3: process {worker.pid}: somebody else keeps moving its threads")
        assert told.endswith(f"; {REMEDIES[Reason.CPU_BINDING_CONFLICT]}")
        assert "CpuBindingConflict" in tour.events("pod", "-n", "prod", POD)
        listed = tour.cpubind("verify")
        assert (listed.status, "on 1, planned " in listed.out) == (1, True)
        assert tour.alerts()["CpubindDriftFight"] == [{"node": NODE, "kind": "thread"}]

    assert tour.cpubind("doctor", "--cluster").status == 0
    tour.kubectl("delete", "clusterrolebinding", "npu-cpubind")
    tour.node.until(lambda: tour.cpubind("doctor", "--cluster").status == 1, "the rights are gone")
    checked = tour.cpubind("doctor", "--cluster").out
    assert checked.count("to do: install the chart's ClusterRole and its binding (rbac.create)") == 2
    blind = tour.cpubind("explain", "nobody")
    assert blind.status == 1
    assert "ApiRefused: list of pods: 403" in blind.err, "not merely that there is no such pod"
    tour.kubectl("delete", "crd", "cpubindingplans.cpubind.dev")
    assert "PlanResourceMissing: no resource cpubindingplans" in tour.kubectl("cpubind", "status")
    assert "is cpubind installed in this cluster?" in tour.kubectl("cpubind", "explain", POD, "-n", "prod")
