"""The agent on a Kubernetes node: the loop of `agent.control` between what watches bring and what is published."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.control.act import Actor
from agent.control.events import Events
from agent.control.loop import Agent, Parts
from agent.control.observe import Candidate, Choice, Observer
from agent.control.report import KIND
from agent.control.steps import HostSteps
from agent.kube.access import Access
from agent.kube.api import GROUP, PLURAL, VERSION, Api
from agent.kube.plan import GRACE_SECONDS, PlanResource
from agent.kube.pod_resources import PodResourcesPoll
from agent.kube.pods import PodSelection, PodStore
from agent.kube.publisher import Publisher
from agent.kube.retry import Backoffs, Spread
from agent.kube.telling import Lasting, Trouble
from agent.kube.traffic import CountRequest, Subject
from agent.kube.watch import Watch
from agent.model.reason import Problem, Reason
from agent.model.spec import Spec
from agent.model.workload import KubeletState
from agent.node.host import Host, LinuxHost
from agent.node.kubelet import read_cpu_manager_state
from agent.node.npu_smi.command import NpuSmi
from agent.node.npu_smi.counted import CountedNpuSmi
from agent.node.procfs import boot_id
from agent.settings import Settings

log = logging.getLogger(__name__)

SOCKET = Path("var/lib/kubelet/pod-resources/kubelet.sock")
"""kubelet's pod-resources socket, below the host root."""
FIRST_ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Ties:
    """What ties a cluster agent to the world, and what a test replaces of it."""

    access: Access
    npu_smi: NpuSmi
    host: Host = field(default_factory=LinuxHost)
    journal: Path | None = None
    dry_run: bool = False
    events: bool = False
    """Whether the kernel's events of processes are listened to."""
    backoffs: Backoffs = field(default_factory=lambda: Backoffs(1.0, 60.0))
    count: CountRequest = lambda _verb, _code: None
    turned: Callable[[], None] = lambda: None
    problems: Callable[[], list[Problem]] = list
    """What else is missing: a port to listen on, say."""
    clock: Callable[[], float] = time.monotonic


class ClusterAgent:
    """One agent for one node of a cluster. `run` returns after `stop`."""

    def __init__(self, settings: Settings, defaults: Spec, ties: Ties) -> None:
        self._ties = ties
        self._away = Trouble("the API server", "the API server answers again", ties.clock)
        self._troubles = {
            about: Trouble(about, f"{about}: well again", ties.clock) for about in ("pods", "plan", "writes", "events")
        }
        self._without_pods = Lasting(ties.clock)
        root, node = settings.host_root, settings.node_name
        self.pods = PodStore(self._wake, ties.clock)
        self.plan = PlanResource(
            node,
            pods_listed=lambda: self.pods.listed,
            changed=self._wake,
            grace=GRACE_SECONDS + settings.api_jitter,
            clock=ties.clock,
        )
        self.api = Api(ties.access, ties.count)
        self._spread = Spread(settings.api_jitter)
        self.watches = (
            self._watch(Subject("", "v1", "pods", "Pod", f"spec.nodeName={node}", namespaced=True), self.pods),
            self._watch(Subject(GROUP, VERSION, PLURAL, KIND, f"metadata.name={node}"), self.plan),
        )
        self.publisher = Publisher(
            self.api,
            self.plan,
            self.pods.uid,
            resource_missing=self._resource_missing,
            made=self.watches[1].know,
            interval=settings.status_interval,
            backoffs=ties.backoffs,
        )
        self._pod_resources: PodResourcesPoll | None = None
        self._selection = PodSelection(
            self.pods, settings.pod_selection, settings.namespaces, settings.exclude_namespaces
        )
        self._observer = observer = Observer(
            root,
            architecture=settings.architecture,
            chooses=self._choose,
            pods=self.pods.pods,
            kubelet=lambda: self._kubelet(root),
        )
        actor = Actor(root / "proc", ties.host)
        npu_smi = CountedNpuSmi(ties.npu_smi)
        self.events = Events.of_host(root, ties.host, actor.watched, actor.comms) if ties.events else None
        self.agent = Agent(
            Parts(
                node=node,
                observer=observer,
                npu_smi=npu_smi,
                actor=actor,
                steps=HostSteps(
                    root,
                    ties.host,
                    observer.cgroups,
                    npu_smi=npu_smi,
                    memory_seconds=settings.memory_timeout,
                    clock=ties.clock,
                ),
                defaults=defaults,
                state=self.plan,
                problems=self._problems,
                tell=self.publisher.tell,
                turned=ties.turned,
                journal=ties.journal,
                boot_id=boot_id(root),
                sweep_seconds=settings.sweep_interval,
                clock=ties.clock,
                force_dry_run=ties.dry_run,
                news=self.events,
                beside=self.events or nullcontext(),
            )
        )
        if self.events is not None:
            self.events.wake, self.events.glance = self.agent.wake, self.agent.glance

    def run(self) -> None:
        """Until `stop`. Nothing here waits for the API server: without one, what is bound is kept."""
        for watch in self.watches:
            watch.start()
        self.publisher.start()
        try:
            self.agent.run()
        finally:
            self.publisher.stop()
            for watch in self.watches:
                watch.stop(timeout=0.0)
            for watch in self.watches:
                watch.stop()
            if self._pod_resources is not None:
                self._pod_resources.stop()

    def stop(self) -> None:
        """Ends `run` after the pass under way. Safe from any thread and from a signal handler."""
        self.agent.stop()

    def watch_ages(self) -> dict[str, float]:
        """Resource -> seconds since its watch was last heard, or began; without those that did not begin. Safe from any
        thread."""
        ages = ((watch.subject.plural, watch.age()) for watch in self.watches)
        return {name: age for name, age in ages if age is not None}

    def _watch(self, subject: Subject, mirror: PodStore | PlanResource) -> Watch:
        return Watch(
            subject,
            self._ties.access,
            listed=mirror.replace,
            event=mirror.apply,
            count=self._ties.count,
            backoffs=self._ties.backoffs,
            spread=self._spread,
        )

    def _choose(self, candidate: Candidate) -> Choice:
        """A `Chooser`: what its pod says. Where that is not known and nothing is done for the process yet, it waits for
        the API server."""
        choice = self._selection.choose(candidate)
        if choice is Choice.KEEP and candidate.pod is None and candidate.process not in self._observer.bound:
            self._spread.hurry()
        return choice

    def _wake(self) -> None:
        self.agent.wake()

    def _resource_missing(self) -> bool:
        problem = self.watches[1].problem()
        return problem is not None and problem.reason is Reason.PLAN_RESOURCE_MISSING

    def _kubelet(self, root: Path) -> KubeletState:
        """kubelet's own records. Its socket is asked only where the CPU manager gives CPUs to containers: elsewhere it
        says nothing that is of use, and asking takes 20 MiB."""
        policy, grants = read_cpu_manager_state(root)
        if policy == "none":
            return KubeletState(policy, grants)
        if self._pod_resources is None:
            self._pod_resources = PodResourcesPoll(root / SOCKET, self._wake)
            # The first plan of a new start should be made of as much as the last one of the run before.
            self._pod_resources.wait_first(FIRST_ANSWER_SECONDS)
        resources, _ = self._pod_resources.current()
        return KubeletState(policy, grants, resources)

    def _problems(self) -> list[Problem]:
        """For the plan: what is missing and can be told there. The rest is for the log alone."""
        self.pods.forget()
        pods = self._look()
        told = [
            self.publisher.outdated(),
            self._pod_resources.current()[1] if self._pod_resources else None,
            pods,
            *self._ties.problems(),
        ]
        return [problem for problem in told if problem is not None]

    def _look(self) -> Problem | None:
        """Tells the log what is wrong with the API server; returns what the plan is to say of the pods."""
        watched, plan = (watch.problem() for watch in self.watches)
        found = {
            "pods": watched,
            "plan": plan,
            "writes": self.publisher.problem,
            "events": self.publisher.events_problem,
        }
        # An API server that is away is told nothing, and would be told by every node when it is back.
        pods, plans = self.watches
        alone = (
            watched if watched and (watched.reason is not Reason.API_UNREACHABLE or pods.fails_beside(plans)) else None
        )
        lasting = self._without_pods.look(alone)
        unknown = alone is not None and not self.pods.listed and (lasting or alone.reason is not Reason.API_UNREACHABLE)
        if unknown:
            del found["pods"]  # the plan says it, and so the log
        away = [problem for problem in found.values() if problem and problem.reason is Reason.API_UNREACHABLE]
        for about, trouble in self._troubles.items():
            problem = found.get(about)
            trouble.look(problem if problem and problem.reason is not Reason.API_UNREACHABLE else None)
        self._away.look(away[0] if away else None)
        if watched is not None and unknown:
            return replace(watched, reason=Reason.PODS_UNKNOWN)
        return lasting
