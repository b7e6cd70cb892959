"""How a row is tried: nothing bound is unbound, nothing wrong is bound, one reason is reported, and it heals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from agent.model.reason import Reason, Refused
from tests.faults.scene import Masks, Scene, bound, scene

Breaks = Callable[[Scene], AbstractContextManager[object]]
"""Makes the fault, for as long as the context lasts."""


@dataclass(slots=True)
class Seen:
    """What was seen of a fault."""

    reasons: set[str] = field(default_factory=set)
    strays: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What is neither where it was nor where it belongs: (before, then)."""


def while_bound(
    folder: Path, device: str, breaks: Breaks, *, lenient: bool = False, lasting: frozenset[str] = frozenset()
) -> Seen:
    """All are bound and well, then it begins; somebody new comes while it lasts. `lasting` is what is still said of who
    came then: memory is moved once, and is not moved later when it could be."""
    seen = Seen()
    with scene(folder, device) as node:
        node.settle()
        assert node.reasons() == set()
        before = node.masks()
        with breaks(node):
            for _ in node.passes():
                _take(seen, node, before)
            node.another_worker()
            node.rig.settle()
            _take(seen, node, before)
            node.rig.sweep()
            _take(seen, node, before)
        _heals(node, lasting=lasting)
    return seen


def from_the_start(
    folder: Path, device: str, breaks: Breaks, *, lenient: bool = False, lasting: frozenset[str] = frozenset()
) -> Seen:
    """It is there when the agent starts for the first time, on a node whose workers run. `lenient`: what is done is
    within the cpusets, no more is asked."""
    seen = Seen()
    with scene(folder, device) as node:
        with breaks(node):
            _start(seen, node, lenient=lenient)
        if node.rig.agent.passes == 0:
            node.rig.restart()
        node.another_worker()
        _heals(node, exact=not lenient, lasting=lasting)
    return seen


def after_a_restart(
    folder: Path, device: str, breaks: Breaks, *, lenient: bool = False, lasting: frozenset[str] = frozenset()
) -> Seen:
    """All are bound, and it is there when the agent starts anew."""
    seen = Seen()
    with scene(folder, device) as node:
        node.settle()
        before = node.masks()
        with breaks(node):
            node.rig.agent.watch.close()
            try:
                node.rig.restart()
                for _ in node.passes():
                    _take(seen, node, before)
            except Refused as refused:
                seen.reasons.add(refused.reason.value)
                assert before.moved(node.masks()) == {}
        if node.rig.agent.passes == 0 or seen.reasons == {Reason.PROCESS_UNREADABLE}:
            node.rig.restart()
        node.another_worker()
        _heals(node)
    return seen


SCENES = {"bound": while_bound, "started": from_the_start, "restarted": after_a_restart}


def _start(seen: Seen, node: Scene, *, lenient: bool) -> None:
    node.rig.agent.watch.close()
    try:
        node.rig.restart()
    except Refused as refused:
        seen.reasons.add(refused.reason.value)
        assert node.free.moved(node.masks()) == {}
        return
    for _ in node.passes():
        if lenient:
            _within_cpusets(node)
            seen.reasons |= node.reasons()
        else:
            _take(seen, node, node.free)


def _take(seen: Seen, node: Scene, before: Masks) -> None:
    seen.reasons |= node.reasons()
    seen.strays |= before.moved(node.masks(), but_to=bound(node.device))


def _within_cpusets(node: Scene) -> None:
    kernel = node.node.kernel
    for tid, task in kernel.tasks.items():
        assert task.mask, tid
        assert task.mask <= kernel.allowed(tid), tid


def _heals(node: Scene, *, exact: bool = True, lasting: frozenset[str] = frozenset()) -> None:
    """Everybody is bound, nothing is wrong any more, a restart changes nothing, and all of it can be given back. Where
    it is not `exact` the pools may be others: those that are in use stay as they were cut (design section 4.9)."""
    node.rig.settle(700)
    node.settle()
    right = bound(node.device)
    if exact:
        assert right.moved(node.masks()) == {}
    _within_cpusets(node)
    assert node.reasons() == lasting
    assert node.status["summary"]["bound"] == len(node.workers) + 1
    writes = node.rig.writes()
    node.rig.agent.watch.close()
    node.rig.restart()
    node.settle()
    assert node.rig.writes() == writes
    node.rig.ask(mode="Disabled")
    for _ in range(3):
        node.rig.sweep()
    assert node.free.moved(node.masks()) == {}
