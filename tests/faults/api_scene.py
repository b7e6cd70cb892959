"""An agent that is well, and what is to hold of it while a request fails, and after."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Sequence
from operator import le
from pathlib import Path
from typing import Any

import pytest

from agent.demo.workload import Worker
from agent.kube import api, bounds, events, telling, traffic, watch
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason
from tests.api.outage import Outage, hurry, usage
from tests.api.scene import is_untouched, masks, pool
from tests.cluster.background import free_port
from tests.cluster.cluster import Cluster, Request
from tests.cluster.fault_proxy import GONE, FaultProxy
from tests.faults.api_rows import (
    CREATE_EVENT,
    CREATE_PLAN,
    EVERYTHING,
    GET_NODE,
    LIST_PLANS,
    LIST_PODS,
    LOSE_EVENTS,
    PATCH_EVENT,
    REASONS,
    REFUSALS,
    WATCH_PLANS,
    WATCH_PODS,
    ApiRow,
    Asked,
)
from tests.telemetry.listening import LOOPBACK, ask, port_of

BOOKMARK_SECONDS = 0.5
"""How often the API server says something in a watch in which nothing happens; once a minute elsewhere."""
WINDOW_SECONDS = 1.0
"""How long a fault lasts at least; the agent's longest pause is half a second here, and a minute elsewhere."""
MOVED = 3
"""Threads that somebody moves meanwhile."""
KEPT, KNOWN, STRANGER = 0, 1, 2
"""NPUs of three workers: one that was bound before, one that starts meanwhile in a pod that is known, and one of a pod
that came meanwhile."""


class ApiScene:
    """One agent for many faults, one after the other. After one that it did not survive it is of no use any more."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._patch = pytest.MonkeyPatch()
        hurry(self._patch)
        self._patch.setattr(telling, "LASTING_SECONDS", 4.0)  # on the agent's clock, which is fast
        self._patch.setattr(traffic, "BRIEF_SECONDS", 0.3)
        # A machine that has much else to do answers late.
        self._patch.setattr(traffic, "ANSWER_SECONDS", 2.0)
        self._patch.setattr(watch, "SERVER_SECONDS", 3)
        self._patch.setattr(bounds, "SILENT_SECONDS", 3.0)
        self._patch.setattr(api, "TIMEOUT", (1.5, 0.5))
        self._patch.setattr(bounds, "MAX_ANSWER", 1 << 20)
        self._patch.setattr(bounds, "MAX_LINE", 1 << 20)
        # Hours of events in a minute.
        self._patch.setattr(events, "NODE_EVENTS", 10_000)
        self._patch.setattr(events, "BURST", 10_000)
        self.proxy = FaultProxy(cluster)
        self.outage = Outage(cluster, folder, self.proxy)
        self._count_writes()
        self.outage.register()
        self.outage.settings |= {"status_interval": 0.2, "health_address": f"{LOOPBACK}:{free_port()}"}
        (self.kept,) = self.outage.start_with(KEPT)
        self._pools = {npu: pool(self.outage, npu) for npu in (KEPT, KNOWN, STRANGER)}
        self._numbers = itertools.count()
        self._is_probed_well()
        self._used = usage()

    def _count_writes(self) -> None:
        kernel = self.outage.node.kernel
        write = kernel.set_affinity
        self._writes: Counter[int] = Counter()

        def counted(tid: int, cpus: CpuSet) -> None:
            self._writes[tid] += 1
            write(tid, cpus)

        self._patch.setattr(kernel, "set_affinity", counted)

    def close(self) -> None:
        try:
            self.proxy.heal()
            self.outage.close()
        finally:
            self.proxy.close()
            self._patch.undo()

    def endure(self, row: ApiRow) -> None:
        """A fault from its beginning to its end."""
        rig, number = self.outage, next(self._numbers)
        known, stranger = f"known-{number}", f"stranger-{number}"
        pod, _ = rig.run_pod(known)
        rig.until(lambda: self._uid(known), "the pod is known")
        worker = self._worker_with_a_past(pod) if row.asked is PATCH_EVENT else None
        rig.until_quiet()
        lines, seen, counted, begun = len(rig.lines()), len(self.proxy.seen), Counter(rig.counted), time.monotonic()

        self._writes.clear()
        assert rig.agent is not None
        rig.agent.publisher._lost.clear()  # of each cause it tells once, and may have met this one in another row
        row.begin(self.proxy, row.asked)
        self._provoke(row.asked)
        if worker is None:
            worker = rig.start_worker(KNOWN, pod)
        else:
            worker.drift(worker.node.kubelet.shared, 1)
        _, (other,) = rig.run_pod(stranger, [STRANGER])

        rig.until(lambda: self._asked(row.asked, seen) or rig.counted != counted, "it is met")
        self._is_told(row, lines)
        rig.until(lambda: self._is_bound(worker), "who is known is bound all the same")
        if not row.asked.pods or row.reason is None:
            rig.until(lambda: self._is_bound(other), "a new pod's worker is bound")
        self._lasts(row, seen, counted, begun)
        self._is_probed_well()
        if not is_untouched(other):
            assert self._uid(stranger), "of a pod that is not known nobody is bound"
            assert self._is_bound(other)
        self._is_told_briefly(row, rig.lines()[lines:])

        self._heal(row)
        rig.until_bound([self.kept, worker, other])
        rig.until(self._is_well, "nothing is wrong any more")
        rig.until(lambda: rig.condition("Ready").get("status") == "True", "Ready again")
        for one in (self.kept, worker, other):
            assert self._is_bound(one)
        if row.asked not in (CREATE_EVENT, PATCH_EVENT) and row.fault not in LOSE_EVENTS:
            rig.until(lambda: {known, stranger} <= self._told_bound(), "it is told")
        assert self._written(self.kept) == {1: MOVED, 0: len(self.kept.threads) - MOVED}, "and no other was touched"
        if row.asked is PATCH_EVENT:
            assert self._written(worker) == {1: 1, 0: len(worker.threads) - 1}
        for one in (worker, other):
            assert max(self._written(one)) == 1, "each was told once"
        self._clear(worker, other)
        rig.until(lambda: all(map(le, usage(), self._used)), f"no thread and no file is left: {usage()}, {self._used}")

    def _provoke(self, asked: Asked) -> None:
        """Makes the agent ask."""
        rig = self.outage
        if asked in (EVERYTHING, WATCH_PODS, WATCH_PLANS):
            self.proxy.cut()
        elif asked in (LIST_PODS, LIST_PLANS):
            assert self.proxy.inject(GONE, asked.path) == 1
        elif asked in (GET_NODE, CREATE_PLAN):
            rig.cluster.plans.delete(rig.name)

    def _worker_with_a_past(self, pod: Any) -> Worker:
        """Its threads were put back before: the next time that event is counted up."""
        rig = self.outage
        worker = rig.start_worker(KNOWN, pod)
        rig.until_bound([worker])
        rig.keeps(worker, threads=1)
        rig.until(lambda: self._repaired(pod.name), "it is told")
        return worker

    def _is_told(self, row: ApiRow, lines: int) -> None:
        rig = self.outage
        if row.reason is None:
            return
        wanted = row.reason.value
        rig.until(lambda: any(wanted in line for line in rig.lines()[lines:]), f"the log says {wanted}", 30)
        if row.asked.pods and row.asked is not EVERYTHING:
            rig.until(lambda: rig.condition("Degraded").get("reason") == wanted, "the plan says so, too")

    def _is_told_briefly(self, row: ApiRow, told: Sequence[str]) -> None:
        """One reason, in a line; of pods in another one when the plan says it as well. Where everything fails, a server
        that is away is one trouble, and each kind of request that it refuses is one."""
        print(f"{row.key}: {len(told)} lines")
        single = {Reason.API_UNREACHABLE if row.brief else row.reason} - {None}
        wanted = REASONS[row.fault] if row.asked is EVERYTHING else single
        assert all(any(reason and reason.value in line for reason in wanted) for line in told), told
        refused = row.asked is EVERYTHING and row.fault in REFUSALS
        assert len(told) <= refused * 3 + row.asked.pods + 1, told

    def _lasts(self, row: ApiRow, seen: int, counted: Counter[tuple[str, str]], begun: float) -> None:
        """Nobody's threads are touched but those that somebody moved, and the API server is asked rarely."""
        rig = self.outage
        whole, right = self.kept.node.kubelet.shared, [task.mask for task in self.kept.threads]
        self.kept.drift(whole, MOVED)
        rig.until(lambda: [task.mask for task in self.kept.threads] == right, "they are put back")
        time.sleep(max(0.0, begun + WINDOW_SECONDS - time.monotonic()))
        assert self._is_bound(self.kept)
        lasted = time.monotonic() - begun
        asked = len(self._asked(row.asked, seen))
        watchers = 4 if row.asked is EVERYTHING else 1
        # Where a connection breaks off aiohttp asks once more, at once.
        each = 2 if row.fault == "reset before the answer" and row.asked.method in ("GET", "") else 1
        print(f"{row.key}: {asked} requests in {lasted:.1f} s", (rig.counted - counted))
        assert asked <= each * watchers * (4 + lasted / 0.25)
        rig.until(lambda: rig.counted != counted, "it is counted")

    def _is_probed_well(self) -> None:
        """kubelet has no cause to restart the agent, or to take it for not ready."""
        assert self.outage.probes is not None
        port = port_of(self.outage.probes)
        assert [ask(port, path)[0] for path in ("/healthz", "/readyz")] == [200, 200]

    def _heal(self, row: ApiRow) -> None:
        self.proxy.heal()
        if row.fault == "another CA":
            self.outage.mount_service_account()

    def _clear(self, *workers: Worker) -> None:
        """The two pods end."""
        rig = self.outage
        for worker in workers:
            assert worker.pod is not None
            worker.end()
            rig.cluster.pods.delete(worker.pod.name, "prod", grace=0)
        rig.until(lambda: rig.bound() == {self.kept.pid}, "they are gone")

    def _is_well(self) -> bool:
        rig, agent = self.outage, self.outage.agent
        assert agent is not None
        publisher = agent.publisher
        told = [trouble for trouble in (agent._away, *agent._troubles.values()) if trouble._told]
        return rig.follows() and not told and publisher.problem is None and publisher.events_problem is None

    def _is_bound(self, worker: Worker) -> bool:
        within: CpuSet = self._pools[worker.npu]
        return not is_untouched(worker) and masks(worker) <= within

    def _uid(self, name: str) -> str:
        return self.outage.agent.pods.uid("prod", name) if self.outage.agent else ""

    def _asked(self, asked: Asked, since: int) -> list[Request]:
        requests = self.proxy.seen[since:]
        verbs = {"GET": ("get", "list", "watch"), "POST": ("create",), "PATCH": ("patch",), "": ()}[asked.method]
        return [
            one
            for one in requests
            if (not verbs or one.verb in verbs)
            and re.search(asked.path, one.path)
            and asked.watch in (None, one.verb == "watch")
        ]

    def _written(self, worker: Worker) -> Counter[int]:
        """How often a mask was set since the fault began -> of how many threads."""
        return Counter(self._writes[task.tid] for task in worker.threads)

    def _told_bound(self) -> set[str]:
        return {event["involvedObject"]["name"] for event in self.outage.events("CpuBound")}

    def _repaired(self, name: str) -> bool:
        return any(e["involvedObject"]["name"] == name for e in self.outage.events("CpuBindingRepaired"))
