"""What the agent needs of its host and of its own process, as `doctor` checks it. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent.cli.checks import Check, failed, good, lacking
from agent.cli.cluster import pod_resources
from agent.cli.options import JOURNAL, LOCK, npu_smi_of, read_journal
from agent.cli.run import check_kernel
from agent.model.reason import Reason, Refused
from agent.model.remedies import REMEDIES
from agent.model.spec import Spec
from agent.node import prerequisites
from agent.node.capabilities import NEEDS, Capability, capabilities
from agent.node.cgroups import CgroupTree
from agent.node.devices import has_npu, read_davinci
from agent.node.irqbalance import Irqbalance
from agent.node.kubelet import STATE, read_cpu_manager_state
from agent.node.npu_smi.inventory import read_inventory
from agent.node.proc_events import ProcEvents
from agent.node.sysfs import read_topology
from agent.planning.plan import ARM64, needs_affinity
from agent.settings import Settings

NOBODY = "nobody is bound on this node"
PRIVILEGED = "run as root; in a pod the chart's profile, privileged or restricted, or securityContext.capabilities.add"
_UNANSWERED = (
    "an agent that had an answer before keeps what is bound, and finds new workers by their open devices; one that "
    "never had any binds nobody"
)
_FOLDERS = ("proc", "sys/devices/system/cpu", "sys/devices/system/node", "dev")


def host_checks(settings: Settings, spec: Spec) -> Iterator[Check]:
    """Every prerequisite below the host root, the gravest first, each as soon as it was looked at. What `spec`, that of
    the agent, does without is not missing."""
    root = settings.host_root
    live = False
    try:
        check_kernel(root)
        live = True
        yield good("kernel", f"Linux {prerequisites.release(root)}, and {root / 'proc'} is of this PID namespace")
    except Refused as refused:
        yield failed(
            "kernel",
            refused.problem,
            without=NOBODY,
            fix="run on the host, or in a pod with hostPID and the host's /proc below --host-root (the chart does)",
        )
    events = _events(root) if live else None
    yield from _namespaces()
    yield _network(root, events)
    yield from _capabilities()
    yield from _mounts(root, spec)
    yield _architecture(settings, spec)
    yield from _npus(settings, spec)
    yield from _files(settings)
    if events is not None:
        yield events
    yield _taskstats()
    yield _irqbalance(root, spec)
    yield _memory(root, spec)
    yield from _kubelet(root)


def _namespaces() -> Iterator[Check]:
    for kind, without, fix in (
        ("pid", "pids of npu-smi and of the kernel's events name other processes", "hostPID: true (the chart sets it)"),
        ("user", "capabilities count for nothing outside of it", "hostUsers: true, or run outside of a user namespace"),
    ):
        match prerequisites.in_initial(kind):
            case True:
                yield good(f"{kind} namespace", "the one that the kernel started with")
            case False:
                yield lacking(f"{kind} namespace", "one of its own", without=without, fix=fix)
            case None:
                yield lacking(f"{kind} namespace", f"/proc/self/ns/{kind} cannot be read", without=without, fix=fix)


def _network(root: Path, events: Check | None) -> Check:
    """What the host's is needed for is the socket of events: where one was had nothing is missing, whatever the rights.
    `events` is None where it was not tried."""
    name = "network namespace"
    same = prerequisites.in_host_network(root)
    if same:
        return good(name, "the host's")
    if events is not None and events.result == "ok":
        own = "one of its own; the host's is entered for one socket, that of events"
        return good(name, "cannot be seen from here; the socket of events is in the host's" if same is None else own)
    if {Capability.SYS_ADMIN, Capability.SYS_PTRACE} <= capabilities():
        return good(
            name, "cannot be seen from here" if same is None else "one of its own; there is a way to the host's"
        )
    return lacking(
        name,
        "one of its own, and the host's cannot be entered" if same is False else "the host's cannot be seen",
        without="no process events: new threads are put in place by the next sweep (5 s), not at once",
        fix=f"hostNetwork=true, or SYS_ADMIN and SYS_PTRACE: {PRIVILEGED}",
    )


def _capabilities() -> Iterator[Check]:
    held = capabilities()
    for one, need in NEEDS.items():
        name, without = f"CAP_{one.name}", need.without
        if one in held:
            yield good(name, "in effect")
        elif one is Capability.SYS_NICE:
            yield failed(name, "not in effect", without=without, fix=PRIVILEGED)
        else:
            yield lacking(name, "not in effect", without=without, fix=PRIVILEGED)


def _mounts(root: Path, spec: Spec) -> Iterator[Check]:
    if missing := prerequisites.unreadable(root, _FOLDERS):
        fix = f"mount the host's /proc, /sys and /dev below {root} (--host-root)"
        yield failed("mounts", f"not there: {', '.join(missing)}", without=NOBODY, fix=fix)
    else:
        yield good("mounts", f"/proc, /sys and /dev are below {root}")
    try:
        topology = read_topology(root)
        yield good("topology", f"{len(topology.online)} CPUs in {len(topology.nodes)} NUMA nodes")
    except Refused as refused:
        yield failed("topology", refused.problem, without=NOBODY, fix="mount the host's /sys below the host root")
    mount = CgroupTree(root).mount
    if mount is None:
        yield failed(
            "cgroups",
            f"no cpuset hierarchy below {root}/sys/fs/cgroup",
            without="the CPUs of containers are not known: nobody is bound",
            fix="mount the host's /sys/fs/cgroup below the host root; on cgroup v2 the cpuset controller must be on",
        )
    else:
        yield good("cgroups", f"{mount[1]}, cpusets are read from {mount[0]}")
    if not spec.irq_binding:
        yield good("interrupts", "irqBinding is false: they are left alone")
    elif why := prerequisites.interrupts_unwritable(root):
        yield lacking(
            "interrupts",
            f"/proc/irq cannot be written: {why}",
            without="interrupts of the NPUs stay where they are (IrqReadOnly); threads are bound all the same",
            fix="run as root; in a pod mount the host's /proc writable (its own /proc/irq is read-only)",
        )
    else:
        yield good("interrupts", f"{root / 'proc/irq'} can be written")


def _architecture(settings: Settings, spec: Spec) -> Check:
    if settings.architecture in ARM64 or spec.allow_any_architecture:
        return good("architecture", settings.architecture)
    return failed(
        "architecture",
        f"{settings.architecture} ({Reason.UNSUPPORTED_ARCHITECTURE})",
        without=NOBODY,
        fix="nothing, if this is no ARM64 machine; allowAnyArchitecture: true binds all the same",
    )


def _npus(settings: Settings, spec: Spec) -> Iterator[Check]:
    root = settings.host_root
    try:
        count = len(read_davinci(root))
    except Refused as refused:
        yield failed("NPUs", refused.problem, without=NOBODY, fix="mount the host's /dev below the host root")
        return
    if has_npu(root):
        yield good("NPUs", f"{count} device files /dev/davinciN")
    else:
        yield lacking(
            "NPUs",
            "no /dev/davinciN and no PCI function 19e5 of class 1200",
            without="the agent idles, and looks again every 10 minutes",
            fix="is the driver loaded? lsmod | grep drv_davinci. A node without NPUs needs no agent",
        )
    npu_smi = npu_smi_of(settings)
    try:
        reading = read_inventory(
            npu_smi,
            read_davinci(root),
            override=spec.device_type,
            needs_affinity=lambda device: needs_affinity(spec, device),
        )
        driver = f", driver {reading.driver_version}" if reading.driver_version else ""
        yield good("npu-smi", f"{len(reading.inventory.npus)} NPUs, {reading.inventory.device_type.value}{driver}")
        for note in reading.notes:
            fix = REMEDIES.get(note.reason, "run npu-smi info")
            yield lacking("npu-smi", str(note), without="see its reason in docs/conditions.md", fix=fix)
    except Refused as refused:
        yield failed("npu-smi", refused.problem, without=_UNANSWERED, fix=REMEDIES.get(refused.reason, ""))
    finally:
        npu_smi.close()


def _files(settings: Settings) -> Iterator[Check]:
    root = settings.host_root
    journal = settings.journal_file or root / JOURNAL
    without = "after a restart it would not be known who is bound, and what was there before cannot be given back"
    _, damage = read_journal(settings)
    if why := prerequisites.unwritable(journal):
        fix = "run as root; in a pod mount the host's /var/lib/cpubind writable"
        yield lacking("journal", f"{journal} cannot be written: {why}", without=without, fix=fix)
    elif prerequisites.full(journal):
        yield lacking("journal", f"{journal}: the disk is full", without=without, fix="make room for 1 MB")
    elif damage is not None:
        fix = "nothing: the agent sets it aside and starts a new one"
        yield lacking("journal", f"{journal}: {damage}", without=without, fix=fix)
    else:
        yield good("journal", f"{journal} can be written")
    lock = settings.lock_file or root / LOCK
    holder = prerequisites.lock_holder(root, lock)
    if holder:
        yield good("lock", f"an agent acts on this host: {holder}")
    elif why := prerequisites.unwritable(lock):
        fix = "run as root; in a pod mount the host's /run/cpubind writable"
        yield failed("lock", f"{lock} cannot be made: {why}", without="the agent does not start", fix=fix)
    else:
        yield good("lock", f"nobody holds {lock}: no agent acts on this host now")


def _events(root: Path) -> Check:
    try:
        ProcEvents.of_host(root).close()
    except Refused as refused:
        return lacking(
            "events",
            refused.message,
            without="new threads are put in place by the next sweep (5 s), not at once",
            fix="the kernel needs CONFIG_PROC_EVENTS; the pod hostPID, and hostNetwork or SYS_ADMIN and SYS_PTRACE",
        )
    return good("events", "the kernel tells of new threads")


def _taskstats() -> Check:
    if why := prerequisites.taskstats():
        return lacking(
            "taskstats",
            why,
            without="names of threads are read from /proc one by one: the same result, slower",
            fix=f"CAP_NET_ADMIN: {PRIVILEGED}",
        )
    return good("taskstats", "names of threads can be asked for in bulk")


def _irqbalance(root: Path, spec: Spec) -> Check:
    balancer = Irqbalance(root)
    process = balancer.find()
    if process is None:
        return good("irqbalance", "does not run")
    if not spec.irq_binding:
        return good("irqbalance", f"runs (pid {process.pid}); irqBinding is false")
    try:
        banned = balancer.bans(process)
    except Refused as refused:
        return lacking(
            "irqbalance",
            refused.message,
            without="it moves the interrupts of NPUs back, and they are put in place again by each sweep",
            fix="mount the host's /run/irqbalance; or add --banmod=MODULE, the driver's module, to IRQBALANCE_ARGS",
        )
    return good("irqbalance", f"runs (pid {process.pid}), answers, and leaves {len(banned)} interrupts alone")


def _memory(root: Path, spec: Spec) -> Check:
    without = "memory of workers stays where it was allocated; threads are bound all the same"
    if not spec.memory_migration:
        return good("memory", "memoryMigration is false: it is left where it is")
    if why := prerequisites.pages_unmovable():
        fix = "a kernel with CONFIG_MIGRATION, a seccomp profile that allows move_pages; or memoryMigration: false"
        return lacking("memory", why, without=without, fix=fix)
    old = (6, 1) <= prerequisites.version(prerequisites.release(root)) <= (6, 5)
    if old and prerequisites.numa_balancing(root):
        said = "kernel.numa_balancing is on, which on Linux 6.1 to 6.5 hides pages from being moved (NumaBalancing)"
        return lacking("memory", said, without=without, fix="sysctl -w kernel.numa_balancing=0")
    return good("memory", "the kernel moves pages between NUMA nodes")


def _kubelet(root: Path) -> Iterator[Check]:
    without = "a container that owns its CPUs is told by its QoS class and cpuset alone, and later"
    try:
        policy, grants = read_cpu_manager_state(root)
    except Refused as refused:
        fix = f"is {root / STATE} kubelet's? set kubelet.rootDir of the chart"
        yield lacking("kubelet", str(refused.problem), without=without, fix=fix)
        return
    if not policy:
        yield good("kubelet", f"no {root / STATE}: no kubelet here, or with another --root-dir (kubelet.rootDir)")
        return
    if policy == "static":
        yield good("kubelet", f"CPU manager policy static; {len(grants)} containers own their CPUs")
    else:
        yield good("kubelet", f"CPU manager policy {policy}: no container owns its CPUs, all share one domain")
        return
    from agent.kube.pod_resources import SOCKET  # noqa: PLC0415 - grpc takes its time to import

    without = "which NPUs kubelet gave to a container is told by the devices in it alone"
    fix = "mount the host's /var/lib/kubelet/pod-resources (kubelet.rootDir of the chart)"
    if not (root / SOCKET).exists():
        yield lacking("pod-resources", f"no socket {root / SOCKET}", without=without, fix=fix)
        return
    resources, problem = pod_resources(root)
    if problem is not None:
        yield lacking("pod-resources", problem.message, without=without, fix=fix)
    else:
        yield good("pod-resources", f"kubelet's socket lists {len(resources)} containers")
