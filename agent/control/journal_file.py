"""The journal as a JSON file, written whole, fsynced and renamed.

One that is damaged or of a version that is not known is set aside, and the agent starts with an empty one. Only a
regular file that was read whole is ever moved or replaced: whatever else has the name is somebody else's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.control.journal import BoundWorker, ConfinedProcess, IrqBans, Journal, TakenIrq, UvbThread
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Npu
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Base, Roles
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.spec import Cutting, Strategy
from agent.model.workload import ProcessId, ThreadId
from agent.node import documents
from agent.node.documents import memory_of, parse_json
from agent.node.files import read_text
from agent.node.storage import irregular, write_atomic
from agent.planning.universe import Universe

VERSION = 1
MAX_BYTES = 16 << 20
LONG_MASK = 100
"""Characters of a mask."""
MAX_ASIDE = 100
"""How many damaged ones are kept beside each other."""


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
        "cutBy": None if journal.cut_by is None else _cutting_out(journal.cut_by),
        "workers": [
            _process_out(w.process)
            | {
                "pool": str(w.pool),
                "roles": {name: str(getattr(w.roles, name)) for name in ("irq", "main", "acl", "release")},
                "container": w.container,
                "complete": w.complete,
                "left": str(w.left),
                "memory": None if w.memory is None else _memory_out(w.memory),
            }
            | ({"told": str(w.told)} if w.told else {})
            | _masks_out(w.masks)
            for w in journal.workers
        ],
        "irqs": [
            {
                "pci": i.pci,
                "action": i.action,
                "ordinal": i.ordinal,
                "irq": i.irq,
                "before": str(i.before),
                "given": str(i.given),
                "earlier": str(i.earlier),
            }
            for i in journal.irqs
        ],
        "bans": None
        if journal.bans is None
        else _process_out(journal.bans.balancer) | {"irqs": sorted(journal.bans.irqs)},
        "uvb": [
            {
                "tid": t.thread.tid,
                "startTime": t.thread.start_time,
                "before": str(t.before),
                "given": str(t.given),
            }
            for t in journal.uvb
        ],
        "confined": [
            _process_out(c.process) | {"container": c.container, "off": str(c.off)} | _masks_out(c.masks)
            for c in journal.confined
        ],
        "settled": {key: sorted(npus) for key, npus in sorted(journal.settled.items())},
        "spec": None if journal.spec is None else dict(journal.spec),
        "own": journal.own,
        "begunAt": journal.begun_at,
        "lost": journal.lost,
    }
    return json.dumps(document, indent=1) + "\n"


def parse(text: str) -> Journal:
    """Reads what `dump` wrote; anything else raises `Refused` with `StateUnreadable`."""
    try:
        document: Any = parse_json(text, "journal", Reason.STATE_UNREADABLE)
        if document["version"] != VERSION:
            raise Refused(Reason.STATE_UNREADABLE, f"journal version {printable(repr(document['version']), 20)}")
        boot_id = _text(document["bootId"])
        npus = tuple(_npu_in(entry) for entry in _entries(document["npus"]))
        return Journal(
            boot_id=boot_id,
            universe=Universe(boot_id, _text(document["driverVersion"]), npus),
            bases=tuple(_base_in(entry) for entry in _entries(document["bases"])),
            workers=tuple(_worker_in(entry) for entry in _entries(document["workers"])),
            # The first release that wrote version 1 had none of these.
            cut_by=None if document.get("cutBy") is None else _cutting_in(document["cutBy"]),
            settled=_settled_in(document.get("settled", {})),
            spec=_spec_in(document.get("spec")),
            own=document.get("own") is True,
            irqs=tuple(_irq_in(entry) for entry in _entries(document.get("irqs", []))),
            bans=None if document.get("bans") is None else _bans_in(document["bans"]),
            uvb=tuple(_uvb_in(entry) for entry in _entries(document.get("uvb", []))),
            confined=tuple(_confined_in(entry) for entry in _entries(document.get("confined", []))),
            begun_at=_number(document.get("begunAt", 0)),
            lost=document.get("lost") is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(Reason.STATE_UNREADABLE, f"journal is damaged: {printable(repr(error), 120)}") from None


def load(path: Path, boot_id: str) -> tuple[Journal, Problem | None]:
    """The journal of this boot. A damaged one is renamed to ``*.damaged`` and reported, never a reason not to start.

    What can't be read, or is no regular file, stays where it is, and `save` does not replace it. Refused(InvalidSpec)
    for a path that names no file.
    """
    _check(path)
    try:
        text = _read(path, Reason.STATE_UNREADABLE)
    except Refused as refused:
        return Journal(boot_id=boot_id), refused.problem
    try:
        return (parse(text) if text is not None else Journal()).of_boot(boot_id), None
    except Refused as refused:
        message = f"{refused.message}; {_set_aside(path)}"
        return Journal(boot_id=boot_id), replace(refused.problem, message=message)


def save(path: Path, journal: Journal) -> Problem | None:
    """Writes the journal; a Problem (StateNotWritten) where it has no room for some masks that threads had before.

    Refused(StateNotWritten) for an OSError, where `load` could not read what is there or will be, and for a spec that
    JSON has no words for."""
    _check(path)
    try:
        _read(path, Reason.STATE_NOT_WRITTEN)
        text, problem = _fitting(journal)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, mode=0o600)
    except OSError as error:
        raise Refused(Reason.STATE_NOT_WRITTEN, f"{printable(str(path), 150)}: {error.strerror}") from error
    except (TypeError, ValueError) as error:
        raise Refused(Reason.STATE_NOT_WRITTEN, f"journal: spec: {printable(str(error), 120)}") from None
    return problem


def _fitting(journal: Journal) -> tuple[str, Problem | None]:
    """The text of a journal that `load` will read: where that has no room for all masks, without those of the workers
    and helpers that have most of them. How many threads there are, and how long their masks, is up to the workload;
    nobody else is to be forgotten for it."""
    text = dump(journal)
    too_much = _weight(text) - 1
    if too_much <= 0:
        return text, None
    weights = [(_weight(json.dumps(_masks_out(e.masks), indent=1)), e.process) for e in journal.workers]
    weights += [(_weight(json.dumps(_masks_out(e.masks), indent=1)), e.process) for e in journal.confined]
    dropped: set[ProcessId] = set()
    for weight, process in sorted(weights, reverse=True):
        if too_much > 0:
            dropped.add(process)
            too_much -= weight
    text = dump(
        replace(
            journal,
            workers=tuple(replace(w, masks={}) if w.process in dropped else w for w in journal.workers),
            confined=tuple(replace(c, masks={}) if c.process in dropped else c for c in journal.confined),
        )
    )
    if _weight(text) > 1:
        raise Refused(Reason.STATE_NOT_WRITTEN, f"journal: {len(text)} bytes are more than would be read")
    pids = printable(", ".join(str(process.pid) for process in sorted(dropped)), 60)
    message = f"journal: no room for the masks that threads had of process {pids}: a restart forgets them"
    return text, Problem(Reason.STATE_NOT_WRITTEN, message)


def _weight(text: str) -> float:
    """What a text takes of what is read at most."""
    return max(len(text) / MAX_BYTES, memory_of(text) / documents.MAX_BYTES)


def _check(path: Path) -> None:
    if not path.name:
        raise Refused(Reason.INVALID_SPEC, f"journal file {printable(repr(str(path)), 60)}: not the name of a file")


def _read(path: Path, reason: Reason) -> str | None:
    if (kind := irregular(path)) is not None:
        raise Refused(reason, f"journal {printable(str(path), 150)} is {kind}, not a regular file")
    return read_text(path, reason, limit=MAX_BYTES, sized=True)


def _set_aside(path: Path) -> str:
    """Gives a damaged journal a name that nothing has yet, and says how that went."""
    for number in range(MAX_ASIDE):
        aside = path.with_name(f"{path.name}.damaged" + (f".{number}" if number else ""))
        if os.path.lexists(aside):
            continue
        try:
            path.rename(aside)
        except OSError as error:
            return f"could not be set aside: {error.strerror}"
        return f"set aside as {printable(aside.name, 80)}"
    return f"not set aside: there are {MAX_ASIDE} already"


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


def _cutting_out(cutting: Cutting) -> dict[str, Any]:
    return {
        "strategy": cutting.strategy,
        "deviceType": cutting.device_type,
        "reservedCpus": str(cutting.reserved_cpus),
        "includeIsolatedCpus": cutting.include_isolated_cpus,
    }


def _cutting_in(entry: Mapping[str, Any]) -> Cutting:
    strategy, device_type = entry["strategy"], entry["deviceType"]
    return Cutting(
        strategy=None if strategy is None else Strategy(strategy),
        device_type=None if device_type is None else DeviceType(device_type),
        reserved_cpus=CpuSet.parse(entry["reservedCpus"]),
        include_isolated_cpus=entry["includeIsolatedCpus"] is True,
    )


def _worker_in(entry: Mapping[str, Any]) -> BoundWorker:
    roles = entry["roles"]
    return BoundWorker(
        process=_process_in(entry),
        pool=CpuSet.parse(entry["pool"]),
        roles=Roles(**{name: CpuSet.parse(roles[name]) for name in ("irq", "main", "acl", "release")}),
        container=_text(entry.get("container", "")),
        complete=entry.get("complete", True) is True,
        left=CpuSet.parse(entry.get("left", "")),
        told=CpuSet.parse(entry.get("told", "")),
        masks=_masks_in(entry),
        memory=None if entry.get("memory") is None else _memory_in(entry["memory"]),
    )


def _process_out(process: ProcessId) -> dict[str, Any]:
    return {"pid": process.pid, "startTime": process.start_time}


def _process_in(entry: Mapping[str, Any]) -> ProcessId:
    return ProcessId(_number(entry["pid"]), _number(entry["startTime"]))


def _masks_out(masks: Mapping[ThreadId, CpuSet]) -> dict[str, Any]:
    """Masks by thread. One that takes long to write, such as every second CPU of 640, is mostly that of a whole process
    and is written once: of the release before, which does not know these, a thread with one gets all CPUs back."""
    texts = {mask: str(mask) for mask in set(masks.values())}
    short: list[list[Any]] = []
    long: dict[str, list[list[int]]] = {}
    for thread, mask in sorted(masks.items()):
        text = texts[mask]
        if len(text) > LONG_MASK:
            long.setdefault(text, []).append([thread.tid, thread.start_time])
        else:
            short.append([thread.tid, thread.start_time, text])
    return {"masks": short} | ({"longMasks": long} if long else {})


def _masks_in(entry: Mapping[str, Any]) -> dict[ThreadId, CpuSet]:
    short = _entries(entry.get("masks", []))
    masks = {ThreadId(_number(tid), _number(start)): CpuSet.parse(text) for tid, start, text in short}
    for text, threads in entry.get("longMasks", {}).items():
        mask = CpuSet.parse(text)
        masks.update({ThreadId(_number(tid), _number(start)): mask for tid, start in _entries(threads)})
    return masks


def _memory_out(memory: MemoryOutcome) -> dict[str, Any]:
    return {
        "state": memory.state,
        "reason": "" if memory.problem is None else memory.problem.reason.value,
        "message": "" if memory.problem is None else memory.problem.message,
        "node": memory.node,
        "moved": memory.moved,
        "left": memory.left,
        "skipped": memory.skipped,
    }


def _memory_in(entry: Mapping[str, Any]) -> MemoryOutcome:
    state, reason, node = entry["state"], _text(entry["reason"]), entry["node"]
    if state not in ("Pending", "Moved", "Partial", "Skipped", "Failed"):
        raise ValueError(f"{state!r} is not a state")
    return MemoryOutcome(
        state=state,
        problem=Problem(_reason(reason), _text(entry["message"])) if reason else None,
        node=None if node is None else _number(node),
        moved=_number(entry["moved"]),
        left=_number(entry["left"]),
        skipped=_number(entry["skipped"]),
    )


def _reason(value: str) -> Reason:
    for reason in Reason:
        if reason.value == value:
            return reason
    raise ValueError(f"{value!r} is not a reason")


def _irq_in(entry: Mapping[str, Any]) -> TakenIrq:
    return TakenIrq(
        pci=_text(entry["pci"]),
        action=_text(entry["action"]),
        ordinal=_number(entry["ordinal"]),
        irq=_number(entry["irq"]),
        before=CpuSet.parse(entry["before"]),
        given=CpuSet.parse(entry["given"]),
        earlier=CpuSet.parse(entry.get("earlier", "")),
    )


def _bans_in(entry: Mapping[str, Any]) -> IrqBans:
    return IrqBans(_process_in(entry), frozenset(map(_number, entry["irqs"])))


def _uvb_in(entry: Mapping[str, Any]) -> UvbThread:
    return UvbThread(
        thread=ThreadId(_number(entry["tid"]), _number(entry["startTime"])),
        before=CpuSet.parse(entry["before"]),
        given=CpuSet.parse(entry["given"]),
    )


def _confined_in(entry: Mapping[str, Any]) -> ConfinedProcess:
    return ConfinedProcess(
        process=_process_in(entry),
        container=_text(entry["container"]),
        off=CpuSet.parse(entry["off"]),
        masks=_masks_in(entry),
    )


def _settled_in(value: Mapping[str, Any]) -> Mapping[str, frozenset[int]]:
    return {_text(key): frozenset(map(_number, npus)) for key, npus in value.items()}


def _spec_in(value: object) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a spec")
    return value


def _entries(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a number")
    return value
