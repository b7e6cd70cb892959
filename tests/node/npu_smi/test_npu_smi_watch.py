"""npu-smi is asked in the background, as often as is of use, and the last good answer stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.node import DeviceType
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.command import NpuSmiCommand
from agent.node.npu_smi.watch import NpuSmiWatch, WatchState
from tests.node.npu_smi.samples import RULE, FakeNpuSmi, device, idle, info_text, mapping_text, process, topo_text

IDLE = info_text([device(0, 0), device(1, 0)], [idle(0), RULE, idle(1)])
BUSY = info_text([device(0, 0), device(1, 0)], [process(0, 4711), RULE, idle(1)])
HALF = info_text([device(0, 0), device(1, 0)], [process(0, 4711)])
ONE_CARD = info_text([device(0, 0)], [idle(0)])
MAPPING = mapping_text([(0, 0, 0, "Ascend 910B3"), (1, 0, 1, "Ascend 910B3")])
TOPO = topo_text({0: "0-23", 1: "24-47"})
PROCESSES = ["info"]
STATIC = ["info", "info -m", "info -t topo"]
NOT_READY = Refused(Reason.DRIVER_NOT_READY, "dcmi module initialize failed. ret is -8005")


class Host:
    """A watch over a fake npu-smi, with a clock that only tests move."""

    def __init__(self) -> None:
        self.npu_smi = FakeNpuSmi(info=IDLE, info_m=MAPPING, info_t_topo=TOPO)
        self.davinci = {0: (236, 0), 1: (236, 1)}
        self.override: DeviceType | None = None
        self.needs_affinity = True
        self.now = 1000.0
        self.woken = threading.Semaphore(0)
        self.watch = NpuSmiWatch(
            self.npu_smi,
            lambda: self.davinci,
            self.woken.release,
            override=lambda: self.override,
            needs_affinity=lambda device_type: self.needs_affinity,
        )

    def poll(self, *, awaiting: bool = False) -> tuple[WatchState, list[str]]:
        """The state after the round that a poll starts, if it starts one, and what npu-smi was asked in it."""
        asked = len(self.npu_smi.asked)
        state = self.watch.poll(self.now, awaiting=awaiting)
        if state.due is None:
            assert self.woken.acquire(timeout=30)
            state = self.watch.poll(self.now, awaiting=awaiting)
        return state, self.npu_smi.asked[asked:]

    def starts(self, seconds: int, *, awaiting: bool = False) -> list[int]:
        """At which of the next seconds a round started."""
        began, found = self.now, []
        for second in range(seconds):
            self.now = began + second
            if self.poll(awaiting=awaiting)[1]:
                found.append(second)
        return found


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.watch.close()


def test_before_the_first_answer_nothing_is_known(host: Host) -> None:
    state = host.watch.poll(host.now, awaiting=True)
    assert state == WatchState(reading=None, problem=None, age=None, due=None)


def test_the_first_round_reads_every_table_and_wakes_the_loop(host: Host) -> None:
    state, asked = host.poll()
    assert asked == STATIC
    assert state.reading is not None
    assert state.reading.inventory.ids == (0, 1)
    assert state.reading.inventory.device_type is DeviceType.A2
    assert state.problem is None
    assert state.age == 0
    assert state.due == host.now + 60


def test_while_nothing_is_awaited_it_is_asked_once_a_minute(host: Host) -> None:
    assert host.starts(200) == [0, 60, 120, 180]


def test_while_something_is_awaited_it_is_asked_each_second_then_less_and_less(host: Host) -> None:
    assert host.starts(50, awaiting=True) == [0, 1, 2, 3, 4, 5, 7, 11, 19, 29, 39, 49]


def test_what_is_awaited_later_starts_the_series_anew(host: Host) -> None:
    host.starts(40, awaiting=True)
    host.now += 1
    assert host.starts(30) == []
    host.now += 1
    assert host.starts(4, awaiting=True) == [0, 1, 2, 3]


def test_something_new_that_is_awaited_hastens_a_series_that_has_slowed_down(host: Host) -> None:
    host.starts(40, awaiting=True)
    host.watch.hasten()
    host.now += 1
    assert host.starts(4, awaiting=True) == [0, 1, 2, 3]


def test_an_answer_that_is_fresh_is_not_asked_for_again_at_once(host: Host) -> None:
    host.poll()
    host.now += 0.5
    state, asked = host.poll(awaiting=True)
    assert asked == []
    assert state.due == host.now + 0.5


def test_later_rounds_read_the_processes_alone(host: Host) -> None:
    host.poll()
    host.npu_smi.answers["info"] = BUSY
    host.now += 60
    state, asked = host.poll()
    assert asked == PROCESSES
    assert state.reading is not None
    assert [(row.npu, row.pid) for row in state.reading.processes.rows] == [(0, 4711)]
    assert state.reading.inventory.npus[1].affinity is not None


def test_notes_on_processes_come_and_go_while_those_on_the_inventory_stay(host: Host) -> None:
    host.needs_affinity = False
    host.npu_smi.answers |= {"info": HALF, "info_t_topo": "garbage\n"}
    both = [Reason.TABLE_UNREADABLE, Reason.PROCESS_TABLE_INCOMPLETE]
    assert _notes(host.poll()[0]) == both
    host.now += 60
    assert _notes(host.poll()[0]) == both
    host.npu_smi.answers["info"] = BUSY
    host.now += 60
    assert _notes(host.poll()[0]) == [Reason.TABLE_UNREADABLE]


def test_every_ten_minutes_the_static_tables_are_read_again(host: Host) -> None:
    asked = []
    for _ in range(22):
        asked.append(host.poll()[1])
        host.now += 60
    assert [i for i, queries in enumerate(asked) if queries == STATIC] == [0, 10, 20]
    assert all(queries in (STATIC, PROCESSES) for queries in asked)


def test_other_device_files_make_it_read_the_static_tables_again(host: Host) -> None:
    host.poll()
    host.davinci[1] = (236, 9)
    host.now += 60
    assert host.poll()[1] == STATIC
    host.now += 60
    assert host.poll()[1] == PROCESSES


def test_another_driver_version_makes_it_read_the_static_tables_again(host: Host) -> None:
    host.poll()
    host.npu_smi.answers["info"] = IDLE.replace("24.1.rc1", "25.0.rc1")
    host.now += 60
    state, asked = host.poll()
    assert asked == PROCESSES + STATIC
    assert state.reading is not None
    assert state.reading.driver_version == "25.0.rc1"


def test_a_table_that_does_not_fit_the_inventory_makes_it_read_the_static_tables_again(host: Host) -> None:
    host.poll()
    host.npu_smi.answers |= {
        "info": info_text([device(0, 0), device(2, 0)], [idle(0), RULE, idle(2)]),
        "info_m": mapping_text([(0, 0, 0, "Ascend 910B3"), (2, 0, 1, "Ascend 910B3")]),
    }
    host.now += 60
    state, asked = host.poll()
    assert asked == PROCESSES + STATIC
    assert state.reading is not None
    assert [npu.card for npu in state.reading.inventory.npus] == [0, 2]


def test_reread_makes_it_read_the_static_tables_again(host: Host) -> None:
    host.poll()
    host.override = DeviceType.A3
    host.watch.reread()
    host.now += 60
    state, asked = host.poll()
    assert asked == STATIC
    assert state.reading is not None
    assert state.reading.inventory.device_type is DeviceType.A3


def test_a_card_that_is_gone_does_not_shrink_the_inventory_while_its_device_file_stays(host: Host) -> None:
    first, _ = host.poll()
    host.npu_smi.answers |= {"info": ONE_CARD, "info_m": mapping_text([(0, 0, 0, "Ascend 910B3")])}
    host.now += 60
    state, _ = host.poll()
    assert state.problem is not None
    assert state.problem.reason is Reason.INVENTORY_INCOMPLETE
    assert state.reading == first.reading
    assert state.age == 60


def test_a_failure_is_reported_and_the_last_good_reading_stands(host: Host) -> None:
    first, _ = host.poll()
    host.npu_smi.answers["info"] = NOT_READY
    host.now += 60
    state, _ = host.poll()
    assert state.problem == NOT_READY.problem
    assert state.reading is first.reading
    assert state.age == 60
    host.npu_smi.answers["info"] = BUSY
    host.now += 1
    state, asked = host.poll()
    assert asked == STATIC, "the driver may have been loaded anew"
    assert state.problem is None
    assert state.age == 0


@pytest.mark.parametrize("awaiting", [False, True])
def test_failures_are_tried_again_ever_more_slowly(host: Host, awaiting: bool) -> None:
    host.npu_smi.answers["info"] = NOT_READY
    assert host.starts(250, awaiting=awaiting) == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]
    host.npu_smi.answers["info"] = IDLE
    host.now = 1000.0 + 303
    assert host.poll()[0].problem is None
    host.npu_smi.answers["info"] = NOT_READY
    host.now += 60
    assert host.starts(8) == [0, 1, 3, 7]


def test_a_fault_of_the_reader_itself_is_reported_and_tried_again(host: Host) -> None:
    host.davinci = None  # type: ignore[assignment]
    state = host.poll()[0]
    assert state.problem is not None
    assert str(state.problem) == "NpuSmiFailed: reading npu-smi: TypeError: 'NoneType' object is not iterable"
    host.davinci = {}
    host.now += 1
    assert host.poll()[0].problem is None


def test_device_files_that_can_t_be_read_are_reported() -> None:
    def unreadable() -> dict[int, tuple[int, int]]:
        raise Refused(Reason.INVENTORY_INCOMPLETE, "/dev: Permission denied")

    host = Host()
    host.watch = NpuSmiWatch(host.npu_smi, unreadable, host.woken.release)
    problem = host.poll()[0].problem
    host.watch.close()
    assert problem is not None
    assert problem.message == "/dev: Permission denied"


class Stuck:
    """A fake npu-smi that answers nothing before `let_go`."""

    def __init__(self) -> None:
        self.asked = 0
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def query(self, *args: str) -> str:
        self.asked += 1
        self.begun.set()
        self.let_go.wait(60)
        raise NOT_READY


def test_a_poll_never_blocks_and_starts_no_second_round() -> None:
    npu_smi, woken = Stuck(), threading.Event()
    watch = NpuSmiWatch(npu_smi, dict, woken.set)
    watch.poll(0.0, awaiting=True)
    assert npu_smi.begun.wait(30)
    started = time.monotonic()
    for second in range(1000):
        state = watch.poll(float(second), awaiting=True)
        assert state.due is None
        assert (state.problem is not None) == (second > 60)
    assert time.monotonic() - started < 10
    assert state.problem is not None
    assert str(state.problem) == "NpuSmiHung: npu-smi: no answer in 60 s"
    assert npu_smi.asked == 1
    npu_smi.let_go.set()
    assert woken.wait(30)
    assert watch.poll(1000.0, awaiting=True).problem == NOT_READY.problem
    watch.close()


def test_after_close_nothing_starts_and_what_runs_is_left_alone() -> None:
    npu_smi, woken = Stuck(), threading.Event()
    watch = NpuSmiWatch(npu_smi, dict, woken.set)
    watch.poll(0.0, awaiting=True)
    assert npu_smi.begun.wait(30)
    started = time.monotonic()
    watch.close()
    watch.close()
    assert time.monotonic() - started < 10
    npu_smi.let_go.set()
    assert woken.wait(30)
    assert watch.poll(100.0, awaiting=True).problem == NOT_READY.problem
    watch.poll(1000.0, awaiting=True)
    assert npu_smi.asked == 1


def test_a_loop_that_has_ended_may_refuse_to_be_woken(host: Host) -> None:
    def refuse() -> None:
        host.woken.release()
        raise RuntimeError("Event loop is closed")

    host.watch.close()
    host.watch = NpuSmiWatch(host.npu_smi, lambda: host.davinci, refuse)
    assert host.poll()[0].reading is not None
    host.now += 60
    assert host.poll()[1] == PROCESSES


def test_a_real_program_that_hangs_and_recovers(tmp_path: Path) -> None:
    for name, text in (("info", IDLE), ("info-m", MAPPING), ("info-t-topo", TOPO)):
        (tmp_path / name).write_text(text)
    script = tmp_path / "npu-smi"
    script.write_text(
        '#!/bin/sh\ncd "${0%/*}"\n[ -e hang ] && exec sleep 1000\nname=$1${2:+-${2#-}}${3:+-$3}\nexec cat "$name"\n'
    )
    script.chmod(0o755)
    woken = threading.Event()
    watch = NpuSmiWatch(NpuSmiCommand(str(script), timeout=5), dict, woken.set)
    good = _round(watch, woken, 0.0)
    assert good.reading is not None
    assert good.reading.inventory.ids == (0, 1)
    watch.close()

    (tmp_path / "hang").touch()
    watch = NpuSmiWatch(NpuSmiCommand(str(script), timeout=0.2), dict, woken.set)
    hung = _round(watch, woken, 0.0)
    assert hung.problem is not None
    assert hung.problem.reason is Reason.NPU_SMI_HUNG
    watch.close()


def _round(watch: NpuSmiWatch, woken: threading.Event, now: float) -> WatchState:
    woken.clear()
    watch.poll(now, awaiting=True)
    assert woken.wait(30)
    return watch.poll(now, awaiting=True)


def _notes(state: WatchState) -> list[Reason]:
    assert state.reading is not None
    return [note.reason for note in state.reading.notes]
