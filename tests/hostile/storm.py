"""A process that wears the agent out: ``python -m tests.hostile.storm WHAT THREADS RATE [DEVICE]``.

WHAT is ``names`` (threads that rename themselves, between the name of a role and others), ``threads`` or ``processes``
(ever new ones with ever new names), or ``masks`` (threads that move themselves). At RATE a second, or as fast as it
goes where that is 0. It holds DEVICE open, and prints how much it has done for every line that it is sent.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAM = Path(__file__)
NAME = "vllm_worker"
_PR_SET_NAME = 15


class Storm:
    """One that rages; a context manager, at whose end it is over."""

    def __init__(self, what: str, threads: int = 1, rate: float = 0, device: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(PROGRAM),
                what,
                str(threads),
                str(rate),
                *([] if device is None else [str(device)]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.count()

    def count(self) -> int:
        """How much it has done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _names() -> Iterator[bytes]:
    for number in itertools.count():
        yield from (b"acl_thread", b"w%d" % number, b"release_thread", b"x) R 1 1\n%d" % number)


def _rename(libc: ctypes.CDLL, name: bytes) -> None:
    libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


def _step(what: str) -> Callable[[], object]:
    # CDLL gives up the GIL, so that several threads get on.
    libc = ctypes.CDLL(None)
    names = _names()
    if what == "names":
        return lambda: _rename(libc, next(names))
    if what == "masks":
        cpus = sorted(os.sched_getaffinity(0))
        masks = itertools.cycle([{cpus[-1]}, {cpus[0]}])
        return lambda: os.sched_setaffinity(0, next(masks))
    if what == "threads":

        def thread() -> None:
            one = threading.Thread(target=_rename, args=(libc, next(names)))
            one.start()
            one.join()

        return thread

    def process() -> None:
        pid = os.fork()
        if pid == 0:
            _rename(libc, next(names))
            os._exit(0)
        os.waitpid(pid, 0)
        next(names)

    return process


def main() -> None:
    what, threads, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    for device in sys.argv[4:]:
        os.open(device, os.O_RDWR | os.O_NOCTTY)
    done = [0] * threads
    threading.stack_size(256 * 1024)

    def rage(number: int) -> None:
        step = _step(what)
        begun = time.monotonic()
        while True:
            step()
            done[number] += 1
            if rate and (ahead := begun + done[number] * threads / rate - time.monotonic()) > 0:
                time.sleep(ahead)

    _rename(ctypes.CDLL(None), NAME.encode())
    for number in range(threads):
        threading.Thread(target=rage, args=(number,), daemon=True).start()
    for _ in sys.stdin:
        print(sum(done), flush=True)


if __name__ == "__main__":
    main()
