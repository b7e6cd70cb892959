"""Published outputs of npu-smi, and hand-made variations for what no published one shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from agent.model.reason import Problem, Reason, Refused
from agent.node.npu_smi.recognise import recognise

T = TypeVar("T")

FIXTURES = Path(__file__).parents[2] / "fixtures"

RULE = "+===========================+===============+====================================================+"
DASHES = "+---------------------------+---------------+----------------------------------------------------+"


def fixture(kind: str, name: str) -> str:
    return (FIXTURES / kind / f"{name}.txt").read_text(encoding="utf-8")


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (FIXTURES / kind).iterdir())


def attempt(parse: Callable[[str], T], text: str) -> tuple[T | None, Problem | None]:
    """What a parser makes of a text: a table, or the problem that it refuses it with."""
    try:
        return parse(text), None
    except Refused as refused:
        return None, refused.problem


def device(card: object, chip: object, bus_id: str = "0000:C1:00.0", name: str = "910B3") -> list[str]:
    """The two lines of a device, and the border below it."""
    return [
        f"| {card:<5} {name:<20}| OK            | 88.4        46                0    / 0             |",
        f"| {chip:<26}| {bus_id:<14}| 0           0    / 0          4175 / 65536         |",
        RULE,
    ]


def info_text(
    devices: Iterable[list[str]] = (),
    processes: Iterable[str] | None = None,
    *,
    extra: str = "",
    memory: str = "Process memory(MB)",
) -> str:
    """``npu-smi info`` in the form of A2 (`extra` "Phy-ID": A3). `processes` are lines; None leaves their table out."""
    lines = [
        "+------------------------------------------------------------------------------------------------+",
        "| npu-smi 24.1.rc1                 Version: 24.1.rc1                                             |",
        DASHES,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"| {f'Chip  {extra}':<26}| Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        RULE,
        *(line for entry in devices for line in entry),
    ]
    if processes is not None:
        lines += [
            DASHES,
            f"| NPU     Chip              | Process id    | Process name             | {memory:<24}|",
            RULE,
        ]
        lines += [*processes, RULE]
    return "\n".join(lines) + "\n"


def process(card: int, pid: object, memory: object = 100, name: str = "python", chip: int = 0) -> str:
    return f"| {card:<7} {chip:<18}| {pid:<14}| {name:<25}| {memory:<24}|"


def idle(card: int) -> str:
    return f"| No running processes found in NPU {card:<7}                                                      |"


def mapping_text(rows: Iterable[tuple[object, ...]], *columns: str) -> str:
    """``npu-smi info -m``; the columns of A2 unless others are given."""
    header = columns or ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name")
    return "".join("\t" + " ".join(f"{cell!s:<30}" for cell in row) + "\n" for row in (header, *rows))


def topo_text(rows: Mapping[int, str | None], label: str = "NPU") -> str:
    """``npu-smi info -t topo``; without the affinity column when every row is None."""
    header = "\t   " + "".join(f"{label + str(n):<11}" for n in rows)
    with_affinity = any(cpus is not None for cpus in rows.values())
    lines = [header + ("CPU Affinity" if with_affinity else "")]
    for n, cpus in rows.items():
        lines.append(f"{label + str(n):<11}" + "".join(f"{'X' if n == m else 'SYS':<11}" for m in rows) + (cpus or ""))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


class FakeNpuSmi:
    """Answers from a table of texts; what has no text is a query that npu-smi does not know."""

    def __init__(self, **answers: str | Refused) -> None:
        """`answers` by ``info``, ``info_m``, ``info_t_topo``, ``info_t_board_i_0_c_0``."""
        self.answers: dict[str, str | Refused] = dict(answers)
        self.asked: list[str] = []

    def query(self, *args: str) -> str:
        name = "_".join(arg.lstrip("-") for arg in args)
        self.asked.append(" ".join(args))
        answer = self.answers.get(name, Refused(Reason.NOT_SUPPORTED, "Error parameter of -t"))
        if isinstance(answer, Refused):
            raise answer
        if problem := recognise(answer, 0):
            raise Refused(problem.reason, problem.message)
        return answer
