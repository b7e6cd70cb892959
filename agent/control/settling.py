"""Which NPUs an owner of CPUs uses, where only what runs tells it: believed once that has been still for a while."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from agent.model.workload import Container

SETTLE_SECONDS = 10.0
"""Running NPUs stand in for allocated ones once they have not changed for this long (design 4.1)."""


class Settling:
    """Watches the running NPUs of containers that own their CPUs, over many looks.

    `patient` False takes running NPUs for settled at once: right for a single look, where nothing can change.
    """

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._since: dict[str, tuple[frozenset[int], float]] = {}
        self.settled: Mapping[str, frozenset[int]] = {}
        """Container key -> its running NPUs, of the containers for which these are believed. What an earlier run of
        the agent had here is to be set before the first look: it had waited for that."""

    @property
    def unsettled(self) -> bool:
        """Whether the running NPUs of a container are not believed yet, so that time alone changes what is marked."""
        return not self._since.keys() <= self.settled.keys()

    def mark(
        self,
        containers: Iterable[Container],
        running: Mapping[str, frozenset[int]],
        ours: Collection[str],
        now: float,
    ) -> tuple[Container, ...]:
        """The containers, with `settled` and `npus` as far as running NPUs decide. `running`: container key -> NPUs
        that its processes are on. `ours`: keys of containers with workers to be bound. `now` is monotonic, seconds."""
        since: dict[str, tuple[frozenset[int], float]] = {}
        settled: dict[str, frozenset[int]] = {}
        result = []
        for container in containers:
            key, npus = container.key, running.get(container.key)
            if container.owned is None or container.npus is not None or npus is None:
                if key in self.settled:
                    settled[key] = self.settled[key]
                result.append(container)
                continue
            before, start = self._since.get(key, (npus, float("-inf") if self.settled.get(key) == npus else now))
            since[key] = (npus, start if npus == before else now)
            still = not self._patient or now - since[key][1] >= SETTLE_SECONDS
            if still:
                settled[key] = npus
            # Of a container that is not to be bound the plan has no workers to tell its NPUs by.
            result.append(replace(container, settled=still, npus=None if key in ours else npus))
        self._since, self.settled = since, settled
        return tuple(result)
