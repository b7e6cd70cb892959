"""An event loop in a thread of its own, and ports on loopback."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.cluster.certificates import HOST

T = TypeVar("T")

_PORTS = range(20_000, 32_000)
"""Below the ports that Linux hands to outgoing connections: a server that is stopped finds its own free again."""
_SHARES = 16
_taken: set[int] = set()


class Background:
    """Runs coroutines for the threads of a test. Nothing but this loop's thread touches what they share."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
        """What the coroutine returns or raises."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def call(self, work: Callable[[], T]) -> T:
        """The same for a plain function."""

        async def wrapped() -> T:
            return work()

        return self.run(wrapped())

    def close(self) -> None:
        """Ends what still runs in it. A second call does nothing."""
        if self.loop.is_closed():
            return
        self.run(self._end_tasks())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    async def _end_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # A goodbye by TLS may still wait for the other side, which may be gone: the sockets would outlive their loop.
        # Nobody but the loop knows them all.
        for transport in list(getattr(self.loop, "_transports", {}).values()):
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def free_port() -> int:
    """A port that nobody listens on, and that no server of this process had: one that is stopped gets its own back.

    Each worker of xdist takes from a share of its own. A stranger may be quicker than the caller all the same.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = _PORTS[worker % _SHARES :: _SHARES]
    for _ in range(200):
        port = random.choice(mine)
        if port in _taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            _taken.add(port)
            return port
    raise OSError(f"no free port was found between {_PORTS.start} and {_PORTS.stop}")
