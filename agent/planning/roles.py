"""Splitting a pool into roles (design 4.6, from the CPU-binding design of vLLM-Ascend)."""

from __future__ import annotations

from agent.model.cpuset import CpuSet
from agent.model.plan import Allotment, Roles
from agent.model.reason import Problem, Reason

MIN_POOL = 5
"""SQ interrupt, CQ interrupts, at least one main CPU, ACL thread, release thread."""


def split(pool: CpuSet, *, irq_roles: bool, note: Problem | None = None) -> Allotment:
    """A pool with its roles, or `InsufficientCpus` with the pool that is too small.

    SQ interrupt on pool[0], CQ interrupts on pool[1], main = pool[2:-2], acl = pool[-2], release = pool[-1]; on devices
    whose interrupts are not bound (Ascend 950) main is the whole pool.
    """
    if not irq_roles:
        if not pool:
            return Allotment(
                problem=Problem(
                    Reason.INSUFFICIENT_CPUS, "none of its CPUs may be used (cpuset, reserved, other owners)"
                )
            )
        return Allotment(pool, Roles(main=pool), note=note)
    if len(pool) < MIN_POOL:
        held = f"only {len(pool)} ({pool})" if pool else "none"
        message = f"an NPU needs {MIN_POOL} CPUs, {held} of its CPUs may be used (cpuset, reserved, other owners)"
        return Allotment(pool, problem=Problem(Reason.INSUFFICIENT_CPUS, message))
    irq, main, acl, release = pool.cut([2, len(pool) - 4, 1, 1])
    return Allotment(pool, Roles(main=main, irq=irq, acl=acl, release=release), note=note)
