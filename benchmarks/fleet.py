"""``python -m benchmarks.fleet``: what a fleet of agents asks of its API server.

So many agents run against one real kube-apiserver with its etcd, on loopback, each in a process of its own (or some in
one, by --together), with a token of its own and the settings that it has by default. Their hosts are virtual ones.
There is no kubelet and no scheduler: Nodes, pods and what becomes of these is played here. KUBEBUILDER_ASSETS names the
folder with etcd and kube-apiserver (see setup-envtest).

What is done, one after the other:

  install   all agents start at once, on nodes whose workers run: who has a worker that waits asks at once
  idle      nothing happens, for so long that each watch is renewed
  pods      a rolling update: on all nodes at once one pod after the other is replaced by its successor
  upgrade   all agents get SIGTERM and start again at once
  crash     the same by SIGKILL
  outage    the API server is killed, and starts again after some seconds
  held      what it all leaves behind

It prints one table of figures per agent, from the API server's own metrics and, where requests are counted, its audit
log. Counts are the same on any machine; seconds, CPU and memory are this machine's. Ctrl-C ends all that was started.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from agent.demo.fake_files import scratch
from agent.demo.profiles import PROFILES
from benchmarks.clock import machine, progress
from benchmarks.figures import Figure, Outcome, single, table
from benchmarks.fleet_counts import Totals, busiest_second, etcd_bytes, sorts, totals, unselected
from benchmarks.fleet_node import NAMESPACE, PODS, FleetError, NodeProcess, Place, ask_all
from tests.cluster.cluster import Request
from tests.cluster.real_apiserver import missing_assets, started_twice

T = TypeVar("T")

RESULTS = Path(__file__).parent / "fleet.json"
FIRST_START = 7.0
"""Requests of a first start, without its events: LIST and WATCH of pods and plan, the Node, the plan, its status.
tests/api/test_api_quiet.py holds a single agent to it."""
START = 4.0
"""Of any other: LIST and WATCH of pods and plan."""
QUIET_SECONDS = 3.0
"""After the last answer that is waited for events and bookmarks may still be under way."""
OUTAGE_SECONDS = 8.0
PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    nodes: int = 100
    profile: str = "a3"
    others: int = 8
    idle: float = 310.0
    together: int = 1
    """Agents in one process."""
    folder: Path | None = None
    """Where the virtual hosts are; in memory unless there is a wish."""
    settings: Mapping[str, Any] | None = None
    """Of the agents; those that they have by default where it is None."""


@dataclass(frozen=True, slots=True)
class OwnWatch:
    """What the API server sends to itself for one pod that is replaced."""

    events: float
    size: float


class Fleet(ExitStack):
    """An API server and nodes; a context manager, at whose end all of it is gone."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.nodes: list[NodeProcess] = []
        self.own = OwnWatch(0.0, 0.0)
        folder = Path(tempfile.mkdtemp(prefix="cpubind-fleet-", dir=options.folder or scratch()))
        self.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            self._build(folder)
        except BaseException:
            self.close()
            raise

    def _build(self, folder: Path) -> None:
        options = self.options
        progress("etcd and kube-apiserver")
        self.server = started_twice(Path(os.environ["KUBEBUILDER_ASSETS"]))
        self.callback(self.server.close)
        self.server.ensure_namespace(NAMESPACE)
        places = [self._place(folder / f"{options.profile}-{number:04}") for number in range(options.nodes)]
        for some in _batches(places, options.together):
            self.nodes.append(NodeProcess(some))
            self.callback(self.nodes[-1].close)
        progress(f"{options.nodes} nodes, each with {PODS + options.others} pods")
        for batch in _batches(self.nodes, 10):
            ask_all(batch, "make", timeout=PATIENCE)
        self.totals()

    def _place(self, folder: Path) -> Place:
        folder.mkdir()
        options = self.options
        return Place(
            name=folder.name,
            folder=folder,
            port=self.server.port,
            ca=self.server.ca,
            admin_token=self.server.admin_token,
            token=self.server.another_token(),
            profile=options.profile,
            others=options.others,
            settings=dict(DEFAULTS if options.settings is None else options.settings),
        )

    def totals(self) -> Totals:
        return totals(self.server.admin.ask("GET", "/metrics").text)

    def weigh_own_watch(self) -> None:
        """The API server itself watches all pods, for tokens are bound to them; its metrics count that with the rest.
        What a pod that is replaced costs there is seen while there is no agent."""
        nodes = self.nodes[:3]
        before = self.totals()
        replaced = len(ask_all(nodes, "restart_pod", 0, timeout=PATIENCE))
        time.sleep(1.0)
        after = self.totals()
        self.own = OwnWatch(
            (after.events["Pod"] - before.events["Pod"]) / replaced,
            (after.event_bytes["Pod"] - before.event_bytes["Pod"]) / replaced,
        )

    def etcd(self) -> float:
        """Bytes that etcd has in use."""
        return etcd_bytes(self.server.etcd_metrics())

    def requests(self, since: float) -> list[Request]:
        """What the agents asked; the audit log says it a moment later."""
        time.sleep(0.5)
        return self.server.requests(since)

    def settle(self) -> float:
        """Until every worker is bound and all plans are written; the seconds until then, at which it was looked."""
        begun = time.monotonic()
        while not all(ask_all(self.nodes, "settled", timeout=PATIENCE)):
            if time.monotonic() - begun > PATIENCE:
                raise FleetError(f"not settled in {PATIENCE:g} s")
            time.sleep(0.3)
        took = time.monotonic() - begun
        time.sleep(QUIET_SECONDS)
        return took


DEFAULTS: Mapping[str, Any] = {"sweep_interval": 5.0, "status_interval": 10.0, "api_jitter": 10.0, "irq_binding": True}
"""The agent's own; the rig of the tests is quicker."""


@dataclass(slots=True)
class Phase:
    """What was seen of one phase."""

    fleet: Fleet
    requests: list[Request]
    before: Totals
    after: Totals
    settled: float = 0.0

    @property
    def agents(self) -> int:
        return self.fleet.options.nodes

    def each(self, name: str, count: float, unit: str = "", **more: Any) -> Figure:
        """Per agent."""
        return single(name, count / self.agents, unit=unit, **more)

    def count(self, *kinds: str) -> int:
        found = sorts(self.requests)
        return sum(found[kind] for kind in kinds)

    def asked(self, budget: float | None = None) -> list[Figure]:
        """How much was asked, and when."""
        kinds = ", ".join(f"{kind} {n / self.agents:.3g}" for kind, n in sorted(sorts(self.requests).items()))
        refused = sum(request.code >= 400 for request in self.requests)
        return [
            self.each("requests", len(self.requests), budget=budget, note=kinds or "none"),
            self.each("requests in the busiest second", busiest_second(self.requests)),
            single("LIST, WATCH without selector or version", unselected(self.requests), unit="", budget=0.0),
            self.each("refused", refused),
        ]

    def sent(self, pods: int = 0) -> list[Figure]:
        """How much was sent, to watches and else, without what the API server's own watch got for so many pods that
        were replaced."""
        after, before, own = self.after, self.before, self.fleet.own
        events = sum(after.events.values()) - sum(before.events.values()) - pods * own.events
        sizes = sum(after.event_bytes.values()) - sum(before.event_bytes.values()) - pods * own.size
        return [
            self.each("answers to LIST and GET", (after.answer_bytes - before.answer_bytes) / 1024, "KiB"),
            self.each("watch events", events),
            self.each("watch events' size", sizes / 1024, "KiB"),
        ]

    def written(self, plans: float | None = None, events: float | None = None) -> list[Figure]:
        """What was written to the API server."""
        return [
            self.each("plan writes", self.count("create plan", "patch status"), budget=plans),
            self.each("events written", self.count("create event", "patch event"), budget=events),
        ]

    def cost(self) -> list[Figure]:
        """Of the API server's."""
        spent = self.after.cpu_seconds - self.before.cpu_seconds
        return [self.each("API server's CPU time", 1000 * spent, "ms", note="the bench's own requests included")]


@contextmanager
def phase(fleet: Fleet, name: str) -> Iterator[Phase]:
    """Counts what happens within."""
    progress(name)
    before, begun = fleet.totals(), time.time()
    seen = Phase(fleet, [], before, before)
    yield seen
    seen.after, seen.requests = fleet.totals(), fleet.requests(begun)


def measure(options: Options) -> dict[str, Outcome]:
    """All phases, in order."""
    found: dict[str, list[Figure]] = {}
    with Fleet(options) as fleet:
        empty = fleet.totals()
        fleet.weigh_own_watch()
        with phase(fleet, "install: all agents start at once") as seen:
            ask_all(fleet.nodes, "start")
            seen.settled = fleet.settle()
        found["install"] = [
            *seen.asked(FIRST_START + PODS + 2),  # events, and a second write where the first came half-way
            *seen.written(),
            *seen.sent(),
            single("until all is bound and reported", seen.settled, unit="s"),
            *seen.cost(),
        ]
        found["idle"] = _idle(fleet)
        found["pods"] = _pods(fleet)
        for name, command, plans in (("upgrade", "stop", 2.0), ("crash", "kill", 0.0)):
            found[name] = _restart(fleet, name, command, plans)
        found["outage"] = _outage(fleet, empty)
        found["held"] = _held(fleet, empty)
    return {name: {entry.name: entry for entry in figures} for name, figures in found.items()}


def _idle(fleet: Fleet) -> list[Figure]:
    seconds = fleet.options.idle
    with phase(fleet, f"idle: {seconds:g} s in which nothing happens") as seen:
        time.sleep(seconds)
    others = len(seen.requests) - seen.count("watch pods", "watch plan")
    return [
        *seen.asked(),
        *seen.written(plans=0.0, events=0.0),
        single("requests that renew no watch", others, unit="", budget=0.0),
        single("requests/s of the fleet", len(seen.requests) / seconds, unit="/s"),
        *seen.sent(),
        *seen.cost(),
    ]


def _pods(fleet: Fleet) -> list[Figure]:
    with phase(fleet, f"pods: {PODS} pods of each node, one after the other, are replaced") as seen:
        for number in range(PODS):
            for batch in _batches(fleet.nodes, 10):
                ask_all(batch, "restart_pod", number)
            seen.settled = fleet.settle()
    figures = [*seen.written(), *seen.sent(PODS * fleet.options.nodes), *seen.cost()]
    return [*seen.asked(), *map(_per_pod, figures)]


def _per_pod(entry: Figure) -> Figure:
    """Of what is counted per agent: per pod that was replaced."""
    return single(f"{entry.name}, per pod", entry.value / PODS, unit=entry.unit, note=entry.note)


def _restart(fleet: Fleet, name: str, command: str, plans: float) -> list[Figure]:
    before = ask_all(fleet.nodes, "writes")
    with phase(fleet, f"{name}: all agents end and start again at once") as seen:
        ask_all(fleet.nodes, command)
        ask_all(fleet.nodes, "start")
        seen.settled = fleet.settle()
    moved = sum(ask_all(fleet.nodes, "writes")) - sum(before)
    return [
        *seen.asked(START + plans),
        *seen.written(plans=plans, events=0.0),
        single("sched_setaffinity calls", moved, unit="", budget=0.0),
        *seen.sent(),
        single("until all have asked, and their plans are right", seen.settled, unit="s"),
        *seen.cost(),
    ]


def _outage(fleet: Fleet, empty: Totals) -> list[Figure]:
    progress(f"outage: the API server is killed, and starts again after {OUTAGE_SECONDS:g} s")
    begun = time.time()
    fleet.server.stop()
    time.sleep(OUTAGE_SECONDS)
    fleet.server.start()
    wanted = 2 * fleet.options.nodes + empty.watchers
    back = time.monotonic()
    while fleet.totals().watchers < wanted:
        if time.monotonic() - back > PATIENCE:
            raise FleetError(f"not all watches are open again in {PATIENCE:g} s")
        time.sleep(0.5)
    took = time.monotonic() - back
    fleet.settle()
    time.sleep(QUIET_SECONDS)
    now = fleet.totals()
    seen = Phase(fleet, fleet.requests(begun), now, now)
    return [
        *seen.asked(),
        *seen.written(plans=0.0, events=0.0),
        single("until all watches are open again", took, unit="s"),
    ]


def _held(fleet: Fleet, empty: Totals) -> list[Figure]:
    now, agents = fleet.totals(), fleet.options.nodes
    plans = fleet.server.plans.list()
    size = sum(len(json.dumps(plan, separators=(",", ":"))) for plan in plans) / agents / 1024
    status = sum(len(json.dumps(plan["status"], separators=(",", ":"))) for plan in plans) / agents / 1024
    return [
        single("open watches per agent", (now.watchers - empty.watchers) / agents, unit="", budget=2.0),
        single("a plan, as it is sent", size, unit="KiB"),
        single("its status alone", status, unit="KiB"),
        single("memory of the API server", now.rss_bytes / (1 << 20), unit="MiB", note="it was started anew before"),
        single("the same, before the first agent", empty.rss_bytes / (1 << 20), unit="MiB"),
        single("etcd", fleet.etcd() / (1 << 20), unit="MiB", note="not compacted: each version that was ever written"),
    ]


def _batches(all_of_them: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(all_of_them), size):
        yield all_of_them[first : first + size]


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options, results = _parsed(arguments)
    if absent := missing_assets():
        print(absent, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter is ignored where a shell began this in the background
        signal.signal(number, _terminated)
    begun = time.monotonic()
    about = machine()
    try:
        outcomes = measure(options)
    except KeyboardInterrupt:
        print("ended; all that was started is gone", file=sys.stderr)
        return 130
    except FleetError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print(", ".join(f"{key} {value}" if key != "cpu" else value for key, value in about.items()))
    took = time.monotonic() - begun
    print(f"{options.nodes} agents, {options.together} in a process, {took:.0f} s; figures are per agent unless told")
    print(f"each node: {PROFILES[options.profile].title}")
    print(f"with {PODS} pods that hold all its workers, and {options.others} others\n")
    print(table(outcomes))
    over = [f for o in outcomes.values() if not isinstance(o, str) for f in o.values() if f.verdict == "OVER"]
    print(f"\n{len(over)} over budget" if over else "\nall within budget", f"— written to {results}")
    cases = {
        name: {"figures": [figure.as_json() for figure in outcome.values()]}
        for name, outcome in outcomes.items()
        if not isinstance(outcome, str)
    }
    document = {"machine": about, "nodes": options.nodes, "profile": options.profile, "cases": cases}
    results.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if over else 0


def _terminated(*_: object) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT):  # cleaning up is not to be interrupted
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parsed(arguments: list[str] | None) -> tuple[Options, Path]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=_count, default=100, help="how many agents; default: %(default)s")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="a3", help="the hosts; default: %(default)s")
    parser.add_argument("--pods", type=int, default=8, help="pods of each node without workers; default: %(default)s")
    parser.add_argument("--idle", type=float, default=310.0, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--together", type=_count, default=1, help="agents in one process; default: %(default)s")
    parser.add_argument("--folder", type=Path, help="where the virtual hosts are, 5 to 15 MiB each; default: in memory")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="default: %(default)s")
    asked = parser.parse_args(arguments)
    return (
        Options(asked.nodes, asked.profile, asked.pods, asked.idle, asked.together, asked.folder),
        asked.results,
    )


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError("1 to 1000")
    return number


if __name__ == "__main__":
    sys.exit(main())
