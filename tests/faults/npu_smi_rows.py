"""Faults of npu-smi: it does not answer, fails, prints garbage or half of a table, and contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.demo.fake_npu_smi import DRIVER_NOT_READY
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.recognise import recognise
from tests.faults.table import Row, Side

Bend = Callable[[str], str]
"""What is printed instead of an answer. Refused where there is none."""

INFO: Final = "npu-smi info"
MAP: Final = "npu-smi info -m"
TOPO: Final = "npu-smi info -t topo"
ANY: Final = "npu-smi, every query"


@dataclass(frozen=True, slots=True)
class NpuSmiRow(Row):
    """What npu-smi prints for one query, in turn where there is more than one."""

    bends: Callable[[str], list[Bend]] = lambda _answer: []
    """What is right -> what is printed instead, one after the other."""
    any_of: frozenset[Reason] = frozenset()
    """Where it depends on the place of the cut what is said of it."""

    at_start: bool = True
    """Whether it is a fault from the start, too; else it is a device that is made so."""

    @property
    def expected(self) -> frozenset[Reason]:
        return self.any_of or (frozenset() if self.reason is None else frozenset({self.reason}))


def _fails(output: str, status: int) -> Bend:
    def bend(_answer: str) -> str:
        problem = recognise(output, status)
        assert problem is not None
        raise Refused(problem.reason, problem.message)

    return bend


def _refused(reason: Reason, message: str) -> Bend:
    def bend(_answer: str) -> str:
        raise Refused(reason, message)

    return bend


def _as(text: str) -> Bend:
    return lambda _answer: text


def _cuts(answer: str) -> list[Bend]:
    """Behind each line but the last, and in the middle of each."""
    places, at = list[int](), 0
    for line in answer.splitlines(keepends=True)[:-1]:
        places += [at + len(line) // 2, at + len(line)]
        at += len(line)
    return [_as(answer[:place]) for place in places if answer[place:].strip()]


def _without(*words: str) -> Callable[[str], list[Bend]]:
    """Without the lines that say one of these."""

    def bends(answer: str) -> list[Bend]:
        lines = answer.splitlines(keepends=True)
        return [_as("".join(line for line in lines if not any(word in line for word in words)))]

    return bends


def _without_npu(answer: str) -> list[Bend]:
    """Without the device of NPU 3: two lines, and the border below them."""
    lines = answer.splitlines(keepends=True)
    at = next(k for k, line in enumerate(lines) if line.startswith("| 3 "))
    return [_as("".join(lines[:at] + lines[at + 3 :]))]


def _idle(answer: str) -> list[Bend]:
    """Without the processes, all NPUs said to be idle, one after the other."""
    bends, lines = list[Bend](), answer.splitlines(keepends=True)
    for k, line in enumerate(lines):
        if "VLLM" in line:
            lines[k] = f"| No running processes found in NPU {line.split()[1]:<61}|\n"
            bends.append(_as("".join(lines)))
    return bends


def _and_a_fifth(answer: str) -> list[Bend]:
    """With a row of an NPU that is in no other table."""
    row = "NPU4       HCCS       HCCS       HCCS       HCCS       0-15\n"
    return [_as(answer.replace("\nNPU3 ", f"\n{row}NPU3 "))]


def _and_a_fifth_chip(answer: str) -> list[Bend]:
    row = (
        "\t4                              0                              4                              Ascend 910B3\n"
    )
    return [_as(f"{answer}{row}")]


def _garbage(_answer: str) -> list[Bend]:
    texts = ("", "\n", "\0" * 500, "\x1b[2J\x1b[31mERROR\n" * 3, "{}\n", "<html>502</html>\n", "|" * 4000, "é" * 100)
    return [_as(text) for text in texts]


_TABLE: Final = frozenset({Reason.TABLE_TRUNCATED, Reason.TABLE_UNREADABLE})
_LESS: Final = frozenset({Reason.INVENTORY_INCOMPLETE, Reason.INVENTORY_MISMATCH})


def _rows() -> Iterator[NpuSmiRow]:
    def row(
        place: str, fault: str, reason: Reason | None, *bends: Bend, why: str = "", quick: bool = False
    ) -> NpuSmiRow:
        return NpuSmiRow(Side.NPU_SMI, place, fault, reason, why, quick, bends=lambda _answer: list(bends))

    yield row(ANY, "not found", Reason.NPU_SMI_NOT_FOUND, _refused(Reason.NPU_SMI_NOT_FOUND, "npu-smi: no such file"))
    library = "npu-smi: error while loading shared libraries: libdrvdsmi_host.so: cannot open shared object file\n"
    yield row(ANY, "library missing", Reason.NPU_SMI_LIBRARY_MISSING, _fails(library, 127))
    yield row(ANY, "exit 1", Reason.NPU_SMI_FAILED, _fails("segmentation fault\n", 1))
    yield row(ANY, "exit 1, silent", Reason.NPU_SMI_FAILED, _fails("", 1))
    yield row(ANY, "killed by a signal", Reason.NPU_SMI_FAILED, _fails("", -11))
    yield row(ANY, "driver not ready", Reason.DRIVER_NOT_READY, _fails(DRIVER_NOT_READY, 255))
    busy = "dcmi model initialized failed, because the device is used. ret is -8020\n"
    yield row(ANY, "driver busy", Reason.DRIVER_BUSY, _fails(busy, 255))
    hung = _refused(Reason.NPU_SMI_HUNG, "npu-smi: no answer in 10 s")
    yield row(ANY, "no answer in time", Reason.NPU_SMI_HUNG, hung)
    for place in (INFO, MAP, TOPO):
        reason = Reason.TABLE_UNREADABLE
        yield NpuSmiRow(Side.NPU_SMI, place, "garbage", reason, bends=_garbage, any_of=_TABLE | {Reason.NPU_SMI_FAILED})
        yield NpuSmiRow(
            Side.NPU_SMI, place, "cut anywhere", Reason.TABLE_TRUNCATED, bends=_cuts,
            any_of=_TABLE | _LESS | {Reason.PROCESS_TABLE_INCOMPLETE, Reason.NPU_SMI_FAILED},
        )  # fmt: skip
    for place, fault, bends in (
        (INFO, "an NPU less", _without_npu),
        (MAP, "an NPU less", _without("\t3 ")),
        (MAP, "no NPU", _without("910B3")),
        (TOPO, "an NPU less", _without("NPU3  ")),
        (TOPO, "an NPU more", _and_a_fifth),
        (MAP, "an NPU more", _and_a_fifth_chip),
    ):
        yield NpuSmiRow(Side.NPU_SMI, place, fault, Reason.INVENTORY_MISMATCH, bends=bends, any_of=_LESS | _TABLE)
    for place in (TOPO, MAP):
        yield NpuSmiRow(
            Side.NPU_SMI,
            place,
            "not known any more",
            Reason.NPU_SMI_FAILED,
            "a device that has answered a query knows it",
            quick=True,
            bends=lambda _answer: [_fails("Error parameter of -t\n", 1)],
            at_start=False,
        )
    incomplete = Reason.PROCESS_TABLE_INCOMPLETE
    yield NpuSmiRow(Side.NPU_SMI, INFO, "rows of processes lost", incomplete, bends=_without("VLLM"))
    yield NpuSmiRow(
        Side.NPU_SMI, INFO, "table shrinks", None, "who is bound stays so while he lives", quick=True, bends=_idle
    )


ROWS: tuple[Row, ...] = tuple(_rows())
