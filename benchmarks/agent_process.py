"""``python -m benchmarks.agent_process run --standalone …``: cpubind, on a machine that has too few CPUs for its plan.

An NPU needs five CPUs, sixteen need eighty. So that the agent can be measured where there are two, every worker gets
the first CPU as main and the last one for its ACL and its release thread, whatever was planned. All else is the agent
as it is: the plan is made, and thrown away.
"""

from __future__ import annotations

import os
from dataclasses import replace

import agent.control.plan as planner
from agent.cli import main
from agent.model.cpuset import CpuSet
from agent.model.plan import Allotment, Plan, PlanInput, Roles
from agent.planning.plan import make_plan

EVERY = CpuSet(os.sched_getaffinity(0))
ROLES = Roles(main=CpuSet({min(EVERY)}), acl=CpuSet({max(EVERY)}), release=CpuSet({max(EVERY)}))


def make_small_plan(inp: PlanInput) -> Plan:
    """The plan, with the same roles for every worker."""
    plan = make_plan(inp)
    given = Allotment(EVERY, ROLES)
    return replace(
        plan,
        npus=tuple(replace(npu, allotment=given) for npu in plan.npus),
        workers=tuple(replace(worker, allotment=given) for worker in plan.workers),
    )


if __name__ == "__main__":
    setattr(planner, "make_plan", make_small_plan)  # noqa: B010 - mypy: nothing that the module exports
    main()
