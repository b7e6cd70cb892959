"""Every metric that there is: its name, its type, what it says, and which values its labels have.

`agent.telemetry.metrics` exports nothing that is not here, and no label value that is none of these; docs/metrics.md is
made from it (`agent.telemetry.metrics_page`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from agent.model.figures import (
    COMMANDS,
    EVENT_STREAMS,
    FAST_SECONDS,
    IRQ_STATES,
    MEMORY_RESULTS,
    OPERATION_RESULTS,
    OPERATION_ROLES,
    PASS_SECONDS,
    PLAN_CHANGES,
    QUERIES,
    QUERY_SECONDS,
    START_SECONDS,
    THREAD_ROLES,
    WORKER_ROLES,
)
from agent.model.node import DeviceType
from agent.model.outcome import DRIFT_KINDS, REPAIR_RESULTS
from agent.model.reason import Reason
from agent.model.spec import Role, Strategy

Kind = Literal["gauge", "counter", "histogram", "info"]

OTHER: Final = "other"
NO_ANSWER: Final = "error"
"""The code of an API request that was not answered."""

WORKER_STATES: Final = ("Bound", "Partial", "Pending", "Planned", "Failed", "Skipped")
"""States of workers (design section 7)."""
VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete")
WATCHED: Final = ("pods", "cpubindingplans")
CONDITIONS: Final = ("Ready", "TopologyDiscovered", "PlanValid", "Bound", "Degraded", "Restored")


@dataclass(frozen=True, slots=True)
class Label:
    """A label and the values that it can have: those listed, or those of a form. Any other becomes `instead`."""

    name: str
    values: tuple[str, ...] = ()
    form: str = ""
    """A regular expression, where they are not listed."""
    said: str = ""
    """What `form` means, for people; or what else there is to say of the values."""
    instead: str = OTHER

    def fitted(self, value: str) -> str:
        known = value in self.values or bool(self.form and re.fullmatch(self.form, value))
        return value if known else self.instead


def _words(kind: type[Reason | Role | Strategy | DeviceType]) -> tuple[str, ...]:
    return tuple(one.value for one in kind)


NPU: Final = Label("npu", form=r"[0-9]{1,4}", said="the logical NPU id")
REASON: Final = Label("reason", _words(Reason), said="one of [reasons.md](reasons.md)")
ROLE: Final = Label("role", _words(Role))
NAME: Final = Label("", form=r"(?s).{1,253}", said="a name in the API server", instead="")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. The name of a counter ends in ``_total``, that of an info in ``_info``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    bounds: Sequence[float] = ()
    """Of the buckets of a histogram."""

    @property
    def stem(self) -> str:
        """As prometheus-client wants it, which adds the ending by itself."""
        return self.name.removesuffix("_total" if self.kind == "counter" else "_info" if self.kind == "info" else "")

    def fitted(self, values: Sequence[str]) -> tuple[str, ...]:
        return tuple(label.fitted(value) for label, value in zip(self.labels, values, strict=True))


BUILD: Final = Family(
    "cpubind_build_info",
    "info",
    "Version of the agent; always 1.",
    (Label("version", form=r"[0-9A-Za-z.+-]{1,64}", said="that of the package"),),
)
NODE: Final = Family(
    "cpubind_node_info",
    "info",
    "What kind of node this is; always 1. A label is `unknown` until the agent knows.",
    (
        Label("strategy", _words(Strategy), instead="unknown"),
        Label("device_type", tuple(t.value for t in DeviceType if t is not DeviceType.UNKNOWN), instead="unknown"),
        Label("architecture", ("aarch64", "x86_64", "unknown")),
        Label("cgroup", ("v1", "v2", "hybrid"), said="where cpusets are", instead="unknown"),
        Label(
            "cpu_manager_policy",
            ("none", "static"),
            said="kubelet's",
            instead="unknown",
        ),
        Label("events", EVENT_STREAMS, said="whether the kernel's events of processes are heard"),
    ),
)
NPUS: Final = Family("cpubind_npus", "gauge", "NPUs in the plan; 0 while there is none.")
WORKERS: Final = Family(
    "cpubind_workers",
    "gauge",
    "NPU workers that are to be bound, by state; one that is on several NPUs counts once.",
    (Label("state", WORKER_STATES),),
)
POD_WORKERS: Final = Family(
    "cpubind_pod_workers",
    "gauge",
    "NPU workers of a pod by state, of those that the plan lists (16 an NPU). Only where asked for: they come and go.",
    (replace(NAME, name="namespace"), replace(NAME, name="pod"), Label("state", WORKER_STATES)),
)
CONDITION: Final = Family(
    "cpubind_condition",
    "gauge",
    "1 for each condition of the plan as it is now.",
    (Label("type", CONDITIONS), Label("status", ("True", "False", "Unknown")), REASON),
)
THREADS: Final = Family(
    "cpubind_threads",
    "gauge",
    "Threads of workers that are to be bound by the role that their names tell, and UVB threads.",
    (Label("role", THREAD_ROLES),),
)
POOL: Final = Family("cpubind_pool_cpus", "gauge", "CPUs that the plan has for an NPU, by role.", (NPU, ROLE))
OVERLAP: Final = Family(
    "cpubind_overlap_cpus",
    "gauge",
    "CPUs that more than one NPU has, by the plan or by what its workers are bound to. There should be none.",
)
IRQS: Final = Family(
    "cpubind_irqs",
    "gauge",
    "Interrupts of NPUs with a bound worker: on the CPUs that the plan has for them, or elsewhere.",
    (Label("state", IRQ_STATES),),
)
LOCALITY: Final = Family(
    "cpubind_memory_locality_ratio",
    "gauge",
    "Part of the anonymous memory of the containers on an NPU that is on NUMA nodes of their workers' main CPUs.",
    (NPU,),
)
JOURNAL: Final = Family(
    "cpubind_journal_entries",
    "gauge",
    "What the agent changed on the host and would give back: workers, interrupts, …",
)
LAST_SWEEP: Final = Family(
    "cpubind_last_sweep_timestamp_seconds",
    "gauge",
    "Unix time when a pass of the loop ended that did not fail; absent before.",
)
EVENT_STREAM: Final = Family(
    "cpubind_event_stream_up",
    "gauge",
    "Whether the kernel's events of processes are heard; without them sweeps find everything.",
)
WATCH_AGE: Final = Family(
    "cpubind_watch_age_seconds",
    "gauge",
    "Time since the API server listed, opened a watch or told of a change, or, before it did, since it was asked.",
    (Label("resource", WATCHED),),
)
OPERATIONS: Final = Family(
    "cpubind_bind_operations_total",
    "counter",
    "Threads and interrupts that were moved, and those that could not be, by role.",
    (Label("role", OPERATION_ROLES), Label("result", OPERATION_RESULTS), REASON),
)
BIND_SECONDS: Final = Family(
    "cpubind_bind_duration_seconds",
    "histogram",
    "Time of a pass over the threads of one worker that moved any.",
    bounds=PASS_SECONDS,
)
START_TO_BOUND: Final = Family(
    "cpubind_worker_start_to_bound_seconds",
    "histogram",
    "Time from the start of a worker's process until it was bound, of those that began under the agent and Enforce.",
    bounds=START_SECONDS,
)
EVENT_TO_PINNED: Final = Family(
    "cpubind_event_to_pinned_seconds",
    "histogram",
    "Time from the kernel's event of a thread until the thread was put in place.",
    bounds=FAST_SECONDS,
)
DRIFT_DETECTED: Final = Family(
    "cpubind_drift_detected_total",
    "counter",
    "Threads and interrupts found elsewhere than where they had been put.",
    (Label("kind", DRIFT_KINDS),),
)
DRIFT_REPAIRED: Final = Family(
    "cpubind_drift_repaired_total",
    "counter",
    "What came of threads and interrupts found elsewhere, by result.",
    (Label("kind", DRIFT_KINDS), Label("result", REPAIR_RESULTS)),
)
MEMORY: Final = Family(
    "cpubind_memory_bytes_total",
    "counter",
    "Memory of workers that was to be moved to the NUMA node of their main CPUs, by what came of it.",
    (Label("result", MEMORY_RESULTS),),
)
SWITCHES: Final = Family(
    "cpubind_involuntary_context_switches_total",
    "counter",
    "How often threads of bound workers were taken off a CPU before they were done, which binding is there to lower.",
    (NPU, Label("role", tuple(role.value for role in WORKER_ROLES))),
)
PLAN_CHANGES_TOTAL: Final = Family(
    "cpubind_plan_changes_total",
    "counter",
    "How often pools or roles of NPUs became other ones, by what had changed.",
    (Label("reason", PLAN_CHANGES),),
)
QUERY_DURATION: Final = Family(
    "cpubind_npu_query_duration_seconds",
    "histogram",
    "Time until npu-smi answered or was given up, by what it was asked.",
    (Label("command", QUERIES),),
    bounds=QUERY_SECONDS,
)
QUERY_ERRORS: Final = Family(
    "cpubind_npu_query_errors_total",
    "counter",
    "Queries of npu-smi without an answer; with command `tables` answers that could not be used.",
    (Label("command", COMMANDS), REASON),
)
API_REQUESTS: Final = Family(
    "cpubind_api_requests_total",
    "counter",
    f"Requests to the Kubernetes API server by verb and HTTP status code; `{NO_ANSWER}` without an answer.",
    (
        Label("verb", VERBS),
        Label("code", (NO_ANSWER,), form=r"[1-5][0-9][0-9]", said="an HTTP status", instead=NO_ANSWER),
    ),
)

FAMILIES: Final = (
    BUILD, NODE, NPUS, WORKERS, POD_WORKERS, CONDITION, THREADS, POOL, OVERLAP, IRQS, LOCALITY, SWITCHES, OPERATIONS,
    BIND_SECONDS, START_TO_BOUND, EVENT_TO_PINNED, DRIFT_DETECTED, DRIFT_REPAIRED, MEMORY, PLAN_CHANGES_TOTAL, JOURNAL,
    LAST_SWEEP, EVENT_STREAM, QUERY_DURATION, QUERY_ERRORS, API_REQUESTS, WATCH_AGE,
)  # fmt: skip
