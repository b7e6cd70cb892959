"""When a shared domain is cut anew (design 4.9). Time is a parameter: the loop says what time it is."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from agent.model.plan import Plan, PlanInput
from agent.model.spec import Cutting, Rebalance
from agent.planning.domains import shared_domains

SETTLE_SECONDS = 10.0
"""Kubelet rewrites cpusets in steps: nothing is cut anew before its input has been still for this long."""
INTERVAL_SECONDS = 300.0
"""At most one new base in this time, unless a bound NPU has no CPUs otherwise."""


@dataclass(slots=True)
class BaseKeeper:
    """Decides whether recorded bases still hold. Two reasons need no decision here, `make_plan` has them: nobody is in
    a shared domain (i), and a running NPU would be left without its CPUs (ii)."""

    cut_by: Cutting | None = None
    """What the bases in force were cut by; for the journal, since settings change while no agent runs. None where
    nobody noted it: then it is taken to be what the first plan is made by, so that an upgrade cuts nothing."""
    taken_at: float = float("-inf")
    _signature: Hashable = None
    _still_since: float = float("-inf")

    def outdated(self, inp: PlanInput, now: float) -> bool:
        """Whether the bases of `inp` are to be dropped and cut anew: CPUs came back under `OnGrow` (iii), or spec
        changed (iv); after the input was still for 10 s, and at most once in 5 minutes."""
        signature = (inp.topology, inp.containers, inp.spec)
        if signature != self._signature:
            self._signature, self._still_since = signature, now
        if self.cut_by is None:
            self.cut_by = Cutting.of(inp.spec)
        changed = self.cut_by != Cutting.of(inp.spec)
        wanted = changed or (inp.spec.rebalance is Rebalance.ON_GROW and _grown(inp))
        return wanted and now - self._still_since >= SETTLE_SECONDS and now - self.taken_at >= INTERVAL_SECONDS

    def planned(self, inp: PlanInput, plan: Plan, now: float, *, anew: bool) -> None:
        """Takes note of the bases that a plan put into force; `anew`: those of `inp` were dropped for it.

        Where these were kept, be it beside one that came, they are still cut by what they were cut by. Where the same
        ones came of it they are cut by what spec asks for now: else the next change of a cpuset would move everybody.
        """
        if anew or not inp.bases:
            self.cut_by = Cutting.of(inp.spec)
        if plan.bases != inp.bases:
            self.taken_at = now


def _grown(inp: PlanInput) -> bool:
    """Whether a shared domain may use CPUs now that its base lacks."""
    domains = shared_domains(inp, [], inp.bases)
    return any(domain.allowed and not domain.cpus <= domain.base for domain in domains)
