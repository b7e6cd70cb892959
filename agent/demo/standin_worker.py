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
``{"do": "quit"}``
    as does the end of the input

Names are Latin-1: character n stands for byte n, so that names which are no UTF-8 can be given.
`agent.demo.standin` starts such a worker and talks to it. Few imports, and none of this project: it starts fast.
"""

from __future__ import annotations

import argparse
import json
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
"""Seconds that a short-lived thread lives."""


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
        while os.path.exists(f"/proc/self/task/{self.tid}"):  # noqa: PTH110
            time.sleep(0.0005)

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
            case unknown:
                raise ValueError(f"unknown command {unknown!r}")

    def spawn(self, name: bytes) -> int:
        thread = _Thread(name)
        self.threads[thread.tid] = thread
        return thread.tid

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
        threading.Thread(target=_churn, args=(options.churn,), daemon=True).start()
    _say({"pid": os.getpid(), "threads": tids})
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "quit":
            break
        _say(worker.do(command))


def _churn(rate: int) -> None:
    """Starts threads that live for a moment, `rate` a second; one in ten is an acl_thread."""
    started, count = time.monotonic(), 0
    while True:
        while count < (time.monotonic() - started) * rate:
            count += 1
            threading.Thread(target=_moment, args=(count % 10 == 0,), daemon=True).start()
        time.sleep(0.001)


def _moment(acl: bool) -> None:
    if acl:
        _rename(threading.get_native_id(), b"acl_thread")
    time.sleep(CHURN_LIFE)


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
