"""A watch under test, with what it brought and what it asked for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from agent.kube.access import Access
from agent.kube.retry import Backoffs, Spread
from agent.kube.traffic import Object, Subject
from agent.kube.watch import Watch
from tests.cluster.client import eventually
from tests.cluster.cluster import Request
from tests.cluster.fault_proxy import FaultProxy

T = TypeVar("T")

NODE = "node-a"
PODS = Subject("", "v1", "pods", "Pod", f"spec.nodeName={NODE}", namespaced=True)
PLAN = Subject("cpubind.dev", "v1alpha1", "cpubindingplans", "CpuBindingPlan", f"metadata.name={NODE}")


class Hurried(Backoffs):
    """Pauses as they would be, shortened `speed` times; `total` is how long they would have been, in seconds."""

    def __init__(self, first: float, last: float, speed: float) -> None:
        super().__init__(first, last)
        self._speed = speed
        self._lock = threading.Lock()
        self.total = 0.0

    def __iter__(self) -> Iterator[float]:
        for pause in super().__iter__():
            with self._lock:
                self.total += pause
            yield pause / self._speed


class Follower:
    """Keeps what a mirror would: the names of the objects that there are."""

    def __init__(
        self,
        proxy: FaultProxy,
        account: Path,
        subject: Subject,
        *,
        backoffs: Backoffs | None = None,
        spread: Spread | None = None,
    ) -> None:
        self.proxy = proxy
        self.names: set[str] = set()
        self.lists = 0
        """How often all objects were told at once."""
        self.told: list[tuple[str, str]] = []
        """Events: type and name."""
        self.counted: Counter[tuple[str, str]] = Counter()
        self.fails = False
        """Whether what takes events raises."""
        self.watch = Watch(
            subject,
            Access(f"https://{proxy.host}:{proxy.port}", account),
            listed=self._listed,
            event=self._event,
            count=lambda verb, code: self.counted.update([(verb, code)]),
            backoffs=backoffs or Backoffs(0.05, 0.2),
            spread=spread,
        )

    @property
    def alive(self) -> bool:
        return self.watch._thread.is_alive()

    def problem(self) -> str:
        """What the watch says is wrong; empty where nothing is."""
        return str(self.watch.problem() or "")

    def until(self, look: Callable[[], T], what: str, timeout: float = 10.0) -> T:
        return eventually(look, what, timeout)

    def until_open(self, lists: int = 1) -> None:
        """Until a watch is open, after so many LISTs."""
        self.until(lambda: self.lists >= lists and self.proxy.streams() == 1 and not self.problem(), "it follows")

    def until_problem(self, part: str) -> str:
        """Until it says that something is wrong, with these words; all that it says."""
        self.until(lambda: part in self.problem(), f"it says {part!r}")
        return self.problem()

    def requests(self, verb: str = "") -> list[Request]:
        """What was asked of the API server, answered or not."""
        return [one for one in self.proxy.seen if verb in ("", one.verb)]

    def asked_within(self, seconds: float) -> int:
        """How much is asked in that time."""
        before = len(self.proxy.seen)
        time.sleep(seconds)
        return len(self.proxy.seen) - before

    def _listed(self, objects: Sequence[Object]) -> None:
        self.names = {one["metadata"]["name"] for one in objects}
        self.lists += 1

    def _event(self, kind: str, found: Object) -> None:
        if self.fails:
            raise ValueError("not understood")
        name = found["metadata"]["name"]
        self.told.append((kind, name))
        if kind == "DELETED":
            self.names.discard(name)
        else:
            self.names.add(name)
