"""An event loop in a thread of its own, and ports on loopback."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.cluster.certificates import HOST

T = TypeVar("T")

_PORTS = range(20_000, 32_000)
"""Below the ports that Linux hands to outgoing connections: a server that is stopped finds its own free again."""


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


def free_port() -> int:
    """A port that nobody listens on. Another process may take it before its caller does: be ready to try again."""
    for _ in range(100):
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port was found among {_PORTS.start} to {_PORTS.stop}")
