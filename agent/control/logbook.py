"""The agent's log: a thing is said when it becomes so, not in every pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from agent.control.act import ActResult
from agent.control.drift import VLLM_ASCEND
from agent.control.report import Report, log_lines
from agent.control.steps import StepsResult
from agent.model.plan import Plan
from agent.model.reason import Problem, Reason
from agent.model.remedies import with_remedy
from agent.model.spec import Mode

log = logging.getLogger("agent.control.loop")


class LogBook:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._said: dict[object, object] = {}
        self._plan: Plan | None = None
        """The one that was looked at last."""

    def tell(self, report: Report, document: Mapping[str, Any], act: ActResult, steps: StepsResult) -> None:
        """A pass: what is new in its report, and what was done."""
        if report.plan is not None and report.plan is not self._plan:
            self._plan = report.plan
            lines = log_lines(report.plan)
            if self._changed("plan", lines):
                for level, line in lines:
                    log.log(level, "%s", line)
        for problem in (*report.faults, *report.notes):
            self.once(problem.reason, problem, logging.WARNING)
        open_now = {problem.reason for problem in (*report.faults, *report.notes)}
        for reason in [key for key in self._said if isinstance(key, Reason) and key not in open_now]:
            self.forget(reason)
            log.info("no longer so: %s", reason)
        summary = document["status"]["summary"]
        if report.plan is not None and self._changed("summary", summary):
            level = logging.WARNING if summary["failed"] else logging.INFO
            log.log(level, "%(bound)d of %(workers)d workers bound, %(failed)d failed, %(skipped)d skipped", summary)
        self._workers(report, act)
        self._steps(report, steps)

    def once(self, key: object, problem: Problem, level: int) -> None:
        """A problem and what to do, when it is another than what was said under this key."""
        if self._changed(key, problem):
            log.log(level, "%s", with_remedy(problem))

    def forget(self, key: object) -> None:
        """What is said under this key the next time is new."""
        self._said.pop(key, None)

    def _workers(self, report: Report, act: ActResult) -> None:
        dry = report.spec.mode is Mode.DRY_RUN
        withheld = {process.pid: outcome.written for process, outcome in act.outcomes.items()} if dry else {}
        if dry and self._changed("dry run", withheld):
            for pid, count in withheld.items():
                log.info("dry run: %d threads of process %d would be moved", count, pid)
        for process, outcome in act.outcomes.items():
            if outcome.repaired and not dry:
                why = f", {outcome.by_cpuset} of them moved with their cpuset" if outcome.by_cpuset else ""
                why += f", all at once, {VLLM_ASCEND}" if outcome.at_once else ""
                log.info("repaired %d threads of process %d%s", outcome.repaired, process.pid, why)
            counts = {role.value: count for role, of in outcome.threads.items() if (count := of.total)}
            log.debug("process %d: %s, threads %s, %d written", process.pid, outcome.state, counts, outcome.written)
        of_workers = [outcome.problem for outcome in act.outcomes.values() if outcome.problem is not None]
        conflicts = [problem for problem in of_workers if problem.reason is Reason.CPU_BINDING_CONFLICT]
        for problem in self._new("conflicts", conflicts):
            log.warning("%s", with_remedy(problem))
        for process, count in act.released.items():
            log.warning("process %d has no plan any more: %d threads given back to their cpuset", process.pid, count)
        for process, count in act.undone.items():
            log.info(
                "process %d is not to be bound any more: %d threads given back to their cpuset", process.pid, count
            )
        for process, count in act.returned.items():
            log.info("put %d threads of descendants of process %d back on main CPUs", count, process.pid)

    def _steps(self, report: Report, steps: StepsResult) -> None:
        dry = report.spec.mode is Mode.DRY_RUN
        for npu, irqs in steps.irqs.items():
            if irqs.written:
                how = "would be placed" if dry else "repaired" if irqs.drift else "placed"
                if not dry or self._changed(f"interrupts of NPU {npu}", irqs.written):
                    log.info("interrupts of NPU %d: %d %s", npu, irqs.written, how)
            self._problem(f"problem of interrupts of NPU {npu}", irqs.problem)
        if steps.uvb is not None:
            if steps.uvb.written and not dry:
                log.info("%d UVB threads %s", steps.uvb.written, "repaired" if steps.uvb.drift else "placed")
            self._problem("problem of UVB threads", steps.uvb.problem)
        if steps.helpers and not dry:
            log.info("took %d threads of helpers off CPUs that are set apart", steps.helpers)
        for kind, count in steps.returned.items():
            log.info("gave %d %s back", count, kind)

    def _problem(self, key: str, problem: Problem | None) -> None:
        """A problem of a step, which is over when there is none; what people turned off is none."""
        if problem is not None and problem.reason is not Reason.SWITCHED_OFF:
            self.once(key, problem, logging.WARNING)
        else:
            self.forget(key)

    def _new(self, key: object, values: list[Problem]) -> list[Problem]:
        """Those that were not among what was said under this key the last time."""
        said = self._said.get(key)
        self._said[key] = values
        return [value for value in values if not (isinstance(said, list) and value in said)]

    def _changed(self, key: object, value: object) -> bool:
        if self._said.get(key) == value:
            return False
        self._said[key] = value
        return True
