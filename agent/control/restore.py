"""Give everything back that the journal has, without an agent: what ``cpubind restore`` does."""

from __future__ import annotations

from dataclasses import dataclass

from agent.control.act import Actor, ActResult
from agent.control.journal import Journal
from agent.control.observe import Observer
from agent.control.steps import HostSteps, StepsResult
from agent.control.undo import Surroundings

LOOKS = 2
"""The second finds what was forked during the first."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was given back, and the journal of what was not. Nothing is left where its `taken` is empty."""

    act: ActResult
    steps: StepsResult
    journal: Journal


def restore_all(
    actor: Actor, steps: HostSteps, observer: Observer, journal: Journal, *, looks: int = LOOKS
) -> Restored:
    """Undoes what a journal of this boot has. Refused where the host's CPUs or processes can't be read."""
    actor.adopt(journal)
    steps.adopt(journal)
    act, beside = ActResult(), StepsResult()
    for _ in range(looks):
        around = Surroundings.of(observer, now=0.0)
        beside = steps.restore(around, actor.bindings).after(beside)
        act = actor.restore(around).after(act)
        if not (act.replan or beside.again):
            break
    return Restored(act, beside, steps.noted(actor.noted(journal)))
