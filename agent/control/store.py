"""Where a plan is kept: in a file on a host without Kubernetes, else as an object of the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class PlanStore(Protocol):
    """`spec` in it belongs to people, `status` to the agent. No call waits for a network."""

    @property
    def generation(self) -> int:
        """metadata.generation: the number of the spec; 0 where there is none."""
        ...

    @property
    def known(self) -> bool:
        """Whether it is known what `spec` says, or that there is no plan. Once known, that stays so."""
        ...

    @property
    def open(self) -> bool:
        """Whether what is reported now counts: False while the agent does not know yet what it will know soon."""
        ...

    @property
    def own(self) -> bool:
        """Whether the plan was made by an agent: then it is made anew with its last accepted spec when it is gone."""
        ...

    def spec(self) -> Mapping[str, Any] | None:
        """`spec` as people wrote it, {} for one that says nothing; None without a plan, and while nothing is known.

        `Refused` with StateUnreadable or InvalidSpec where it can't be used.
        """
        ...

    def read(self) -> dict[str, Any]:
        """The whole object as it is kept, {} without one. `Refused` where it can't be read."""
        ...

    def write(self, document: Mapping[str, Any]) -> object:
        """Keeps `status` of the object, and makes the object with its `spec` where there is none.

        `Refused` with StateNotWritten where that is known to have failed.
        """
        ...
