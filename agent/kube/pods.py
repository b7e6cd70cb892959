"""The pods of this node as the API server has them, and which of their processes are to be bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent.control.observe import Candidate, Choice
from agent.model.pods import pod_from_manifest
from agent.model.workload import Pod
from agent.planning.optin import opted_in

GONE_SECONDS = 120.0
"""A deleted pod is remembered for this long after its last process was seen on an NPU: processes outlive a pod that
was deleted by force, and stay bound."""


class PodStore:
    """A mirror of the node's pods, fed by a watch. Safe from any thread."""

    def __init__(self, changed: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`changed` is called after each change that matters to the agent."""
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._gone: dict[str, tuple[Pod, float]] = {}
        self._listed = False
        self._all: tuple[Pod, ...] = ()

    @property
    def listed(self) -> bool:
        """Whether the pods were ever listed: before that the absence of one says nothing."""
        return self._listed

    def replace(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """All pods of the node, as a LIST gave them."""
        pods = {pod.uid: pod for pod in map(pod_from_manifest, manifests)}
        with self._lock:
            changed = not self._listed or pods != self._pods
            for uid in self._pods.keys() - pods.keys():
                self._gone[uid] = (self._pods[uid], self._clock())
            self._pods, self._listed = pods, True
            self._remake()
        if changed:
            self._changed()

    def apply(self, kind: str, manifest: Mapping[str, Any]) -> None:
        """One event of a WATCH: ADDED, MODIFIED or DELETED."""
        pod = pod_from_manifest(manifest)
        with self._lock:
            before = self._pods.get(pod.uid)
            if kind == "DELETED":
                if before is not None:
                    del self._pods[pod.uid]
                    self._gone[pod.uid] = (before, self._clock())
            else:
                self._pods[pod.uid] = pod
            changed = before != self._pods.get(pod.uid)
            if changed:
                self._remake()
        if changed:
            self._changed()

    def pods(self) -> tuple[Pod, ...]:
        """Every pod that there is, and those that were deleted lately."""
        return self._all

    def is_gone(self, uid: str) -> bool:
        """Whether this pod was deleted; asking keeps it in mind a while longer. One that is there again, as after the
        API server's store was restored, is not gone."""
        with self._lock:
            gone = self._gone.get(uid)
            if gone is None or uid in self._pods:
                return False
            self._gone[uid] = (gone[0], self._clock())
            return True

    def uid(self, namespace: str, name: str) -> str:
        """The uid of a living pod; empty without one."""
        named = (pod.uid for pod in self._all if (pod.namespace, pod.name) == (namespace, name))
        return next((uid for uid in named if uid in self._pods), "")

    def forget(self) -> None:
        """Drops deleted pods of whose processes none was seen for long."""
        now = self._clock()
        with self._lock:
            old = [uid for uid, (_, seen) in self._gone.items() if now - seen > GONE_SECONDS]
            for uid in old:
                del self._gone[uid]
            if old:
                self._remake()

    def _remake(self) -> None:
        # A living pod first: a name can come again with another uid.
        self._all = (*self._pods.values(), *(pod for uid, (pod, _) in self._gone.items() if uid not in self._pods))


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which processes on NPUs are to be bound, by what their pods say."""

    store: PodStore
    select: Literal["Annotated", "AllNpuPods"] = "Annotated"
    """AllNpuPods binds every pod on an NPU that does not opt out."""
    namespaces: Collection[str] = ()
    """Only pods in these; in all where it is empty."""
    exclude_namespaces: Collection[str] = ()

    def choose(self, candidate: Candidate) -> Choice:
        """A `Chooser`."""
        pod = candidate.pod
        if pod is None:
            # A pod that is not known (any more), or whose cgroup another namespace hides; else a process of the host.
            identity = candidate.identity
            hidden = identity.container_id and identity.path.startswith("/..")
            return Choice.KEEP if identity.pod_uid or hidden else Choice.LEAVE
        if self.store.is_gone(pod.uid):
            return Choice.KEEP
        if pod.namespace in self.exclude_namespaces or (self.namespaces and pod.namespace not in self.namespaces):
            return Choice.RELEASE
        verdict = opted_in(pod, candidate.container_name, unless_said=self.select == "AllNpuPods")
        if verdict is None:
            return Choice.KEEP
        return Choice.BIND if verdict else Choice.RELEASE
