"""The journal: what it keeps, and what a damaged one does."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.control import journal_file as module
from agent.control.journal import BoundWorker, ConfinedProcess, IrqBans, Journal, TakenIrq, UvbThread
from agent.control.journal_file import dump, load, parse, save
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Npu
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Base, Roles
from agent.model.reason import Problem, Reason, Refused
from agent.model.spec import Cutting, Strategy
from agent.model.workload import ProcessId, ThreadId
from agent.planning.universe import Universe

JOURNAL = Journal(
    boot_id="boot-1",
    universe=Universe(
        "boot-1", "25.0", (Npu(0, 3, 0, 4, "910B3", "0000:c1:00.0", CpuSet.parse("0-23,96")), Npu(1, name="x"))
    ),
    bases=(
        Base("default", CpuSet.parse("0-639"), (0, 1)),
        Base("8-15", CpuSet.parse("8-15"), (1,), round=2, cpuset=CpuSet.parse("0-15")),
    ),
    workers=(
        BoundWorker(
            ProcessId(4711, 99),
            CpuSet.parse("0-39"),
            Roles(CpuSet.parse("2-37"), CpuSet.parse("0-1"), CpuSet.parse("38"), CpuSet.parse("39")),
            container="c0ffee",
            complete=False,
            left=CpuSet.parse("40-41"),
            told=CpuSet.parse("40-43"),
            masks={ThreadId(4712, 100): CpuSet.parse("7"), ThreadId(4713, 101): CpuSet.parse("0-3,9")},
            memory=MemoryOutcome("Partial", Problem(Reason.BUDGET_SPENT, "10 s"), node=1, moved=1 << 36, left=5),
        ),
        BoundWorker(ProcessId(4811, 99), CpuSet.parse("40-79"), Roles(CpuSet.parse("40-79"))),
    ),
    irqs=(TakenIrq("0000:c1:00.0", "cq_update_irq", 15, 4711, CpuSet.parse("0-639"), CpuSet.parse("1")),),
    bans=IrqBans(ProcessId(900, 7), frozenset({43, 44})),
    uvb=(
        UvbThread(ThreadId(77, 2), CpuSet(), CpuSet.parse("8-15")),
        UvbThread(ThreadId(78, 2), CpuSet.parse("3"), CpuSet.parse("8-15")),
    ),
    confined=(
        ConfinedProcess(ProcessId(4700, 98), "c0ffee", CpuSet.parse("0-1,38-39"), {ThreadId(4700, 98): CpuSet({5})}),
    ),
    begun_at=12345,
    cut_by=Cutting(Strategy.NUMA_SLICE, DeviceType.ASCEND_950, CpuSet.parse("0-3"), include_isolated_cpus=True),
    lost=True,
    settled={"c0ffee": frozenset({0, 1}), "/user.slice": frozenset()},
    spec={"mode": "Disabled", "threadRules": [{"prefix": "ucm_", "role": "main"}], "reservedCpus": 3},
    own=True,
)


def test_it_reads_back_what_was_written(tmp_path: Path) -> None:
    save(tmp_path / "deep/journal.json", JOURNAL)
    assert load(tmp_path / "deep/journal.json", "boot-1") == (JOURNAL, None)


def test_of_another_boot_only_the_accepted_spec_is_kept(tmp_path: Path) -> None:
    save(tmp_path / "journal.json", JOURNAL)
    kept = Journal(boot_id="boot-2", spec=JOURNAL.spec, own=True)
    assert load(tmp_path / "journal.json", "boot-2") == (kept, None)
    save(tmp_path / "journal.json", kept)
    assert load(tmp_path / "journal.json", "boot-3") == (replace(kept, boot_id="boot-3"), None)


def test_a_journal_of_the_release_that_kept_no_spec_is_read(tmp_path: Path) -> None:
    document = json.loads(dump(JOURNAL))
    for later in ("spec", "own", "settled", "cutBy"):
        del document[later]
    (tmp_path / "journal.json").write_text(json.dumps(document))
    journal, problem = load(tmp_path / "journal.json", "boot-1")
    assert problem is None
    assert journal == replace(JOURNAL, spec=None, own=False, settled={}, cut_by=None)


def test_in_a_journal_of_the_release_that_undid_threads_alone_everybody_is_bound_and_nothing_else_was_taken(
    tmp_path: Path,
) -> None:
    document = json.loads(dump(JOURNAL))
    for later in ("irqs", "bans", "uvb", "confined", "begunAt", "lost"):
        del document[later]
    for worker in document["workers"]:
        for later in ("container", "complete", "left", "masks", "memory"):
            del worker[later]
        worker.pop("told", None)
    (tmp_path / "journal.json").write_text(json.dumps(document))
    journal, problem = load(tmp_path / "journal.json", "boot-1")
    assert problem is None
    before = tuple(BoundWorker(worker.process, worker.pool, worker.roles) for worker in JOURNAL.workers)
    assert journal == replace(JOURNAL, workers=before, irqs=(), bans=None, uvb=(), confined=(), begun_at=0, lost=False)
    assert all(worker.complete for worker in journal.workers)


numbers = st.integers(0, 1 << 40)
processes = st.builds(ProcessId, numbers, numbers)
threads = st.builds(ThreadId, numbers, numbers)
cpus = st.frozensets(st.integers(0, 700), max_size=6).map(CpuSet)
masks = st.dictionaries(threads, cpus, max_size=3)
texts = st.text(max_size=6)
memories = st.builds(
    MemoryOutcome,
    st.sampled_from(["Pending", "Moved", "Partial", "Skipped", "Failed"]),
    st.none() | st.builds(Problem, st.sampled_from(Reason), texts),
    *(st.none() | numbers, numbers, numbers, numbers),
)
journals = st.builds(
    Journal,
    boot_id=st.just("boot-1"),
    universe=st.just(JOURNAL.universe),
    bases=st.just(JOURNAL.bases),
    workers=st.lists(
        st.builds(
            BoundWorker,
            *(processes, cpus, st.builds(Roles, cpus, cpus, cpus, cpus), texts, st.booleans(), cpus, masks),
            st.none() | memories,
            cpus,
        ),
        max_size=3,
    ).map(tuple),
    settled=st.dictionaries(texts, st.frozensets(numbers, max_size=3), max_size=2),
    spec=st.none() | st.just(JOURNAL.spec),
    own=st.booleans(),
    irqs=st.lists(st.builds(TakenIrq, texts, texts, numbers, numbers, cpus, cpus), max_size=3).map(tuple),
    bans=st.none() | st.builds(IrqBans, processes, st.frozensets(numbers, max_size=3)),
    uvb=st.lists(st.builds(UvbThread, threads, cpus, cpus), max_size=3).map(tuple),
    confined=st.lists(st.builds(ConfinedProcess, processes, texts, cpus, masks), max_size=3).map(tuple),
    begun_at=numbers,
    cut_by=st.none()
    | st.builds(Cutting, st.none() | st.sampled_from(Strategy), st.none() | st.sampled_from(DeviceType), cpus),
    lost=st.booleans(),
)


@settings(deadline=None, max_examples=40)
@given(journals)
def test_whatever_is_noted_reads_back_as_it_was(journal: Journal) -> None:
    assert parse(dump(journal)) == journal
    assert dump(parse(dump(journal))) == dump(journal)
    kept = (journal.workers, journal.irqs, journal.uvb, journal.confined, journal.bans and journal.bans.irqs)
    assert bool(journal.taken) == any(kept)


def test_what_is_taken_is_said_in_words() -> None:
    assert JOURNAL.taken == "2 workers, 1 interrupt, 2 UVB threads, 1 confined process, 2 bans of irqbalance"
    two = replace(JOURNAL, workers=JOURNAL.workers[:1], irqs=(), uvb=(), bans=None, confined=JOURNAL.confined * 2)
    assert two.taken == "1 worker, 2 confined processes"
    assert Journal(boot_id="boot-1", spec={}, bases=JOURNAL.bases, begun_at=1).taken == ""


WORKER: dict[str, object] = json.loads(dump(JOURNAL))["workers"][0]
MEMORY: dict[str, object] = {
    "state": "Moved",
    "reason": "",
    "message": "",
    "node": 1,
    "moved": 0,
    "left": 0,
    "skipped": 0,
}
DAMAGE: list[dict[str, object]] = [
    {"container": 1},
    {"left": None},
    {"left": "1-0"},
    {"masks": {"4712": "7"}},
    {"masks": {}},
    {"masks": [[4712, 100]]},
    {"masks": [["4712", 100, "7"]]},
    {"masks": [[4712, 100, 7]]},
    {"memory": {}},
    {"memory": MEMORY | {"state": "Gone"}},
    {"memory": MEMORY | {"reason": "?"}},
    {"memory": MEMORY | {"moved": None}},
]
DAMAGED: dict[str, list[object]] = {
    "workers": [None, {}, *([WORKER | change] for change in DAMAGE)],
    "irqs": [None, {}, [{"pci": "0000:c1:00.0"}]],
    "bans": [[], {"pid": 1, "startTime": 2}, {"pid": 1, "startTime": 2, "irqs": ["43"]}],
    "uvb": [None, [{"tid": 1, "startTime": 2, "before": "", "given": "x"}]],
    "confined": [None, [{"pid": 1, "startTime": 2, "container": "c", "off": "1", "masks": [1]}]],
    "begunAt": [None, "1", -1, True],
    "spec": [[], "mode", 7, False],
    "settled": [[], None, "x", {"a": 1}, {"a": ["0"]}, {"a": [True]}, {"a": [-1]}],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in DAMAGED for value in DAMAGED[field]])
def test_a_journal_with_a_damaged_field_is_set_aside_whole(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "journal.json"
    path.write_text(json.dumps(json.loads(dump(JOURNAL)) | {field: value}))
    journal, problem = load(path, "boot-1")
    assert journal == Journal(boot_id="boot-1")
    assert problem is not None
    assert problem.reason is Reason.STATE_UNREADABLE
    assert not path.exists()


@pytest.mark.parametrize("own", [None, "true", 1, [], False])
def test_only_true_makes_a_plan_the_agents_own(own: object) -> None:
    assert parse(json.dumps(json.loads(dump(JOURNAL)) | {"own": own})).own is False


def test_a_spec_that_json_has_no_words_for_is_said(tmp_path: Path) -> None:
    """YAML has more kinds of values than JSON."""
    save(tmp_path / "journal.json", JOURNAL)
    with pytest.raises(Refused, match="spec") as refused:
        save(tmp_path / "journal.json", replace(JOURNAL, spec={"threadRules": b""}))
    assert refused.value.reason is Reason.STATE_NOT_WRITTEN
    assert load(tmp_path / "journal.json", "boot-1") == (JOURNAL, None)


def test_a_journal_cut_at_any_byte_is_set_aside_and_never_half_used(tmp_path: Path) -> None:
    """nri-plugins #92."""
    text = dump(JOURNAL)
    path = tmp_path / "journal.json"
    for cut in range(1, len(text.rstrip())):
        path.write_text(text[:cut])
        journal, problem = load(path, "boot-1")
        assert journal == Journal(boot_id="boot-1"), cut
        assert problem is not None
        assert problem.reason is Reason.STATE_UNREADABLE
        assert "\n" not in problem.message
        assert not path.exists()
        aside = tmp_path / "journal.json.damaged"
        assert aside.read_text() == text[:cut]
        aside.unlink()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        '{"version": 2}',
        '{"version": 1}',
        dump(JOURNAL).replace('"0-639"', '"639-0"'),
        dump(JOURNAL).replace("4711", '"4711"'),
        dump(JOURNAL).replace("4711", "-4711"),
        dump(JOURNAL).replace("4711", "true"),
        "[" * 100_000,
    ],
)
def test_what_is_no_journal_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(text)
    assert refused.value.reason is Reason.STATE_UNREADABLE
    assert "\n" not in refused.value.message


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused) as refused:
        save(tmp_path / "file/journal.json", JOURNAL)
    assert refused.value.reason is Reason.STATE_NOT_WRITTEN


def test_an_earlier_damaged_journal_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ASIDE", 3)
    path = tmp_path / "journal.json"
    for content in ("one", "two", "three", "four"):
        path.write_text(content)
        _, problem = load(path, "boot-1")
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {
        "journal.json.damaged": "one",
        "journal.json.damaged.1": "two",
        "journal.json.damaged.2": "three",
        "journal.json": "four",
    }
    assert problem is not None
    assert "3 already" in problem.message


def make_odd(path: Path, kind: str) -> None:
    """Something that is no journal and not to be touched."""
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(path.with_name("elsewhere"))
            path.with_name("elsewhere").write_text("precious")
        case "large":
            path.write_text(" " * 1000)
        case "unreadable":
            path.write_text("precious")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "large", "unreadable"])
def test_what_is_no_readable_regular_file_is_neither_moved_nor_replaced(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.json"
    make_odd(path, kind)
    monkeypatch.setattr(module, "MAX_BYTES", 999)
    if kind == "unreadable":  # to root as well

        def denied(path: Path, reason: Reason, **more: object) -> str:
            raise Refused(reason, f"{path}: Permission denied")

        monkeypatch.setattr(module, "read_text", denied)
    before = sorted((entry.name, entry.lstat()) for entry in tmp_path.iterdir())
    journal, problem = load(path, "boot-1")
    assert journal == Journal(boot_id="boot-1")
    assert problem is not None
    assert problem.reason is Reason.STATE_UNREADABLE
    with pytest.raises(Refused) as refused:
        save(path, JOURNAL)
    assert refused.value.reason is Reason.STATE_NOT_WRITTEN
    assert str(path) in refused.value.message
    assert "\n" not in problem.message + refused.value.message
    now = sorted((entry.name, entry.lstat()) for entry in tmp_path.iterdir())
    assert [(name, s.st_ino, s.st_mtime_ns) for name, s in now] == [(n, s.st_ino, s.st_mtime_ns) for n, s in before]


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_path_that_names_no_file_is_refused(name: str) -> None:
    for use in (lambda: load(Path(name), "boot-1"), lambda: save(Path(name), JOURNAL)):
        with pytest.raises(Refused, match="not the name of a file"):
            use()


def test_every_thread_of_a_node_may_have_half_of_its_cpus(tmp_path: Path) -> None:
    """``taskset -c 0-639:2``, before sixteen workers begin."""
    half = CpuSet(range(0, 640, 2))
    own = {ThreadId(tid, 1): half for tid in range(900)} | {ThreadId(1000, 2): CpuSet.parse("7")}
    workers = tuple(replace(JOURNAL.workers[0], process=ProcessId(n, 1), masks=own) for n in range(16))
    journal = replace(JOURNAL, workers=workers, confined=(replace(JOURNAL.confined[0], masks=own),))
    assert save(tmp_path / "journal.json", journal) is None
    assert load(tmp_path / "journal.json", "boot-1") == (journal, None)


def test_threads_without_end_cost_their_own_masks_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many threads a worker has, and how long their masks are, is up to its pod: what is written must be read."""
    path = tmp_path / "journal.json"
    monkeypatch.setattr(module, "MAX_BYTES", 40_000)
    few, many = JOURNAL.workers
    crowd = replace(many, masks={ThreadId(tid, 1): CpuSet(range(tid, 640, 2)) for tid in range(100)})
    journal = replace(JOURNAL, workers=(few, crowd))
    for _ in range(2):
        problem = save(path, journal)
        assert problem is not None
        assert (problem.reason, "process 4811:" in problem.message) == (Reason.STATE_NOT_WRITTEN, True)
        assert load(path, "boot-1") == (replace(journal, workers=(few, many)), None)
    assert save(path, JOURNAL) is None


def test_what_would_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.json"
    save(path, JOURNAL)
    monkeypatch.setattr(module, "MAX_BYTES", len(path.read_text()) + 100)
    with pytest.raises(Refused) as refused:
        save(path, replace(JOURNAL, workers=JOURNAL.workers * 3))
    assert refused.value.reason is Reason.STATE_NOT_WRITTEN
    assert load(path, "boot-1") == (JOURNAL, None)
