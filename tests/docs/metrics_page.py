"""Makes docs/metrics.md of the metrics that there are: ``make docs``, or ``python -m tests.docs.metrics_page``."""

from __future__ import annotations

from collections.abc import Iterator

from agent.control.exposed import READ_SECONDS
from agent.node.switches import LOOK_SECONDS
from agent.telemetry.families import FAMILIES, OTHER, REASON, Family, Label
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/metrics.md"

HEAD = """\
# Metrics

Made from the code by `make docs`: edit `agent/telemetry/families.py`, or `tests/docs/metrics_page.py`.

The agent serves `/metrics` for Prometheus, by default on port 9486 of its pod. State is read from the plan when it is
scraped. Labels have the few values that are listed below, so that the number of series does not grow with what runs on
a node: which worker of which pod is where, the plan itself says (`kubectl describe cbp`).

## Where it is served

"""

SERVED = {
    "`CPUBIND_METRICS_ADDRESS` | `metrics.enabled`, `metrics.address`, `metrics.port`": (
        "`HOST:PORT`, `:PORT` for all interfaces, or `off`. In the host's network (`hostNetwork`) the chart says "
        "127.0.0.1 unless it is told otherwise."
    ),
    "`CPUBIND_METRICS_TLS_CERT`, `CPUBIND_METRICS_TLS_KEY` | `metrics.tls.secretName`": (
        "With them there is TLS and nothing in the clear: `tls.crt` and `tls.key` of a Secret. Renewed files are "
        "read by themselves."
    ),
    "`CPUBIND_METRICS_TLS_CLIENT_CA` | `metrics.tls.clientAuth`": (
        "Clients have to show a certificate of this CA, the Secret's `ca.crt` (mTLS)."
    ),
    "`CPUBIND_METRICS_PER_POD` | `metrics.perPod`": "`cpubind_pod_workers`, whose labels are pods' names.",
}

DEFAULTS = """
All of it is for metrics alone: `/healthz` and `/readyz` have a listener of their own, in the clear, for kubelet has no
certificate. A port in use and a certificate that can't be used are `Degraded`, and tried again.

An agent without Kubernetes (`cpubind run --standalone`) serves metrics where it is told to, and by default nowhere: a
bare host has no network policy before it, and mostly nobody who scrapes.

```console
$ cpubind run --standalone --metrics-address 127.0.0.1:9486
```

## What there is
"""

NOTES = f"""
`result` of an operation is `bound` (`AsPlanned`) where the mask was written, by a pass or as soon as the kernel told of
the thread, and `failed` where the kernel refused, with the reason. A failure that the agent tries again in each pass
counts each time; threads that the kernel lets nobody move, UVB threads and interrupts count once. `helper` are other
processes of a worker's container, which are taken off CPUs that are set apart; they have no failures.

`kind` says what had moved, and why: `thread`, by somebody else; `cpuset`, by the kernel after kubelet wrote a cpuset;
`irq`, an interrupt. `result` says what came of it: `repaired`; `left` as it is, since somebody else
[keeps moving it](events.md#two-writers); `failed`, since the kernel refused. What is left and put back later counts
under both.

`reason` of a change of plan is what had changed: `start`, the first plan of this run of the agent; `spec`, what people
ask for; `topology`, the CPUs of the node; `inventory`, its NPUs; `base`, a shared domain was cut anew; `workload`,
containers and workers with their cpusets. A reason of npu-smi that is `NotSupported` is no fault: it does not know the
query.

`cpubind_memory_locality_ratio` is what the kernel tells of containers (`memory.numa_stat` of their cgroups), not of
processes: a container with workers on several NPUs has one ratio, over the NUMA nodes of all of them. It and
`cpubind_involuntary_context_switches_total` are read when somebody scrapes, at most once in
{READ_SECONDS:g} seconds, and the latter for at most {LOOK_SECONDS * 1000:g} ms: of a node with very many threads
the rest has its turn the next times. Both are there in a dry run, too, for the workers that would be bound: what
binding changes can be seen by turning it on.

`cpubind_watch_age_seconds` is below five minutes on a watch of which nothing is wrong: so often it is renewed. There is
none without an API server to ask: of a standalone agent, and on a node without NPUs.

## Questions

```promql
cpubind_condition{{type="Ready", status!="True"}} == 1                      # nodes that are not as asked for, and why
sum(cpubind_workers{{state!="Bound"}})                                      # workers of the fleet that are not bound
time() - cpubind_last_sweep_timestamp_seconds > 60                        # agents whose loop stands still
rate(cpubind_drift_detected_total{{kind!="cpuset"}}[1h]) > 0                # somebody else moves threads or interrupts
rate(cpubind_bind_operations_total{{result="failed"}}[10m]) > 0             # what can't be bound, and why
rate(cpubind_npu_query_errors_total{{reason!="NotSupported"}}[10m]) > 0     # npu-smi fails
cpubind_overlap_cpus > 0                                                  # NPUs that share CPUs
cpubind_watch_age_seconds > 600                                           # the API server is not heard
histogram_quantile(0.99, sum by (le) (rate(cpubind_worker_start_to_bound_seconds_bucket[1h])))
sum by (npu, role) (rate(cpubind_involuntary_context_switches_total[15m]))
sum by (code) (rate(cpubind_api_requests_total[5m]))                      # what the fleet asks of the API server
```
"""


def page() -> str:
    """The whole page."""
    return "".join((HEAD, *_served(), DEFAULTS, *_metrics(), *_labels(), NOTES))


def _served() -> Iterator[str]:
    yield "| setting | value of the chart | |\n|---|---|---|\n"
    for where, what in SERVED.items():
        yield f"| {where} | {what} |\n"


def _metrics() -> Iterator[str]:
    yield "\n| metric | type | labels | what it says |\n|---|---|---|---|\n"
    for family in FAMILIES:
        labels = "".join(f"`{label.name}`, " for label in family.labels).removesuffix(", ")
        kind = "gauge" if family.kind == "info" else family.kind
        yield f"| `{family.name}` | {kind} | {labels} | {family.help} |\n"


def _labels() -> Iterator[str]:
    yield f"\n## Values of labels\n\nA value that is none of these, of a newer kernel say, is `{OTHER}`.\n"
    yield "\n| label | of | values |\n|---|---|---|\n"
    by_label: dict[Label, list[Family]] = {}
    for family in FAMILIES:
        for label in family.labels:
            by_label.setdefault(label, []).append(family)
    for label, families in by_label.items():
        of = ", ".join(f"`{family.name}`" for family in families)
        listed = ", ".join(f"`{value}`" for value in label.values) if label is not REASON else ""
        instead = f"else `{label.instead}`" if label.instead not in (OTHER, "", *label.values) else ""
        yield f"| `{label.name}` | {of} | {'; '.join(part for part in (listed, label.said, instead) if part)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
