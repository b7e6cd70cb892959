"""When a shared domain is cut anew (design 4.9). Time is a parameter: the loop says what time it is."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from agent.model.plan import Plan, PlanInput
from agent.model.spec import Rebalance, Spec
from agent.planning.domains import shared_domains

SETTLE_SECONDS = 10.0
"""Kubelet rewrites cpusets in steps: nothing is cut anew before its input has been still for this long."""
INTERVAL_SECONDS = 300.0
"""At most one new base in this time, unless a bound NPU has no CPUs otherwise."""


@dataclass(slots=True)
class BaseKeeper:
    """Decides whether recorded bases still hold. Two reasons need no decision here, `make_plan` has them: nobody is in
    a shared domain (i), and a running NPU would be left without its CPUs (ii)."""

    taken_at: float = float("-inf")
    spec: Spec | None = None
    """The spec that the bases in force were cut under; None until the first plan, so that a restart cuts nothing."""
    _signature: Hashable = None
    _still_since: float = float("-inf")

    def outdated(self, inp: PlanInput, now: float) -> bool:
        """Whether the bases of `inp` are to be dropped and cut anew: CPUs came back under `OnGrow` (iii), or spec
        changed (iv); after the input was still for 10 s, and at most once in 5 minutes."""
        signature = (inp.topology, inp.containers, inp.spec)
        if signature != self._signature:
            self._signature, self._still_since = signature, now
        if self.spec is None:
            self.spec = inp.spec
        wanted = self._cuts_differently(inp.spec) or (inp.spec.rebalance is Rebalance.ON_GROW and _grown(inp))
        return wanted and now - self._still_since >= SETTLE_SECONDS and now - self.taken_at >= INTERVAL_SECONDS

    def planned(self, inp: PlanInput, plan: Plan, now: float) -> None:
        """Takes note of the bases that a plan put into force."""
        if plan.bases != inp.bases:
            self.taken_at, self.spec = now, inp.spec

    def _cuts_differently(self, spec: Spec) -> bool:
        return self.spec is not None and _cutting(self.spec) != _cutting(spec)


def _cutting(spec: Spec) -> Hashable:
    """The fields of a spec that a cut depends on."""
    return spec.strategy, spec.device_type, spec.reserved_cpus, spec.include_isolated_cpus


def _grown(inp: PlanInput) -> bool:
    """Whether a shared domain may use CPUs now that its base lacks."""
    domains = shared_domains(inp, [], inp.bases)
    return any(domain.allowed and not domain.cpus <= domain.base for domain in domains)
