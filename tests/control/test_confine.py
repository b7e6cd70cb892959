"""`helpers: Confine`: who else is in a worker's container is kept off the CPUs set apart, and given back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from agent.control.act import Actor
from agent.control.confine import Confiner
from agent.control.confinement import Confinement, ConfineOutcome, ConfineResult, off_limits, to_confine
from agent.control.journal import ConfinedProcess, Journal
from agent.control.journal_file import dump, parse
from agent.control.observe import Observation, Observer
from agent.demo.fake_kernel import PF_NO_SETAFFINITY, FakeTask
from agent.demo.fake_kubelet import OPT_IN
from agent.demo.profiles import PROFILES
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import DeviceType
from agent.model.plan import Allotment, NpuPlan, Plan, Roles, WorkerPlan
from agent.model.reason import Problem, Reason
from agent.model.spec import Helpers, Spec, Strategy
from agent.model.workload import Pod, ProcessId, ThreadId
from agent.model.workload import Worker as ModelWorker
from agent.node.cgroups import CgroupTree
from agent.node.host import EVERY_CPU, DryRunHost

OFF = CpuSet.parse("0-1,38-41,78-79")
LATER = CpuSet.parse("4-5,50")
ALL = CpuSet.parse("0-191")
NARROW = CpuSet.parse("30-41")


def entry(task: FakeTask) -> ProcessId:
    return ProcessId(task.tid, task.start_time)


class Bench:
    """A virtual A2 with a pod in which a worker and its server run, and what confines the latter."""

    def __init__(self, folder: Path, *, remembers_masks: bool = True, own_cpus: CpuSet = EMPTY) -> None:
        self.node = VirtualNode(folder, "a2", interrupts=False, remembers_masks=remembers_masks)
        self.kernel = self.node.kernel
        self.pod = self.node.kubelet.add_pod("llm-0", own_cpus=own_cpus)
        self.server = self.kernel.start_process("vllm", cgroup=self.cgroup)
        self.pool = self.kernel.start_thread(self.server.tid, "uvicorn")
        self.worker = Worker.start(self.node, 0, self.pod, threads=3)
        self.observer = Observer(self.node.root)
        self.workers: set[ProcessId] = {self.worker.identity}
        self.wanted = {self.key}
        self.started()

    def started(self, taken: Sequence[ConfinedProcess] = ()) -> Confiner:
        """An agent starts, with what the journal of an earlier one holds."""
        self.confiner = Confiner(self.node.root / "proc", self.kernel, CgroupTree(self.node.root))
        self.confiner.adopt(parse(dump(Journal(confined=tuple(taken)))).confined)
        return self.confiner

    @property
    def key(self) -> str:
        return self.pod.container().id

    @property
    def cgroup(self) -> str:
        return self.pod.container().cgroup

    def ask(self, off: CpuSet = OFF) -> Confinement:
        members = self.observer.members({*self.wanted, *self.confiner.containers})
        return Confinement(frozenset(self.wanted), members, self.workers, off, self.kernel.online)

    def sweep(self, off: CpuSet = OFF) -> ConfineResult:
        ask = self.ask(off)
        self.confiner.survey(ask)
        return self.confiner.act(ask)

    def outcome(self, off: CpuSet = OFF) -> ConfineOutcome:
        return self.sweep(off).outcomes[self.key]

    def restore(self, keys: Collection[str] | None = None) -> ConfineResult:
        members = self.observer.members(self.confiner.containers)
        return self.confiner.restore(members, self.workers, self.kernel.online, keys)

    def restore_all(self) -> int:
        """Until nothing is to be given back any more; how many threads that moved."""
        moved = 0
        while self.confiner.containers:
            result = self.restore()
            assert not result.stuck
            moved += sum(result.returned.values())
        return moved

    def writes(self) -> int:
        return self.kernel.calls["sched_setaffinity"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# Kept off


def test_helpers_are_kept_off_the_cpus_set_apart_and_nobody_else_is_touched(bench: Bench) -> None:
    other = bench.node.kubelet.add_pod("other")
    bystander = bench.kernel.start_process("nginx", cgroup=other.container().cgroup)
    assert bench.outcome() == ConfineOutcome(written=2)
    assert (bench.server.mask, bench.pool.mask) == (ALL - OFF, ALL - OFF)
    assert {task.mask for task in (bystander, *bench.worker.threads)} == {ALL}
    for _ in range(3):
        assert bench.outcome() == ConfineOutcome()
    assert bench.writes() == 2


def test_how_they_were_is_known_before_anything_is_written(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    ask = bench.ask()
    writes = bench.writes()
    bench.confiner.survey(ask)
    assert bench.writes() == writes
    taken = bench.confiner.taken
    assert taken == (
        ConfinedProcess(entry(bench.server), bench.key, OFF, {ThreadId(bench.pool.tid, bench.pool.start_time): NARROW}),
    )
    bench.confiner.act(ask)
    assert bench.confiner.taken == taken
    assert bench.pool.mask == NARROW - OFF


def test_a_helper_that_is_elsewhere_by_its_own_choice_is_left_there(bench: Bench) -> None:
    for task in (bench.server, bench.pool):
        bench.kernel.set_by_other(task.tid, CpuSet.parse("2-5"))
    assert bench.outcome() == ConfineOutcome()
    assert bench.confiner.taken == ()
    assert bench.writes() == 0


def test_one_that_has_no_other_cpu_is_left_alone_and_said(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, CpuSet.parse("38"))
    assert bench.outcome() == ConfineOutcome(
        written=1,
        left=1,
        problem=Problem(Reason.NOT_CONFINED, "1 threads may run on CPUs set apart and on no other"),
    )
    outcome = bench.outcome()
    assert (outcome.written, outcome.left) == (0, 1)
    assert bench.pool.mask == CpuSet.parse("38")
    bench.restore_all()
    assert bench.pool.mask == CpuSet.parse("38")


def test_a_container_whose_cpus_are_all_set_apart_is_left_alone(bench: Bench) -> None:
    bench.kernel.write_cpuset(bench.cgroup, CpuSet.parse("38-41"))
    outcome = bench.outcome()
    assert (outcome.written, outcome.left) == (0, 2)
    assert bench.confiner.taken == ()
    assert bench.writes() == 0


def test_one_that_the_kernel_keeps_in_place_is_said_and_never_tried(bench: Bench) -> None:
    """Threads that io_uring makes, before 2023."""
    bench.kernel.start_thread(bench.server.tid, "iou-wrk", flags=PF_NO_SETAFFINITY)
    assert bench.outcome().written == 2
    outcome = bench.outcome()
    assert (outcome.written, outcome.left) == (0, 1)
    assert outcome.problem is not None
    assert outcome.problem.reason is Reason.UNMOVABLE
    assert bench.writes() == 2


def test_children_begin_confined_and_are_not_written(bench: Bench) -> None:
    bench.sweep()
    child = bench.kernel.start_process("tokenizer", parent=bench.server.tid)
    writes = bench.writes()
    assert bench.outcome() == ConfineOutcome()
    assert child.mask == ALL - OFF
    assert bench.writes() == writes


def test_a_process_that_enters_the_container_is_confined_by_the_next_sweep(bench: Bench) -> None:
    bench.sweep()
    shell = bench.kernel.start_process("sh", cgroup=bench.cgroup)
    assert bench.outcome() == ConfineOutcome(written=1)
    assert shell.mask == ALL - OFF


def test_what_moves_back_is_confined_again_and_counted(bench: Bench) -> None:
    bench.sweep()
    bench.sweep()
    bench.kernel.set_by_other(bench.pool.tid, ALL)
    assert bench.outcome() == ConfineOutcome(written=1, drift=1)


@pytest.mark.parametrize("remembers_masks", [True, False], ids=["Linux 6.2", "before"])
def test_a_cpuset_that_kubelet_rewrites_is_followed(tmp_path: Path, *, remembers_masks: bool) -> None:
    bench = Bench(tmp_path, remembers_masks=remembers_masks)
    bench.sweep()
    for cpus in (CpuSet.parse("0-99"), CpuSet.parse("0-150")):
        bench.kernel.write_cpuset(bench.cgroup, cpus)
        writes = bench.writes()
        bench.sweep()
        assert bench.server.mask == bench.pool.mask == cpus - OFF
        assert bench.writes() - writes == (0 if remembers_masks else 2)
    bench.restore_all()
    assert bench.server.mask == bench.pool.mask == CpuSet.parse("0-150")
    bench.kernel.write_cpuset(bench.cgroup, ALL)
    assert bench.server.mask == ALL


def test_other_cpus_are_freed_when_others_are_set_apart(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    bench.sweep()
    assert bench.outcome(LATER) == ConfineOutcome(written=2)
    assert (bench.server.mask, bench.pool.mask) == (ALL - LATER, NARROW)
    assert bench.outcome(LATER) == ConfineOutcome()
    bench.sweep()
    assert bench.pool.mask == NARROW - OFF
    bench.restore_all()
    assert (bench.server.asked, bench.pool.mask) == (EVERY_CPU, NARROW)


def test_one_that_new_cpus_set_apart_leave_without_any_gets_back_what_it_had(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, CpuSet.parse("37-38"))
    bench.sweep()
    assert bench.pool.mask == CpuSet.parse("37")
    bench.sweep(CpuSet.parse("37-38"))
    assert bench.pool.mask == CpuSet.parse("37-38")
    assert bench.outcome(CpuSet.parse("37-38")).left == 1


def test_a_session_of_a_user_is_no_container(bench: Bench) -> None:
    loose = Worker.start(bench.node, 1, threads=2)
    shell = bench.kernel.start_process("bash", cgroup="/user.slice/user-1000.slice")
    bench.workers.add(loose.identity)
    bench.wanted = {"/user.slice/user-1000.slice"}
    assert bench.sweep().outcomes == {"/user.slice/user-1000.slice": ConfineOutcome()}
    assert shell.mask == ALL
    assert bench.writes() == 0


def test_without_the_right_to_move_them_it_is_said(bench: Bench) -> None:
    bench.kernel.denied = {bench.pool.tid}
    for _ in range(2):
        outcome = bench.outcome()
        assert outcome.problem is not None
        assert outcome.problem.reason is Reason.PERMISSION_DENIED
    assert bench.server.mask == ALL - OFF
    bench.kernel.denied = set()
    assert bench.outcome() == ConfineOutcome(written=1)


def test_a_process_that_ends_meanwhile_is_no_error(bench: Bench) -> None:
    ask = bench.ask()
    bench.confiner.survey(ask)
    bench.kernel.end(bench.server.tid)
    assert bench.confiner.act(ask).outcomes == {bench.key: ConfineOutcome()}
    bench.sweep()
    assert bench.confiner.taken[0].process == entry(bench.server), "the worker is in there yet"
    bench.worker.end()
    bench.sweep()
    assert bench.confiner.taken == ()


# With the binder of the workers


def test_binder_and_confiner_leave_each_other_alone(bench: Bench) -> None:
    """A worker's children are helpers, too, which the binder puts on main where they inherited CPUs set apart."""
    roles = Roles(
        main=CpuSet.parse("2-37"), irq=CpuSet.parse("0-1"), acl=CpuSet.parse("38"), release=CpuSet.parse("39")
    )
    acl, _ = bench.worker.add_role_threads()
    actor = Actor(bench.node.root / "proc", bench.kernel)
    process = bench.worker.identity
    plan = Plan(
        DeviceType.A2,
        Strategy.TOPO_AFFINITY,
        workers=(WorkerPlan(ModelWorker(process, (0,), bench.key), "default", Allotment(CpuSet.parse("0-39"), roles)),),
    )
    early = bench.worker.fork("early")

    def sweep() -> int:
        writes = bench.writes()
        seen = Observation(
            bench.node.topology,
            cpusets={process: bench.kernel.allowed(process.pid)},
            children=bench.observer.children(),
        )
        actor.prepare(plan, seen, Spec())
        actor.act(plan, seen, Spec(), bench.observer.members)
        bench.sweep()
        return bench.writes() - writes

    assert sweep() > 0
    inherited = {creator: bench.worker.fork("ccec", creator=creator) for creator in (acl.tid, process.pid)}
    compiler = bench.kernel.start_process("ld", parent=inherited[acl.tid].tid)
    pinned = bench.worker.fork("pinned")
    bench.kernel.set_by_other(pinned.tid, CpuSet.parse("36-38"))
    assert sweep() > 0
    for _ in range(3):
        assert sweep() == 0
    for task in (*inherited.values(), compiler):
        assert task.mask == roles.main
    assert (early.mask, pinned.mask) == (ALL - OFF, CpuSet.parse("36-37"))
    assert acl.mask == roles.acl
    bench.restore_all()
    assert (early.mask, pinned.mask) == (ALL, CpuSet.parse("36-38"))
    assert {task.mask for task in inherited.values()} == {roles.main}


def test_a_worker_that_a_confined_server_forked_is_free_before_it_is_bound(bench: Bench) -> None:
    bench.sweep()
    late = bench.kernel.start_process("VLLM::Worker_TP", parent=bench.server.tid)
    assert late.mask == ALL - OFF
    model = ModelWorker(entry(late), (1,), bench.key)
    assert bench.confiner.let_go([model], bench.kernel.online) == 1
    assert late.asked == EVERY_CPU
    assert bench.confiner.let_go([model], bench.kernel.online) == 0
    bench.workers.add(entry(late))
    writes = bench.writes()
    assert bench.outcome() == ConfineOutcome()
    assert bench.writes() == writes


def test_a_helper_that_becomes_a_worker_is_free_before_it_is_bound_and_nothing_to_give_back(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    bench.sweep()
    server = entry(bench.server)
    bench.confiner.let_go([ModelWorker(server, (1,), bench.key)], bench.kernel.online)
    assert (bench.server.asked, bench.pool.mask) == (EVERY_CPU, NARROW)
    bench.workers.add(server)
    main = ALL - OFF  # as main is where one NPU has a whole container
    for task in (bench.server, bench.pool):
        bench.kernel.set_by_other(task.tid, main)
    bench.wanted = set()
    bench.sweep()
    bench.restore_all()
    assert {bench.server.mask, bench.pool.mask} == {main}


# Given back


def test_a_container_that_is_not_to_be_confined_any_more_is_given_back_with_its_children(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    bench.sweep()
    child = bench.kernel.start_process("tokenizer", parent=bench.server.tid)
    narrow = bench.kernel.start_thread(bench.server.tid, "uvicorn", creator=bench.pool.tid)
    bench.wanted = set()
    result = bench.sweep()
    assert (result.returned, result.stuck, result.again) == ({bench.key: 4}, {}, True)
    assert (bench.server.asked, child.asked) == (EVERY_CPU, EVERY_CPU)
    assert (bench.pool.mask, narrow.mask) == (NARROW, NARROW)
    assert bench.sweep() == ConfineResult()
    assert bench.confiner.taken == ()
    writes = bench.writes()
    bench.sweep()
    assert bench.writes() == writes


def test_a_child_that_is_forked_while_its_parent_is_given_back_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sweep()
    born: list[FakeTask] = []
    write = bench.kernel.set_affinity

    def fork_first(tid: int, cpus: CpuSet) -> None:
        if not born:
            born.append(bench.kernel.start_process("late", parent=bench.server.tid))
        write(tid, cpus)

    monkeypatch.setattr(bench.kernel, "set_affinity", fork_first)
    assert bench.restore_all() == 3
    assert born[0].asked == EVERY_CPU


def test_children_of_a_helper_that_ended_are_given_back_what_it_had(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    bench.sweep()
    child = bench.kernel.start_process("daemon", parent=bench.server.tid)
    child.mask, child.asked = bench.pool.mask, bench.pool.asked
    bench.kernel.end(bench.server.tid)
    bench.sweep()
    bench.started(bench.confiner.taken)
    bench.restore_all()
    assert child.mask == NARROW


def test_what_ends_is_not_kept_for_ever(bench: Bench) -> None:
    bench.sweep()
    for _ in range(20):
        shell = bench.kernel.start_process("sh", cgroup=bench.cgroup)
        bench.kernel.set_by_other(shell.tid, NARROW)
        for _ in range(3):
            thread = bench.kernel.start_thread(bench.server.tid, "omp")
            bench.kernel.set_by_other(thread.tid, NARROW)
        bench.sweep()
        bench.kernel.end(shell.tid)
        for tid in bench.kernel.tasks[bench.server.tid].threads[2:]:
            bench.kernel.end(tid)
    bench.sweep()
    bench.kernel.set_by_other(bench.pool.tid, ALL)
    bench.sweep()
    assert len(bench.confiner.taken) <= 2
    assert sum(len(taken.masks) for taken in bench.confiner.taken) <= 2


def test_one_whose_cpuset_has_lost_what_it_was_kept_off_is_told_what_it_had_all_the_same(bench: Bench) -> None:
    """Else it remembers that, since Linux 6.2, when its cpuset has those CPUs again."""
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    other = CpuSet.parse("50-60")
    unconcerned = bench.kernel.start_process("nginx", cgroup=bench.cgroup)
    bench.kernel.set_by_other(unconcerned.tid, other)
    bench.sweep()
    bench.kernel.write_cpuset(bench.cgroup, CpuSet.parse("10-37,55-100"))
    bench.sweep()
    bench.restore_all()
    bench.kernel.write_cpuset(bench.cgroup, ALL)
    assert bench.pool.mask == NARROW
    assert unconcerned.mask == other


@pytest.mark.parametrize(("cpuset", "then"), [("38-100", NARROW), ("50-100", ALL)])
def test_one_whose_cpuset_has_lost_all_that_it_was_told_does_not_have_that_again(
    bench: Bench, cpuset: str, then: CpuSet
) -> None:
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    bench.sweep()
    bench.kernel.write_cpuset(bench.cgroup, CpuSet.parse(cpuset))
    bench.restore_all()
    bench.kernel.write_cpuset(bench.cgroup, ALL)
    assert bench.pool.mask == then


def test_what_somebody_else_moved_since_is_left_to_him(bench: Bench) -> None:
    bench.sweep()
    bench.kernel.set_by_other(bench.pool.tid, CpuSet.parse("7"))
    assert bench.restore_all() == 1
    assert bench.pool.mask == CpuSet.parse("7")


def test_an_agent_that_starts_anew_writes_nothing_and_can_give_back(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.pool.tid, NARROW)
    bench.sweep()
    writes = bench.writes()
    bench.started(bench.confiner.taken)
    assert bench.outcome() == ConfineOutcome()
    assert bench.writes() == writes
    bench.started(bench.confiner.taken)
    assert bench.restore_all() == 2
    assert (bench.server.asked, bench.pool.mask) == (EVERY_CPU, NARROW)


@pytest.mark.parametrize("acted", ["not", "in part", "wholly"])
def test_an_agent_that_was_killed_around_a_change_leaves_a_journal_that_knows_both(bench: Bench, acted: str) -> None:
    bench.kernel.set_by_other(bench.pool.tid, CpuSet.parse("3-60"))
    bench.sweep()
    ask = bench.ask(LATER)
    bench.confiner.survey(ask)
    taken = bench.confiner.taken
    if acted != "not":
        bench.kernel.denied = {bench.pool.tid} if acted == "in part" else set()
        bench.confiner.act(ask)
        bench.kernel.denied = set()
    bench.started(taken)
    assert bench.restore_all() == 2
    assert (bench.server.asked, bench.pool.mask) == (EVERY_CPU, CpuSet.parse("3-60"))


def test_an_agent_that_was_killed_before_a_change_makes_it_when_it_starts(bench: Bench) -> None:
    bench.sweep()
    bench.confiner.survey(bench.ask(LATER))
    bench.started(bench.confiner.taken)
    assert bench.outcome(LATER) == ConfineOutcome(written=2)
    assert {taken.off for taken in bench.confiner.taken} == {LATER}
    assert bench.server.mask == ALL - LATER


def test_a_number_that_another_process_has_now_is_not_taken_for_the_one_that_was_confined(bench: Bench) -> None:
    taken = ConfinedProcess(ProcessId(bench.server.tid, bench.server.start_time - 1), bench.key, OFF)
    bench.started([taken])
    for task in (bench.server, bench.pool):
        bench.kernel.set_by_other(task.tid, ALL - OFF)
    confiner = bench.confiner
    # The container is not asked about: only the process of the journal counts, and that is gone.
    assert confiner.restore({}, (), bench.kernel.online) == ConfineResult()
    assert confiner.taken == ()
    assert bench.writes() == 0


def test_what_could_not_be_given_back_is_said_and_tried_again(bench: Bench) -> None:
    bench.sweep()
    bench.kernel.denied = {bench.pool.tid}
    result = bench.restore()
    assert result.returned == {bench.key: 1}
    assert result.stuck[bench.key].reason is Reason.PERMISSION_DENIED
    assert bench.confiner.containers == {bench.key}
    bench.kernel.denied = set()
    assert bench.restore_all() == 1
    assert bench.pool.asked == EVERY_CPU


def test_only_the_containers_that_are_named_are_given_back(bench: Bench) -> None:
    other = bench.node.kubelet.add_pod("other").container()
    theirs = bench.kernel.start_process("nginx", cgroup=other.cgroup)
    bench.wanted.add(other.id)
    bench.sweep()
    assert bench.restore({other.id}).returned == {other.id: 1}
    assert (theirs.mask, bench.server.mask) == (ALL, ALL - OFF)


def test_without_cpus_set_apart_nobody_is_confined(bench: Bench) -> None:
    """Ascend 950, where all of a pool is main."""
    bench.sweep()
    assert bench.sweep(EMPTY).returned == {bench.key: 2}
    assert bench.server.asked == EVERY_CPU


def test_in_a_dry_run_it_is_counted_and_not_done(bench: Bench) -> None:
    host = DryRunHost(bench.kernel)
    dry = Confiner(bench.node.root / "proc", host, CgroupTree(bench.node.root))
    for _ in range(2):
        dry.adopt(bench.confiner.taken)
        dry.survey(bench.ask())
        assert dry.act(bench.ask()).outcomes == {bench.key: ConfineOutcome(written=2)}
    assert {write.tid for write in host.writes} == {bench.server.tid, bench.pool.tid}
    assert bench.writes() == 0


# Who and what


def pod_of(annotations: dict[str, str]) -> Pod:
    return Pod("uid", "prod", "llm-0", annotations=annotations)


@pytest.mark.parametrize(
    ("helpers", "annotations", "bound", "confined"),
    [
        (Helpers.LEAVE, {}, True, False),
        (Helpers.CONFINE, {}, True, True),
        (Helpers.CONFINE, {}, False, False),
        (Helpers.LEAVE, {"cpubind.dev/helpers": "Confine"}, True, True),
        (Helpers.LEAVE, {"cpubind.dev/helpers.vllm": "Confine"}, True, True),
        (Helpers.LEAVE, {"cpubind.dev/helpers.other": "Confine"}, True, False),
        (Helpers.CONFINE, {"cpubind.dev/helpers": "Leave"}, True, True),
    ],
)
def test_spec_and_annotations_say_whose_helpers_are_confined(
    *, helpers: Helpers, annotations: dict[str, str], bound: bool, confined: bool
) -> None:
    process = ProcessId(7, 7)
    plan = Plan(
        DeviceType.A2,
        Strategy.TOPO_AFFINITY,
        workers=(WorkerPlan(ModelWorker(process, (0,), "c0"), "default", Allotment()),),
    )
    seen = Observation(
        PROFILES["a2"].topology,
        pods={process: pod_of(OPT_IN | annotations)},
        places={process: ("prod", "llm-0", "vllm")},
    )
    keys = to_confine(plan, seen, Spec(helpers=helpers), [process] if bound else [])
    assert keys == ({"c0"} if confined else set())


@pytest.mark.parametrize(
    ("seen_on_npu", "unknown", "invalid", "bound", "stays"),
    [
        (True, False, False, True, False),
        (True, True, False, True, True),
        (True, False, True, True, True),
        (False, False, False, True, True),
        (False, False, False, False, False),
    ],
)
def test_a_confined_container_stays_so_while_nothing_is_known_of_its_worker(
    *, seen_on_npu: bool, unknown: bool, invalid: bool, bound: bool, stays: bool
) -> None:
    process = ProcessId(7, 7)
    entry = WorkerPlan(ModelWorker(process, (0,), "c0"), "default", Allotment())
    plan = Plan(DeviceType.A2, Strategy.TOPO_AFFINITY, workers=(entry,) if seen_on_npu else ())
    seen = Observation(
        PROFILES["a2"].topology,
        unknown=frozenset({process} if unknown else ()),
        misannotated={("prod", "llm-0"): Problem(Reason.INVALID_ANNOTATION, "")} if invalid else {},
        places={} if unknown else {process: ("prod", "llm-0", "vllm")},
    )
    processes = [process] if bound else []
    assert to_confine(plan, seen, Spec(), processes) == set()
    assert to_confine(plan, seen, Spec(), processes, {"c0": [process], "c1": []}) == ({"c0"} if stays else set())


def test_the_cpus_set_apart_are_those_of_every_npu_and_of_workers_with_their_own() -> None:
    def allotment(first: int) -> Allotment:
        pool = CpuSet.span(first, first + 9)
        irq, main, acl, release = pool.cut([2, 6, 1, 1])
        return Allotment(pool, Roles(main, irq, acl, release))

    plan = Plan(
        DeviceType.A2,
        Strategy.TOPO_AFFINITY,
        npus=(NpuPlan(0, "default", allotment(0)), NpuPlan(1, "default", allotment(10)), NpuPlan(2, "x", Allotment())),
        workers=(WorkerPlan(ModelWorker(ProcessId(7, 7), (0,), "c0"), "other", allotment(50), own=True),),
    )
    assert off_limits(plan) == CpuSet.parse("0-1,8-11,18-19,50-51,58-59")
