"""Options that several commands share, and what is made from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from agent.cli.cluster import View
from agent.control.journal import Journal
from agent.control.journal_file import MAX_BYTES, parse
from agent.control.observe import Choice, Chooser, Observer, everything
from agent.control.statefile import StateFile
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.spec import Spec
from agent.model.workload import KubeletState, Pod
from agent.node.files import read_text
from agent.node.kubelet import read_cpu_manager_state
from agent.node.npu_smi.command import NpuSmi, NpuSmiCommand, RecordedNpuSmi
from agent.node.procfs import boot_id
from agent.node.snapshot import Snapshot, open_snapshot
from agent.planning.validation import parse_spec, spec_fields
from agent.settings import SPEC_SETTINGS, Settings, load_settings

JOURNAL = Path("var/lib/cpubind/journal.json")
STATE = Path("var/lib/cpubind/plan.yaml")
LOCK = Path("run/cpubind/lock")
"""Files of the agent, below the host root."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _all(options: list[Callable[[Any], Any]]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def words(*known: str) -> Complete:
    """What the shell offers for an option that takes one of these words. They are checked where settings are."""
    return lambda _context, _option, begun: [CompletionItem(word) for word in known if word.startswith(begun)]


def paths(kind: str) -> Complete:
    """The shell's own completion of a "file" or a "dir"."""
    return lambda _context, _option, begun: [CompletionItem(begun, type=kind)]


host_options = _all(
    [
        click.option(
            "--host-root",
            metavar="DIR",
            shell_complete=paths("dir"),
            help="Root folder of the host: / or where a container mounts it.",
        ),
        click.option(
            "--npu-smi",
            metavar="PATH",
            shell_complete=paths("file"),
            help="npu-smi to run. Default: npu-smi on the PATH.",
        ),
        click.option("--npu-smi-timeout", type=float, metavar="SECONDS", help="Limit for one query. Default: 10."),
        click.option(
            "--npu-smi-library-path", metavar="PATHS", help="LD_LIBRARY_PATH for npu-smi, where it needs the driver's."
        ),
        click.option("--node-name", metavar="NAME", help="Name of the plan. Default: the host's name."),
        click.option("--architecture", metavar="NAME", help="As `uname -m` prints it. Default: this machine's."),
    ]
)

spec_options = _all(
    [
        click.option(
            "--mode",
            metavar="NAME",
            shell_complete=words("Enforce", "DryRun", "Disabled"),
            help="Enforce, DryRun or Disabled. Default: Enforce.",
        ),
        click.option(
            "--strategy",
            metavar="NAME",
            shell_complete=words("Auto", "GlobalSlice", "TopoAffinity", "NumaSlice"),
            help="Auto, GlobalSlice, TopoAffinity or NumaSlice. Default: Auto.",
        ),
        click.option(
            "--device-type",
            metavar="NAME",
            shell_complete=words("Auto", "A2", "A3", "Atlas300I", "Ascend950"),
            help="Auto, A2, A3, Atlas300I or Ascend950. Default: Auto.",
        ),
        click.option("--reserved-cpus", metavar="LIST", help='CPUs to keep out of every pool, such as "0-3,8".'),
        click.option(
            "--include-isolated-cpus/--exclude-isolated-cpus", default=None, help="Plan with isolcpus= CPUs, too."
        ),
        click.option(
            "--rebalance",
            metavar="WHEN",
            shell_complete=words("Never", "OnGrow"),
            help="Cut anew when CPUs come back: Never or OnGrow. Default: Never.",
        ),
        click.option(
            "--thread-rule",
            "thread_rule",
            multiple=True,
            metavar="PREFIX=ROLE",
            help="Threads whose name starts so belong to main, acl or release. Can be given several times.",
        ),
        click.option(
            "--allow-any-architecture/--arm64-only",
            default=None,
            help="Plan and bind on other machines than ARM64, too.",
        ),
    ]
)

snapshot_option = click.option(
    "--snapshot",
    envvar="CPUBIND_SNAPSHOT",
    type=click.Path(path_type=Path),
    metavar="DIR|TAR",
    help="Read what `cpubind capture` wrote instead.",
)

select_option = click.option(
    "--select",
    "selects",
    envvar="CPUBIND_SELECT",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=words("pid=", "uid=", "comm=", "cgroup=", "npu="),
    help="Bind only these NPU processes: pid=4711, uid=1000, comm=VLLM*, cgroup=*/docker*, npu=0-3. "
    "Several of one key: any of them; several keys: all of them.",
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a single look reads from: this host, or a snapshot."""

    observer: Observer
    npu_smi: NpuSmi
    node: str
    journal: Journal
    pods: tuple[Pod, ...] = ()
    problems: tuple[Problem, ...] = ()
    """What beside the node itself could not be read."""
    live: bool = False
    """Whether it is this host, now."""
    accepted: Spec | None = None
    """What the agent goes by where `spec` cannot be used."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """`status` as the agent wrote it last; empty where it wrote none."""
    spec: Spec | None = None
    """What people asked for where a snapshot was taken, with flags on top; None where that is not recorded."""


def settings_from(flags: dict[str, Any]) -> Settings:
    """Settings, checked; `Refused` with one line where one can't be used."""
    settings = load_settings({name: None if value == () else value for name, value in flags.items()})
    settings.spec()
    return settings


def npu_smi_of(settings: Settings) -> NpuSmiCommand:
    """npu-smi as the settings say."""
    return NpuSmiCommand(settings.npu_smi, settings.npu_smi_timeout, library_path=settings.npu_smi_library_path)


def spec_in_force(
    settings: Settings, *, live: bool, view: View | None = None
) -> tuple[Spec, dict[str, Any], tuple[Problem, ...]]:
    """The spec for a look, `spec` as people wrote it, and why the state file or the plan could not be used.

    On a live host the agent follows `spec` in its state file, in a cluster that of its plan, and the last one that it
    accepted where that can't be used. So a look does, too; flags ask "what if" on top.
    """
    environment = _environment(settings)
    if not live:
        return settings.spec(environment), {}, ()
    held = last_accepted(settings)
    if view is not None and view.spec is None:
        return settings.spec(held or environment, only=settings.flags), {}, ()
    path = "the plan" if view else settings.state_file or settings.host_root / STATE
    try:
        raw = view.spec if view else StateFile(Path(path)).read().get("spec")
        filed = parse_spec(raw or {}, environment)
    except Refused as refused:
        instead = "the last one that was accepted is in force" if held else "its spec is left out here"
        problem = Problem(refused.reason, f"{of_file(path, refused.message)}; {instead}")
        return settings.spec(held or environment, only=settings.flags), {}, (problem,)
    return settings.spec(filed, only=settings.flags), dict(raw or {}), ()


def of_file(path: object, message: str) -> str:
    """What is wrong with a file, which is named once."""
    shown = printable(str(path), 150)
    return message if shown in message else f"{shown}: {message}"


def last_accepted(settings: Settings) -> Spec | None:
    """The last spec that the agent of this host accepted, as its journal has it; None without one."""
    record, _ = read_journal(settings)
    with contextlib.suppress(Refused):
        return parse_spec(record.spec, _environment(settings)) if record.spec is not None else None
    return None


def _environment(settings: Settings) -> Spec:
    """What the settings say that the agent has, too."""
    return settings.spec(only=set(Settings.model_fields) - settings.flags)


@contextmanager
def source(
    settings: Settings, snapshot: Path | None, chooses: Chooser = everything, view: View | None = None
) -> Iterator[Source]:
    """The host or the snapshot, for one look."""
    if snapshot is None:
        root = settings.host_root
        if not root.is_dir():
            raise Refused(Reason.TOPOLOGY_UNREADABLE, f"host root {root} is not a folder")
        pods = view.pods if view else ()
        observer = Observer(
            root,
            architecture=settings.architecture,
            chooses=both(chooses, view.chooses) if view else chooses,
            pods=lambda: pods,
            kubelet=lambda: KubeletState(*read_cpu_manager_state(root), view.resources if view else ()),
            patient=False,
        )
        record, problem = read_journal(settings)
        record = record.of_boot(boot_id(root, recorded=True))
        observer.adopt({worker.process: worker.container for worker in record.workers})
        npu_smi = npu_smi_of(settings)
        problems = (*((problem,) if problem else ()), *(view.problems if view else ()))
        # A flag asks what would be, and is answered by itself.
        accepted = None if settings.flags & SPEC_SETTINGS else last_accepted(settings)
        status = reported_status(settings, view)
        yield Source(
            observer, npu_smi, settings.node_name, record, pods, problems, live=True, accepted=accepted, status=status
        )
        return
    with open_snapshot(snapshot) as opened:
        journal, damage = _parsed(opened.journal)

        def kubelet() -> KubeletState:
            policy, grants = read_cpu_manager_state(opened.root)
            return KubeletState(policy, grants, opened.pod_resources)

        spec, accepted, unread = _recorded_specs(settings, opened.settings)
        observer = Observer(
            opened.root,
            architecture=opened.architecture,
            chooses=both(chooses, _selection(opened)) if opened.pods else chooses,
            pods=lambda: opened.pods,
            kubelet=kubelet,
            patient=False,
        )
        npu_smi_records = RecordedNpuSmi(opened.folder)
        # A recording without the boot's id is of the boot that its journal is of.
        boot = boot_id(opened.root, recorded=True) or journal.boot_id
        journal = journal.of_boot(boot)
        observer.adopt({worker.process: worker.container for worker in journal.workers})
        problems = (*opened.problems, *((damage,) if damage else ()), *unread)
        yield Source(
            observer,
            npu_smi_records,
            opened.node,
            journal,
            opened.pods,
            problems,
            accepted=accepted,
            status=opened.status,
            spec=spec,
        )


def recorded_settings(settings: Settings, spec: Spec, view: View | None) -> dict[str, Any]:
    """What people asked for, as a snapshot keeps it: `source` makes the same of it."""
    held = last_accepted(settings)
    recorded: dict[str, Any] = {"spec": spec_fields(spec)}
    if held is not None:
        recorded["accepted"] = spec_fields(held)
    if view is not None:
        recorded["selection"] = {
            "podSelection": settings.pod_selection,
            "namespaces": list(settings.namespaces),
            "excludeNamespaces": list(settings.exclude_namespaces),
        }
    return recorded


def reported_status(settings: Settings, view: View | None) -> Mapping[str, Any]:
    """`status` of the plan as the agent wrote it last; empty where it can't be read, or is none."""
    if view is not None:
        return view.status
    with contextlib.suppress(Refused):
        status = StateFile(settings.state_file or settings.host_root / STATE).read().get("status")
        return status if isinstance(status, Mapping) else {}
    return {}


def _recorded_specs(
    settings: Settings, recorded: Mapping[str, Any]
) -> tuple[Spec | None, Spec | None, tuple[Problem, ...]]:
    """The spec of a snapshot, with the flags on top, and the one that holds where it does not fit the node."""
    try:
        spec = parse_spec(recorded["spec"]) if "spec" in recorded else None
        accepted = parse_spec(recorded["accepted"]) if "accepted" in recorded else None
    except Refused as refused:
        problem = Problem(Reason.SNAPSHOT_UNREADABLE, f"settings in snapshot.json are left out: {refused.message}")
        return None, None, (problem,)
    if spec is not None:
        spec = settings.spec(spec, only=settings.flags)
    return spec, None if settings.flags & SPEC_SETTINGS else accepted, ()


def _selection(opened: Snapshot) -> Chooser:
    """Who was to be bound where a snapshot was taken: the pods that opted in, unless its agent had other settings."""
    from agent.kube.pods import PodSelection, PodStore  # noqa: PLC0415 - for snapshots with pods alone

    said = opened.settings.get("selection")
    said = said if isinstance(said, Mapping) else {}
    store = PodStore(lambda: None)
    return PodSelection(
        store,
        "AllNpuPods" if said.get("podSelection") == "AllNpuPods" else "Annotated",
        _names(said.get("namespaces")),
        _names(said.get("excludeNamespaces")),
    ).choose


def _names(value: object) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def both(first: Chooser, second: Chooser) -> Chooser:
    """Those whom both choose."""
    return lambda candidate: second(candidate) if first(candidate) is Choice.BIND else Choice.LEAVE


def read_journal(settings: Settings) -> tuple[Journal, Problem | None]:
    """The agent's journal where it can be read. A look changes nothing, so that a damaged one is left in place."""
    path = settings.journal_file or settings.host_root / JOURNAL
    try:
        return _parsed(read_text(path, Reason.STATE_UNREADABLE, limit=MAX_BYTES))
    except Refused as refused:
        return Journal(), refused.problem


def _parsed(text: str | None) -> tuple[Journal, Problem | None]:
    try:
        # An empty file is a damaged journal, and tells nothing of what was taken.
        return (Journal() if text is None else parse(text)), None
    except Refused as refused:
        return Journal(), refused.problem
