"""What happens on a virtual node: workers start, grow, fork and end, and others meddle with their masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.demo.fake_kernel import FakeTask
from agent.demo.fake_kubelet import VirtualPod
from agent.demo.fake_memory import FakeMapping, pages
from agent.demo.virtual import VirtualNode
from agent.model.cpuset import CpuSet
from agent.model.workload import ProcessId

WORKER_COMM = "VLLM::Worker_TP"

RESIDUAL_MIB = 107
"""Device memory of the context that every tensor-parallel rank keeps on NPU 0 besides its own."""

_THREADS = (
    "RT_RECYCLE_0", "hccl_watchdog_t", "ZMQbg/Reaper/0", "ZMQbg/IO/0", "pt_autograd_0", "grpc_global_tim",
    "jemalloc_bg_thd", "ucm_worker_0",
)  # fmt: skip
"""Names of threads in a worker, besides those of OpenMP, which carry the name of the process."""

ROLE_THREADS = ("acl_thread", "release_thread")


class Worker:
    """A process with a context on an NPU, in a container of a virtual pod."""

    def __init__(self, node: VirtualNode, npu: int, pod: VirtualPod | None, leader: FakeTask) -> None:
        self.node = node
        self.npu = npu
        self.pod = pod
        self.pid = leader.tid
        self.identity = ProcessId(leader.tid, leader.start_time)

    @classmethod
    def start(
        cls,
        node: VirtualNode,
        npu: int,
        pod: VirtualPod | None = None,
        *,
        container: str = "",
        comm: str = WORKER_COMM,
        threads: int = 28,
        memory_mib: int | None = None,
        listed: bool = True,
        residual: Sequence[int] = (),
        heap: int = 4 << 20,
    ) -> Worker:
        """A worker begins: its threads but those for ACL and release, its context on the NPU.

        Without a pod it runs in a user's session. It holds most of the NPU's memory unless told how much; where it is
        not `listed`, it has opened the NPU and npu-smi does not show it. On the NPUs of `residual` it keeps small
        contexts. Its heap, of so many bytes, is on the first NUMA node that has memory, as that of a worker is whose
        loader ran there.
        """
        if pod is None:
            cgroup = "/user.slice/user-1000.slice"
            node.kernel.cgroups.create(cgroup, cpuset=False)
        else:
            cgroup = pod.container(container).cgroup
        leader = node.kernel.start_process(comm, cgroup=cgroup)
        worker = cls(node, npu, pod, leader)
        for k in range(threads - 1):
            node.kernel.start_thread(leader.tid, _THREADS[k] if k < len(_THREADS) else comm)
        if heap:
            worker.allocate(heap, min(node.kernel.memory.free), name="[heap]")
        own = node.profile.memory_mib * 17 // 20 if memory_mib is None else memory_mib
        contexts = [(npu, own), *((other, RESIDUAL_MIB) for other in residual if other != npu)]
        node.hold(leader.tid, [(other, size if listed else None) for other, size in contexts], leader.comm)
        return worker

    @property
    def threads(self) -> list[FakeTask]:
        """Its threads, its main thread first."""
        tasks = self.node.kernel.tasks
        return [tasks[tid] for tid in tasks[self.pid].threads]

    @property
    def alive(self) -> bool:
        return self.pid in self.node.kernel.tasks

    def add_role_threads(self) -> list[FakeTask]:
        """The CANN runtime makes its ACL and its release thread some moments after the context."""
        return [self.node.kernel.start_thread(self.pid, comm) for comm in ROLE_THREADS]

    def grow(self, count: int, comm: str = "pt_autograd_0", *, creator: int | None = None) -> list[FakeTask]:
        """More threads; they start with the mask of the thread that makes them."""
        return [self.node.kernel.start_thread(self.pid, comm, creator=creator) for _ in range(count)]

    def fork(self, comm: str = "ccec", *, creator: int | None = None) -> FakeTask:
        """A child, such as an operator compiler, in the same container."""
        kernel = self.node.kernel
        child = kernel.start_process(comm, parent=self.pid)
        if creator is not None:
            maker = kernel.tasks[creator]
            child.mask, child.asked = maker.mask, maker.asked
        return child

    def allocate(self, size: int, *nodes: int, **mapping: Any) -> FakeMapping:
        """Memory of so many bytes, touched, its pages on these NUMA nodes in turn; private unless `mapping` says
        otherwise (`FakeMemory.map`)."""
        return self.node.kernel.map_memory(self.pid, pages(size, *nodes), **mapping)

    def drift(self, cpus: CpuSet, count: int) -> list[int]:
        """Somebody's ``taskset`` moves the first `count` threads; returns those it moved."""
        moved = [task.tid for task in self.threads[:count]]
        for tid in moved:
            self.node.kernel.set_by_other(tid, cpus)
        return moved

    def end(self) -> None:
        """The process ends, and its contexts with it."""
        self.node.let_go(self.pid)
        self.node.kernel.end(self.pid)
