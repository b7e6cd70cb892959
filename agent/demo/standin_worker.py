"""A stand-in for an inference worker: a real process whose threads bear the names that matter, and do nothing.

``python -m agent.demo.standin_worker --threads 20 --acl --release`` prints one line of JSON when it is ready::

    {"pid": 4711, "threads": {"vllm_worker": [4711], "acl_thread": [4712], "release_thread": [4713], "worker": [...]}}

Then it reads commands, one JSON object a line, and answers each with one line of JSON:

``{"do": "spawn", "name": "worker", "count": 3}``
    starts threads; answers ``{"tids": [...]}``
``{"do": "end", "tids": [4714]}``
    ends threads and waits until the kernel has forgotten them; answers ``{}``
``{"do": "rename", "tid": 4714, "name": "acl_thread"}``
    as prctl(PR_SET_NAME); answers ``{}``
``{"do": "fork", "tid": 4712, "depth": 2}``
    forks a child from that thread, which forks one in turn, down to `depth`; answers ``{"pids": [...]}``, eldest first.
    Children live as long as the worker does
``{"do": "map", "kind": "private", "mib": 64}``
    maps memory and touches every page of it: ``private`` or ``shared`` anonymous memory, or, with ``"path": FILE``,
    ``shared-file`` (written) or ``private-file`` (read only); answers ``{"address": 281470681743360}``
``{"do": "pace", "address": 281470681743360}``
    starts a thread that touches such memory, page after page, until
``{"do": "pace_end"}``
    which answers ``{"touches": 41234, "longest_ms": 1.7}``: the longest time between two touches
``{"do": "open", "path": "/dev/pts/3"}``
    opens a file and keeps it open; answers ``{}``
``{"do": "placed", "name": "acl_thread", "count": 50, "gap": 0.01, "patience": 10}``
    starts threads one after the other, `gap` seconds apart, that take that name and look at their own mask until it is
    another one, at most `patience` seconds; answers ``{"ns": [187000, ...]}``, how long each took; those that had to
    give up are left out
``{"do": "churn", "rate": 500}``, ``{"do": "forks", "rate": 50}``
    from now on so many threads, or children, are made each second that end after a moment; 0 for none. Answers
    ``{"made": 1234}``, how many there have been
``{"do": "quit"}``
    as does the end of the input

Names are Latin-1: character n stands for byte n, so that names which are no UTF-8 can be given.
`agent.demo.standin` starts such a worker and talks to it. Few imports, and none of this project: it starts fast.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

STACK_BYTES = 256 * 1024
"""Hundreds of threads that do nothing need no more, and the memory is only reserved."""

CHURN_LIFE = 0.002
"""Seconds that a short-lived thread or child lives."""


class _Thread:
    """A named thread that runs what it is handed."""

    def __init__(self, name: bytes) -> None:
        self._work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(name,), daemon=True)
        self._thread.start()
        self.tid: int = self._results.get()

    def call(self, what: Callable[[], Any]) -> Any:
        """Runs something in this thread; an OSError of it is raised here."""
        self._work.put(what)
        result = self._results.get()
        if isinstance(result, OSError):
            raise result
        return result

    def end(self) -> None:
        """Returns when the kernel has forgotten it, which is a moment after Python has."""
        self._work.put(None)
        self._thread.join()
        _wait_until_forgotten(self.tid)

    def _run(self, name: bytes) -> None:
        tid = threading.get_native_id()
        _rename(tid, name)
        self._results.put(tid)
        while (what := self._work.get()) is not None:
            try:
                self._results.put(what())
            except OSError as error:
                self._results.put(error)


class _Worker:
    def __init__(self) -> None:
        self.threads: dict[int, _Thread] = {}
        # Nobody writes to this pipe: a child that reads it learns that the worker ended, however it did.
        self._alive, self._held = os.pipe()
        self._maps: dict[int, mmap.mmap] = {}
        self._pace: _Pace | None = None
        self._pumps: dict[str, _Pump] = {"churn": _Pump(_short_thread), "forks": _Pump(_short_child)}

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "spawn":
                return {"tids": [self.spawn(_bytes(command["name"])) for _ in range(command.get("count", 1))]}
            case "end":
                for tid in command["tids"]:
                    self.threads.pop(tid).end()
                return {}
            case "rename":
                _rename(command["tid"], _bytes(command["name"]))
                return {}
            case "fork":
                depth = command.get("depth", 1)
                return {"pids": self.threads[command["tid"]].call(lambda: self._fork(depth))}
            case "map":
                address, memory = _map(command["kind"], command["mib"] << 20, command.get("path"))
                self._maps[address] = memory
                return {"address": address}
            case "pace":
                self._pace = _Pace(self._maps[command["address"]])
                return {}
            case "pace_end":
                assert self._pace is not None
                return self._pace.end()
            case "open":
                os.open(command["path"], os.O_RDWR | os.O_NOCTTY)
                return {}
            case "placed":
                name, patience = _bytes(command["name"]), command.get("patience", 10)
                return {"ns": self._placed(name, command["count"], command.get("gap", 0.01), patience)}
            case "churn" | "forks" as what:
                return {"made": self._pumps[what].run(command["rate"])}
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")

    def spawn(self, name: bytes) -> int:
        thread = _Thread(name)
        self.threads[thread.tid] = thread
        return thread.tid

    def _placed(self, name: bytes, count: int, gap: float, patience: float) -> list[int]:
        found = []
        for _ in range(count):
            time.sleep(gap)
            results: SimpleQueue[tuple[int, int]] = SimpleQueue()
            # Born and named at once, as those of a runtime are.
            threading.Thread(
                target=lambda queue=results: queue.put(_wait_for_place(name, patience)), daemon=True
            ).start()
            tid, waited = results.get()
            _wait_until_forgotten(tid)
            if waited >= 0:
                found.append(waited)
        return found

    def _fork(self, depth: int) -> list[int]:
        """Forks without exec, so that the children keep the name of the thread, as those of multiprocessing do."""
        told, tell = os.pipe()
        if os.fork() == 0:
            os.close(self._held)
            os.write(tell, b"%d " % os.getpid())
            for _ in range(depth - 1):
                if os.fork():
                    break
                os.write(tell, b"%d " % os.getpid())
            os.close(tell)
            os.read(self._alive, 1)
            os._exit(0)
        os.close(tell)
        with open(told, "rb") as pids:
            return [int(pid) for pid in pids.read().split()]


class _Pace:
    """A thread that touches memory without pause and notices when it has to wait."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._touches, self._longest = 0, 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, Any]:
        self._ends.set()
        self._thread.join()
        return {"touches": self._touches, "longest_ms": round(self._longest / 1e6, 1)}

    def _run(self) -> None:
        _rename(threading.get_native_id(), b"pace")
        last = time.monotonic_ns()
        while not self._ends.is_set():
            for offset in range(0, len(self._memory), mmap.PAGESIZE):
                self._memory[offset] = 1
                now = time.monotonic_ns()
                self._longest = max(self._longest, now - last)
                last = now
                self._touches += 1


def _map(kind: str, size: int, path: str | None) -> tuple[int, mmap.mmap]:
    """New memory with every page of it present: its address, and what holds it."""
    import ctypes  # noqa: PLC0415 - the one thing that knows addresses; most workers need none

    private = kind in ("private", "private-file")
    flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | (0 if path else mmap.MAP_ANONYMOUS)
    file = os.open(path, os.O_RDWR) if path else -1
    memory = mmap.mmap(file, size, flags=flags)
    if path:
        os.close(file)
    step = 1 << 20
    for start in range(0, size, step):
        if kind == "private-file":
            _ = memory[start : start + step]  # a write would make them pages of this process
        else:
            memory[start : start + step] = b"\1" * step
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="A stand-in for an inference worker.")
    parser.add_argument("--name", default="vllm_worker", help="name of the main thread")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads named worker")
    parser.add_argument("--acl", action="store_true", help="a thread named acl_thread")
    parser.add_argument("--release", action="store_true", help="a thread named release_thread")
    parser.add_argument("--churn", type=int, default=0, metavar="N", help="short-lived threads started each second")
    options = parser.parse_args()
    threading.stack_size(STACK_BYTES)
    worker = _Worker()
    tids = defaultdict(list, {options.name: [os.getpid()]})
    _rename(os.getpid(), _bytes(options.name))
    names = ["acl_thread"] * options.acl + ["release_thread"] * options.release + ["worker"] * options.threads
    for name in names:
        tids[name].append(worker.spawn(_bytes(name)))
    if options.churn:
        worker.do({"do": "churn", "rate": options.churn})
    _say({"pid": os.getpid(), "threads": tids})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "quit":
            break
        _say(worker.do(command))


class _Pump:
    """Makes something so many times a second, in a thread of its own."""

    def __init__(self, make: Callable[[int], None]) -> None:
        self._make = make
        self._made = 0
        self._wanted: tuple[float, int, int] | None = None  # since when, how many a second, on top of how many

    def run(self, rate: int) -> int:
        """From now on at this rate; how many were made so far."""
        first, made = self._wanted is None, self._made
        self._wanted = (time.monotonic(), rate, made)
        if first:
            threading.Thread(target=self._run, daemon=True).start()
        return made

    def _run(self) -> None:
        while True:
            if not self._is_due():
                time.sleep(0.001)
                continue
            self._made += 1
            self._make(self._made)

    def _is_due(self) -> bool:
        assert self._wanted is not None
        since, rate, before = self._wanted
        return self._made - before < (time.monotonic() - since) * rate


def _short_thread(number: int) -> None:
    """One in ten is an acl_thread."""
    threading.Thread(target=_moment, args=(number % 10 == 0,), daemon=True).start()


def _moment(acl: bool) -> None:
    if acl:
        _rename(threading.get_native_id(), b"acl_thread")
    time.sleep(CHURN_LIFE)


def _short_child(_number: int) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(CHURN_LIFE)
        os._exit(0)
    os.waitpid(child, 0)


def _wait_until_forgotten(tid: int) -> None:
    while os.path.exists(f"/proc/self/task/{tid}"):  # noqa: PTH110
        time.sleep(0.0005)


def _wait_for_place(name: bytes, patience: float) -> tuple[int, int]:
    """Renames the calling thread and waits until somebody gives it another mask: its tid, and how many nanoseconds that
    took; -1 when nobody did."""
    tid, before = threading.get_native_id(), os.sched_getaffinity(0)
    end = time.monotonic() + patience
    named = time.monotonic_ns()
    _rename(tid, name)
    while os.sched_getaffinity(0) == before:
        # A sleep would measure itself; whoever wants this CPU is let go first.
        os.sched_yield()
        if time.monotonic() > end:
            return tid, -1
    return tid, time.monotonic_ns() - named


def _rename(tid: int, name: bytes) -> None:
    # The same as prctl(PR_SET_NAME), for any thread of this process; the kernel cuts it to 15 bytes.
    with open(f"/proc/self/task/{tid}/comm", "wb", buffering=0) as comm:
        comm.write(name)


def _bytes(name: str) -> bytes:
    return name.encode("latin-1")


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
