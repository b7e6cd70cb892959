"""What must outlast the agent: bases, the universe of NPUs, and who is bound (design 4.1, 4.9, 6).

A JSON file, written whole, fsynced and renamed. It belongs to one boot: pids and start times mean nothing after
another. One that is damaged or of a version that is not known is set aside, and the agent starts with an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.model.cpuset import CpuSet
from agent.model.node import Npu
from agent.model.plan import Base, Roles
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import ProcessId
from agent.node.files import read_text
from agent.node.storage import write_atomic
from agent.planning.universe import Universe

VERSION = 1
MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BoundWorker:
    """A worker whose first binding has been through."""

    process: ProcessId
    pool: CpuSet
    roles: Roles


@dataclass(frozen=True, slots=True)
class Journal:
    """Contents of the journal. Empty at the first start of a boot."""

    boot_id: str = ""
    universe: Universe = field(default_factory=Universe)
    bases: tuple[Base, ...] = ()
    workers: tuple[BoundWorker, ...] = ()

    def of_boot(self, boot_id: str) -> Journal:
        """This journal when it is of that boot, else an empty one."""
        return self if self.boot_id == boot_id else Journal(boot_id=boot_id)


def dump(journal: Journal) -> str:
    """The JSON text of a journal."""
    universe = journal.universe
    document = {
        "version": VERSION,
        "bootId": journal.boot_id,
        "driverVersion": universe.driver_version,
        "npus": [_npu_out(npu) for npu in universe.npus],
        "bases": [
            {"domain": b.domain, "cpus": str(b.cpus), "npus": list(b.npus), "round": b.round, "cpuset": str(b.cpuset)}
            for b in journal.bases
        ],
        "workers": [
            {
                "pid": w.process.pid,
                "startTime": w.process.start_time,
                "pool": str(w.pool),
                "roles": {name: str(getattr(w.roles, name)) for name in ("irq", "main", "acl", "release")},
            }
            for w in journal.workers
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def parse(text: str) -> Journal:
    """Reads what `dump` wrote; anything else raises `Refused` with `StateUnreadable`."""
    try:
        document = json.loads(text)
        if document["version"] != VERSION:
            raise Refused(Reason.STATE_UNREADABLE, f"journal version {printable(repr(document['version']), 20)}")
        boot_id = _text(document["bootId"])
        npus = tuple(_npu_in(entry) for entry in document["npus"])
        return Journal(
            boot_id=boot_id,
            universe=Universe(boot_id, _text(document["driverVersion"]), npus),
            bases=tuple(_base_in(entry) for entry in document["bases"]),
            workers=tuple(_worker_in(entry) for entry in document["workers"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(Reason.STATE_UNREADABLE, f"journal is damaged: {printable(repr(error), 120)}") from None


def load(path: Path, boot_id: str) -> tuple[Journal, Problem | None]:
    """The journal of this boot. A damaged one is renamed to ``*.damaged`` and reported, never a reason not to start."""
    try:
        text = read_text(path, Reason.STATE_UNREADABLE, limit=MAX_BYTES)
        return (parse(text) if text is not None else Journal()).of_boot(boot_id), None
    except Refused as refused:
        aside = path.with_name(path.name + ".damaged")
        try:
            path.replace(aside)
        except OSError as error:
            problem = Problem(Reason.STATE_UNREADABLE, f"{refused.message}; could not be set aside: {error.strerror}")
            return Journal(boot_id=boot_id), problem
        return Journal(boot_id=boot_id), replace(
            refused.problem, message=f"{refused.message}; set aside as {aside.name}"
        )


def save(path: Path, journal: Journal) -> None:
    """Writes the journal; OSError as `Refused` with `StateNotWritten`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, dump(journal), mode=0o600)
    except OSError as error:
        raise Refused(Reason.STATE_NOT_WRITTEN, f"{path}: {error.strerror}") from error


def _npu_out(npu: Npu) -> dict[str, Any]:
    return {
        "id": npu.id,
        "card": npu.card,
        "chip": npu.chip,
        "phyId": npu.phy_id,
        "name": npu.name,
        "busId": npu.bus_id,
        "affinity": None if npu.affinity is None else str(npu.affinity),
    }


def _npu_in(entry: Mapping[str, Any]) -> Npu:
    affinity, phy_id = entry["affinity"], entry["phyId"]
    return Npu(
        id=_number(entry["id"]),
        card=_number(entry["card"]),
        chip=_number(entry["chip"]),
        phy_id=None if phy_id is None else _number(phy_id),
        name=_text(entry["name"]),
        bus_id=_text(entry["busId"]),
        affinity=None if affinity is None else CpuSet.parse(affinity),
    )


def _base_in(entry: Mapping[str, Any]) -> Base:
    return Base(
        domain=_text(entry["domain"]),
        cpus=CpuSet.parse(entry["cpus"]),
        npus=tuple(sorted(map(_number, entry["npus"]))),
        round=_number(entry["round"]),
        cpuset=CpuSet.parse(entry["cpuset"]),
    )


def _worker_in(entry: Mapping[str, Any]) -> BoundWorker:
    roles = entry["roles"]
    return BoundWorker(
        process=ProcessId(_number(entry["pid"]), _number(entry["startTime"])),
        pool=CpuSet.parse(entry["pool"]),
        roles=Roles(**{name: CpuSet.parse(roles[name]) for name in ("irq", "main", "acl", "release")}),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a number")
    return value
