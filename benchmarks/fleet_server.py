"""``python -m benchmarks.fleet_server``: what a request of an agent costs an API server with many pods and watches.

For scales that no hundred agents show: one real kube-apiserver gets thousands of pods, spread over nodes, and thousands
of open watches of single plans. Then the LIST of one node's pods, and the write of one plan's status, are made again
and again, and the CPU time of the API server's process is divided by their number. KUBEBUILDER_ASSETS names the folder
with etcd and kube-apiserver.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from agent.kube.api import FIELD_MANAGER
from benchmarks.clock import cpu_seconds, progress, rss_mib
from benchmarks.figures import Figure, single, table
from tests.cluster.objects import PLANS, PODS
from tests.cluster.real_apiserver import RealApiServer, missing_assets, started_twice

REPEATS = 200
NOTE_BYTES = 1000
PODS_OF_A_NODE = 30
MANY = 1000
"""Watches, by which the memory of one can be told."""


def measure(pods: list[int], watches: list[int]) -> dict[str, dict[str, Figure]]:
    """LISTs with each of these numbers of pods, then writes with each of these numbers of watches; both ascending."""
    server = started_twice(Path(os.environ["KUBEBUILDER_ASSETS"]))
    try:
        return {"LIST": _lists(server, pods), "write": _writes(server, watches)}
    finally:
        server.close()


def _lists(server: RealApiServer, sizes: list[int]) -> dict[str, Figure]:
    agent = server.as_service_account()
    query = {"fieldSelector": "spec.nodeName=node-0", "resourceVersion": "0"}
    found, there = {}, 0
    for size in sizes:
        progress(f"{size} pods")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: _make_pod(server, number), range(there, size)))
        there = size
        cost = _cpu_ms(server, lambda: agent.request("GET", PODS.path(), query=query))
        name = f"pods of one node, among {size}"
        found[name] = single(name, cost, unit="ms", note=f"{PODS_OF_A_NODE} pods, from the watch cache")
    cost = _cpu_ms(server, lambda: agent.request("GET", PODS.path(), query={**query, "resourceVersion": ""}), 20)
    name = f"the same without resourceVersion, among {there}"
    return found | {name: single(name, cost, unit="ms", note="as no agent asks: from etcd")}


def _make_pod(server: RealApiServer, number: int) -> None:
    node = f"node-{number // PODS_OF_A_NODE}"
    server.pods.run(f"pod-{number}", node=node, annotations={"note": "x" * NOTE_BYTES})


def _writes(server: RealApiServer, counts: list[int]) -> dict[str, Figure]:
    agent = server.as_service_account()
    server.plans.named("node-0")
    numbers = iter(range(1_000_000))

    def write() -> None:
        status = {"planHash": f"{next(numbers):012x}"}
        body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": "node-0"}, "status": status}
        agent.apply(PLANS.path("node-0", subresource="status"), body, manager=FIELD_MANAGER)

    found = {}
    for count in counts:
        progress(f"{count} watches")
        before = rss_mib(server.server_pid)
        with _watches(server, count):
            grown = 1024 * (rss_mib(server.server_pid) - before)
            cost = _cpu_ms(server, write)
        if count >= MANY:
            name = f"memory of an open watch, of {count}"
            found[name] = single(
                name, grown / count, unit="KiB", note="with a connection by TLS of its own, as agents have"
            )
        name = f"a plan's status, beside {count} watches"
        found[name] = single(name, cost, unit="ms", note="each of the plan of another node")
    return found


def _cpu_ms(server: RealApiServer, what: Callable[[], object], repeats: int = REPEATS) -> float:
    """CPU milliseconds of the API server for one of these."""
    what()
    before = cpu_seconds(server.server_pid)
    for _ in range(repeats):
        what()
    return 1000 * (cpu_seconds(server.server_pid) - before) / repeats


@contextmanager
def _watches(server: RealApiServer, count: int) -> Iterator[None]:
    """So many open watches, each of one plan, which is not there."""
    opened, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_hold(server, count, opened, done)), daemon=True)
    thread.start()
    try:
        while not opened.wait(0.1):
            if not thread.is_alive():
                raise RuntimeError("the watches could not be opened")
        yield
    finally:
        done.set()
        thread.join()


async def _hold(server: RealApiServer, count: int, opened: threading.Event, done: threading.Event) -> None:
    trust = ssl.create_default_context(cadata=server.ca)
    headers = {"Authorization": f"Bearer {server.token}"}
    version = server.plans.version()
    gate = asyncio.Semaphore(20)
    async with aiohttp.ClientSession(
        f"https://{server.host}:{server.port}",
        connector=aiohttp.TCPConnector(ssl=trust, limit=0),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:

        async def open_one(number: int) -> aiohttp.ClientResponse:
            query = {
                "watch": "true",
                "fieldSelector": f"metadata.name=other-{number}",
                "resourceVersion": version,
                "timeoutSeconds": "3600",
            }
            async with gate:
                answer = await session.get(PLANS.path(), params=query)
            answer.raise_for_status()
            return answer

        answers = await asyncio.gather(*map(open_one, range(count)))
        opened.set()
        while not done.is_set():
            await asyncio.sleep(0.1)
        for answer in answers:
            answer.close()


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pods", type=int, nargs="+", default=[1000, 4000, 16000], help="default: %(default)s")
    parser.add_argument("--watches", type=int, nargs="+", default=[0, 1000, 4000], help="default: %(default)s")
    asked = parser.parse_args(arguments)
    if absent := missing_assets():
        print(absent, file=sys.stderr)
        return 2
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(table({**measure(sorted(asked.pods), sorted(asked.watches))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
