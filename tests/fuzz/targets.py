"""Every parser of what others wrote, and how bytes come to it: through the reader that it has on a host, limit and all.

A target takes any bytes and returns whatever the parser makes of them, or raises one of its `errors`; anything else is
a fault. Seeds are texts that the parser knows; `words` are what such texts are made of.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.cli.select import chooser
from agent.control.journal_file import parse as parse_journal
from agent.control.statefile import StateFile
from agent.demo.fake_files import scratch
from agent.kube.access import Access
from agent.kube.api import _refusal
from agent.kube.kubeconfig import UserAccess
from agent.kube.plan import PlanResource
from agent.kube.pod_resources import parse_answer
from agent.kube.pods import PodStore
from agent.kube.traffic import Subject
from agent.kube.watch import Watch
from agent.model.address import parse_address
from agent.model.cpuset import CpuListError, CpuSet
from agent.model.pods import pod_from_manifest
from agent.model.reason import Reason, Refused
from agent.model.spec import Spec
from agent.model.workload import Pod, ProcessId
from agent.node import cgroup_paths, devices, irq, listing, memory, numa_stat, prerequisites, proc_messages, taskstats
from agent.node.cgroups import CgroupTree, own_cgroup
from agent.node.documents import parse_json
from agent.node.files import read_text
from agent.node.irqbalance import _MAX_ANSWER, Irqbalance, parse_setup
from agent.node.kubelet import read_cpu_manager_state
from agent.node.npu_smi.board import parse_board
from agent.node.npu_smi.command import RecordedNpuSmi
from agent.node.npu_smi.info import parse_info
from agent.node.npu_smi.inventory import read_inventory
from agent.node.npu_smi.mapping import parse_mapping
from agent.node.npu_smi.topo import parse_topo
from agent.node.proc_table import ProcTable
from agent.node.procfs import ProcFs, boot_id, parse_stat
from agent.node.recorded import ProcStatusHost
from agent.node.snapshot import open_snapshot
from agent.node.strangers import _maker
from agent.node.switches import Counted, SwitchCounter
from agent.node.sysfs import read_topology
from agent.node.taskdir import TaskDir
from agent.node.uvb import UvbThreads
from agent.planning.optin import CONTAINERS, invalid_annotation, opted_in, steps_of
from agent.planning.validation import parse_spec
from agent.settings import load_settings
from tests.fuzz import seeds

Take = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Target:
    """A parser, and what is known of its input."""

    take: Take
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    errors: tuple[type[Exception], ...] = (Refused,)
    floods: Mapping[str, Callable[[int], bytes]] = field(default_factory=dict)
    """Inputs of so many bytes that are bad for just this parser."""


# --- how bytes come to a reader ---------------------------------------------------------------------------------------


# Made by the process that imports this, and by none of its forks: these end without removing anything.
_PLACES = Path(tempfile.mkdtemp(prefix="cpubind-fuzz-", dir=scratch()))
_OWNER = os.getpid()
_numbers = itertools.count()


@atexit.register
def _remove() -> None:
    if os.getpid() == _OWNER:
        shutil.rmtree(_PLACES, ignore_errors=True)


def through(name: str, read: Callable[[Path], object], *, beside: Mapping[str, str] | None = None) -> Take:
    """Writes the bytes to the file `name` of a host tree with the files `beside`, and has that read."""

    root = _PLACES / str(next(_numbers))

    def take(data: bytes) -> object:
        path = root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            for other, text in (beside or {}).items():
                (root / other).parent.mkdir(parents=True, exist_ok=True)
                (root / other).write_text(text)
        path.write_bytes(data)
        return read(root)

    return take


def text(parse: Callable[[str], object]) -> Take:
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def from_json(take: Callable[[Any], object]) -> Take:
    """What a JSON document holds: of a snapshot, say, or of the API server, whose answers have no limit but its own."""

    def parse(data: bytes) -> object:
        try:
            document = parse_json(data.decode(errors="replace"), "it", Reason.STATE_UNREADABLE)
        except Refused:
            return None
        return take(document)

    return parse


def table(query: str, parse: Callable[[str], object]) -> Take:
    """An output of npu-smi, as a snapshot replays it."""
    args = query.split()
    name = "-".join(arg.lstrip("-") for arg in args)
    return through(f"npu-smi/{name}.txt", lambda root: parse(RecordedNpuSmi(root).query(*args)))


# --- parsers that need more than one call -----------------------------------------------------------------------------

TABLES = ("info", "info-m", "info-t-topo", "info-t-board-i-0-c-0")


def _inventory(data: bytes) -> object:
    """All tables of a node, with form feeds between them."""
    root = _PLACES / "inventory"
    (root / "npu-smi").mkdir(parents=True, exist_ok=True)
    for name, part in zip(TABLES, data.split(b"\f", len(TABLES) - 1) + [b""] * len(TABLES), strict=False):
        (root / f"npu-smi/{name}.txt").write_bytes(part)
    return read_inventory(RecordedNpuSmi(root), {0: (236, 0)})


def _identity(root: Path) -> object:
    tree = CgroupTree(root, own="/kubepods.slice/a/b")
    return tree.identity(7), tree.process_cpus(7), tree.root_cpus()


def _messages(data: bytes) -> object:
    for message in proc_messages.parse(data):
        proc_messages.child_of(message[4])
        proc_messages.comm_of(message[4])
    return proc_messages.one(bytearray(data[:100]), len(data[:100]))


def _tasks(root: Path) -> object:
    (root / "proc/7/task/7").mkdir(parents=True, exist_ok=True)
    tasks = TaskDir.open(f"{root}/proc", 7)
    if tasks is None:
        return None
    with tasks:
        return tasks.entries(), tasks.comms([7, 8]), tasks.alive()


def _switches(root: Path) -> object:
    stat = ProcFs(root).stat(7)
    assert stat is not None
    counter: SwitchCounter[bytes] = SwitchCounter(root)
    counter.look([Counted(ProcessId(7, stat.start_time), lambda comm: comm)])
    return counter.totals


def _state(root: Path) -> object:
    return parse_spec(StateFile(root / "plan.yaml").spec())


def _snapshot(path: Path) -> object:
    with open_snapshot(path) as snapshot:
        return snapshot.pods, snapshot.pod_resources, snapshot.problems


def _pod(document: Any) -> object:
    pod = pod_from_manifest(document)
    opted_in(pod, "vllm")
    return steps_of(pod, "vllm", Spec())


def _annotation(value: str) -> object:
    pod = Pod("", "prod", "llm-0", annotations={CONTAINERS: value})
    return invalid_annotation(pod), opted_in(pod, "vllm")


def _watched(document: Any) -> object:
    """An event of a watch, handed to the mirrors; then what the agent's loop reads of them."""
    pods = PodStore(lambda: None)
    plans = PlanResource("a3-0", pods_listed=lambda: True, changed=lambda: None)
    subject = Subject("cpubind.dev", "v1alpha1", "cpubindingplans", "CpuBindingPlan", "")
    for take in (pods.apply, plans.apply):
        watch = Watch(subject, Access("https://x", Path()), listed=lambda _: None, event=take)
        with contextlib.suppress(TypeError, AttributeError, KeyError, ValueError):  # such an event ends the operator
            watch._take(document)
    for manifest in pods.pods():
        opted_in(manifest, "vllm")
    with contextlib.suppress(Refused):
        parse_spec(plans.spec())
    return plans.own, plans.generation, plans.both()


def _listed(document: Any) -> object:
    pods = PodStore(lambda: None)
    subject = Subject("", "v1", "pods", "Pod", "")
    watch = Watch(subject, Access("https://x", Path()), listed=pods.replace, event=pods.apply)
    watch._traffic._take_list(document)
    return pods.pods()


class _Answer:
    """A refusal of the API server, as urllib3 has it."""

    def __init__(self, body: str) -> None:
        self.status, self.reason, self.body, self.headers = 422, "Unprocessable", body, {"Retry-After": body[:20]}


def _environment(data: bytes) -> object:
    """Variables, one a line, as the kernel would hand them over."""
    before = dict(os.environb)
    try:
        for line in data[: 1 << 17].replace(b"\0", b"").split(b"\n", 50)[:50]:
            name, _, value = line.partition(b"=")
            if name:
                os.environb[b"CPUBIND_" + name] = value
        settings = load_settings({})
        return settings.spec()
    finally:
        for name in set(os.environb) - set(before):
            del os.environb[name]


def _listing(data: bytes) -> object:
    return listing.parse(data), listing.parse(data, dots=False)


def _prerequisites(root: Path) -> object:
    lock = root / "lock"
    lock.touch()
    return prerequisites.lock_holder(root, lock)


ARGUMENT = 1 << 17
"""Bytes that the kernel takes of one argument or variable (MAX_ARG_STRLEN)."""
STAT = "7 (x) S 1 " + "0 " * 17 + "99 0\n"

TARGETS: Mapping[str, Target] = {
    # npu-smi
    "npu-smi-info": Target(table("info", parse_info), seeds.INFO, seeds.TABLE),
    "npu-smi-map": Target(table("info -m", parse_mapping), seeds.of("map"), seeds.TABLE),
    "npu-smi-topo": Target(table("info -t topo", parse_topo), seeds.of("topo"), seeds.TABLE),
    "npu-smi-board": Target(table("info -t board -i 0 -c 1", parse_board), seeds.of("board"), seeds.TABLE),
    "npu-smi-status": Target(
        through("npu-smi/info.rc", lambda root: RecordedNpuSmi(root).query("info"), beside={"npu-smi/info.txt": "x\n"}),
        (b"1\n", b"-9", b"0"),
    ),
    "npu-smi-inventory": Target(_inventory, seeds.INVENTORIES, seeds.TABLE),
    # CPUs
    "cpu-list": Target(text(CpuSet.parse), seeds.CPU_LISTS, seeds.CPUS, (CpuListError,), seeds.CPU_FLOODS),
    "cpu-mask": Target(text(CpuSet.parse_mask), seeds.CPU_MASKS, seeds.CPUS, (CpuListError,), seeds.CPU_FLOODS),
    "cpus-online": Target(
        through("sys/devices/system/cpu/online", lambda root: read_topology(root, architecture="aarch64")),
        seeds.CPU_LISTS,
        seeds.CPUS,
    ),
    "cpus-of-node": Target(
        through(
            "sys/devices/system/node/node1/cpulist",
            lambda root: read_topology(root, architecture="aarch64"),
            beside={"sys/devices/system/node/node1/cpu3/online": "1\n"},
        ),
        seeds.CPU_LISTS,
        seeds.CPUS,
    ),
    "cpus-of-core": Target(
        through(
            "sys/devices/system/cpu/cpu1/topology/core_cpus_list",
            lambda root: read_topology(root, architecture="aarch64"),
            beside={"sys/devices/system/cpu/online": "0-3\n"},
        ),
        seeds.CPU_LISTS,
        seeds.CPUS,
    ),
    # cgroups
    "cgroup": Target(
        through("proc/7/cgroup", _identity, beside={"sys/fs/cgroup/kubepods.slice/cpuset.cpus.effective": "0-3\n"}),
        seeds.of("cgroup"),
        seeds.CGROUP,
        floods=seeds.CGROUP_FLOODS,
    ),
    "cgroup-own": Target(through("proc/1/cgroup", own_cgroup), seeds.of("cgroup"), seeds.CGROUP),
    "cgroup-of-the-host": Target(
        through("proc/7/cgroup", lambda root: UvbThreads(root, CgroupTree(root)).scan(), beside={"proc/7/stat": STAT}),
        seeds.of("cgroup"),
        seeds.CGROUP,
        floods=seeds.CGROUP_FLOODS,
    ),
    "cgroup-path": Target(
        text(lambda path: cgroup_paths.identify(path[: cgroup_paths.LONGEST_PATH])), seeds.PATHS, seeds.CGROUP
    ),
    "cpuset": Target(
        through("sys/fs/cgroup/cpuset.cpus.effective", lambda root: CgroupTree(root).effective_cpus("/a/b")),
        seeds.CPU_LISTS,
        seeds.CPUS,
    ),
    "numa-stat": Target(
        through("sys/fs/cgroup/memory.numa_stat", lambda root: numa_stat.anonymous_memory(root, "/")), seeds.NUMA_STAT
    ),
    "numa-stat-v1": Target(
        through("sys/fs/cgroup/memory/memory.numa_stat", lambda root: numa_stat.anonymous_memory(root, "/")),
        seeds.NUMA_STAT,
    ),
    # processes
    "stat": Target(through("proc/7/stat", lambda root: ProcFs(root).stat(7)), seeds.STATS, seeds.PROC),
    "stat-text": Target(text(parse_stat), seeds.STATS, seeds.PROC),
    "stat-of-all": Target(through("proc/7/stat", lambda root: ProcTable(root).read()), seeds.STATS, seeds.PROC),
    "stat-of-threads": Target(through("proc/7/stat", _tasks), seeds.STATS, seeds.PROC),
    "status": Target(through("proc/7/status", lambda root: ProcFs(root).status(7)), seeds.STATUSES, seeds.PROC),
    "status-maker": Target(
        through("proc/7/status", lambda root: _maker(f"{root}/proc", 7)), seeds.STATUSES, seeds.PROC
    ),
    "status-memory": Target(
        through("proc/7/status", lambda root: memory.read_account(root, 7)), seeds.STATUSES, seeds.PROC
    ),
    "status-mask": Target(
        through("proc/7/status", lambda root: ProcStatusHost(root / "proc", 7).get_affinity(7)),
        seeds.STATUSES,
        seeds.PROC,
        (Refused, ProcessLookupError),
    ),
    "status-switches": Target(
        through("proc/7/task/7/status", _switches, beside={"proc/7/stat": STAT}), seeds.STATUSES, seeds.PROC
    ),
    "comm": Target(through("proc/7/comm", lambda root: ProcFs(root).comm(7)), (b"VLLM::Worker\n",)),
    "open-devices": Target(
        through("proc/7/fd", lambda root: ProcFs(root).device_files(7)), (b"3 236:0\n17 236:1\n",), (b":", b" ", b"\n")
    ),
    "devices-of-root": Target(
        through("proc/7/root/dev/davinci", lambda root: ProcFs(root).root_devices(7, {0: (236, 0)})),
        (b"0 236:0\n1 236:1\n",),
    ),
    "davinci": Target(through("dev/davinci", devices.read_davinci), (b"0 236:0\n1 236:1\n",), (b":", b" ", b"\n")),
    "pci-vendor": Target(
        through(
            "sys/bus/pci/devices/0000:c1:00.0/vendor",
            devices.has_npu,
            beside={"sys/bus/pci/devices/0000:c1:00.0/class": "0x120000\n"},
        ),
        (b"0x19e5\n",),
    ),
    "maps": Target(
        through("proc/7/maps", lambda root: memory.read_ranges(root, 7)),
        (seeds.MAPS,),
        seeds.PROC,
        floods=seeds.MAPS_FLOODS,
    ),
    "meminfo": Target(
        through("sys/devices/system/node/node0/meminfo", lambda root: memory.free_memory(root, 0)), (seeds.MEMINFO,)
    ),
    "meminfo-of-topology": Target(
        through(
            "sys/devices/system/node/node0/meminfo",
            lambda root: read_topology(root, architecture="aarch64"),
            beside={"sys/devices/system/node/node0/cpulist": "0-3\n"},
        ),
        (seeds.MEMINFO,),
    ),
    "kernel": Target(
        through(
            "proc/sys/kernel/osrelease",
            lambda root: (
                memory.balancing_hides_pages(root),
                prerequisites.version(prerequisites.release(root)),
                prerequisites.numa_balancing(root),
            ),
            beside={"proc/sys/kernel/numa_balancing": "1\n"},
        ),
        (b"6.6.0-72.oe2403.aarch64\n", b"5.10.0\n"),
    ),
    "huge-page": Target(
        through("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", memory._huge_page), (b"2097152\n",)
    ),
    "boot-id": Target(through("proc/sys/kernel/random/boot_id", boot_id), (b"3d6a1f5e-8f3a-4c43-9a9d-5f6e0c1b2a3d\n",)),
    "locks": Target(
        through("proc/locks", _prerequisites), (b"1: FLOCK  ADVISORY  WRITE 812 00:19:1234 0 EOF\n",), seeds.PROC
    ),
    "cpubind-lock": Target(
        through("lock", lambda root: read_text(root / "lock", Reason.STATE_UNREADABLE, limit=4096)),
        (b"cpubind 4711\n",),
    ),
    # interrupts
    "interrupts": Target(
        through("proc/interrupts", lambda root: irq.ActionNames(root).of([2753])),
        seeds.of("interrupts"),
        (b": ", b"  ", b"\n", b"2753:"),
        floods=seeds.INTERRUPTS_FLOODS,
    ),
    "irq-actions": Target(
        through("sys/kernel/irq/2753/actions", lambda root: irq.ActionNames(root).of([2753])),
        (b"sq_send_trigger_irq\n", b"a,b\n"),
    ),
    "irq-affinity": Target(
        through("proc/irq/2753/smp_affinity_list", lambda root: irq.read_affinity(root, 2753)),
        seeds.CPU_LISTS,
        seeds.CPUS,
    ),
    "pci-address": Target(text(irq.sysfs_address), (b"0000:C1:00.0",)),
    "irqbalance-setup": Target(
        lambda data: parse_setup(data[:_MAX_ANSWER]), seeds.IRQBALANCE, (b"IRQ ", b"BANNED ", b"SLEEP ")
    ),
    "irqbalance-command": Target(
        through("proc/7/cmdline", lambda root: Irqbalance(root).banned_modules(ProcessId(7, 1))),
        (b"/usr/sbin/irqbalance\0--foreground\0--banmod=nvme\0-m\0mlx5\0",),
        (b"\0", b"-m", b"--banmod="),
    ),
    # the kernel's sockets and listings
    "process-events": Target(_messages, seeds.PROC_EVENTS, floods=seeds.PROC_EVENT_FLOODS),
    "taskstats-family": Target(lambda data: taskstats._family(data[:8192]), seeds.TASKSTATS, errors=(ValueError,)),
    "listing": Target(_listing, seeds.LISTINGS, errors=(OSError, ValueError, IndexError, seeds.StructError)),
    # kubelet
    "cpu-manager-state": Target(
        through("var/lib/kubelet/cpu_manager_state", read_cpu_manager_state), seeds.CPU_MANAGER, seeds.JSON
    ),
    "pod-resources": Target(parse_answer, seeds.POD_RESOURCES, floods=seeds.WIRE_FLOODS),
    # snapshots, and the agent's own files
    "snapshot-json": Target(through("snapshot.json", _snapshot), seeds.SNAPSHOT_JSON, seeds.JSON),
    "snapshot-pod-resources": Target(
        through("pod-resources.json", _snapshot, beside={"snapshot.json": '{"version":1}'}),
        seeds.POD_RESOURCES_JSON,
        seeds.JSON,
    ),
    "snapshot-archive": Target(
        through("s.tar.gz", lambda root: _snapshot(root / "s.tar.gz")), seeds.ARCHIVES, seeds.TAR
    ),
    "journal": Target(
        through(
            "journal.json",
            lambda root: parse_journal(read_text(root / "journal.json", Reason.STATE_UNREADABLE, limit=16 << 20) or ""),
        ),
        seeds.JOURNALS,
        seeds.JSON,
    ),
    "state-file": Target(through("plan.yaml", _state), seeds.PLANS, seeds.YAML, floods=seeds.YAML_FLOODS),
    # what people and the API server say
    "spec": Target(from_json(parse_spec), seeds.SPECS, seeds.JSON),
    "pod": Target(from_json(_pod), seeds.PODS, seeds.JSON, ()),
    "annotation": Target(text(_annotation), (b"vllm, side-car", b"true"), (b",", b" ", b"-", b"a"), ()),
    "pods-listed": Target(
        from_json(_listed),
        seeds.POD_LISTS,
        seeds.JSON,
        (Refused, ValueError, TypeError, KeyError, AttributeError),
    ),
    "watched": Target(from_json(_watched), seeds.WATCHED, seeds.JSON, ()),
    "api-refusal": Target(text(lambda body: str(_refusal(_Answer(body), "x"))), seeds.STATUS, seeds.JSON, ()),  # type: ignore[arg-type]
    "kubeconfig": Target(
        through("config", lambda root: UserAccess(str(root / "config"))), seeds.KUBECONFIGS, seeds.YAML
    ),
    "environment": Target(_environment, seeds.ENVIRONMENTS, (b"=", b"\n", b"0-3", b"true", b":")),
    "select": Target(
        text(lambda line: chooser([line[:ARGUMENT]])),
        (b"comm=VLLM*", b"npu=0-3", b"pid=4711"),
        (b"pid=", b"uid=", b"npu="),
    ),
    "address": Target(
        text(lambda address: parse_address(address[:ARGUMENT])), (b"127.0.0.1:8086", b"[::1]:8086", b":8086", b"off")
    ),
    "service-token": Target(
        through("token", lambda root: Access("https://x", root).token()), (b"eyJhbGciOiJSUzI1NiJ9.e30.x\n",)
    ),
}

UNGUIDED = frozenset({"kubeconfig"})
"""Not for a fuzzer that finds out what a parser compares with: a kubeconfig may name a program that is run."""


def check(target: Target, data: bytes) -> bool:
    """Whether a parser reads this; it may refuse it, in one short printable line, and do nothing else."""
    try:
        target.take(data)
    except target.errors as error:
        said = error.message if isinstance(error, Refused) else ""
    else:
        return True
    assert said.isprintable(), f"not for a log: {said!r}"
    assert len(said.encode("utf-8", "replace")) <= 256
    return False
