"""A plan that is kept elsewhere: a `PlanStore` whose knowledge the test decides, as an API server's mirror has it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from agent.model.reason import Reason, Refused


class Shelf:
    """Holds one object, or none. Not known and not open until `learn`."""

    def __init__(self) -> None:
        self.known = False
        self.open = False
        self.own = True
        self.generation = 0
        self.full = False
        """Takes no new object."""
        self.object: dict[str, Any] = {}
        self.writes: list[dict[str, Any]] = []

    def learn(self, spec: Mapping[str, Any] | None = None, *, own: bool = False) -> None:
        """A LIST is answered. With `spec`, somebody's plan is there."""
        self.known = self.open = True
        if spec is not None:
            self.object = {**self.object, "spec": dict(spec)}
            self.own = own
            self.generation += 1

    def delete(self) -> None:
        """Somebody deletes the plan."""
        self.object, self.own = {}, True

    def forget(self) -> Shelf:
        """As an agent that starts anew sees it: the same plan, of which nothing is known."""
        anew = Shelf()
        anew.object, anew.own, anew.generation = self.object, self.own, self.generation
        return anew

    def spec(self) -> Mapping[str, Any] | None:
        if not self.known or not self.object:
            return None
        spec = self.object.get("spec", {})
        if not isinstance(spec, Mapping):
            raise Refused(Reason.INVALID_SPEC, f"spec: {spec!r} is not a mapping")
        return spec

    def read(self) -> dict[str, Any]:
        return copy.deepcopy(self.object)

    def write(self, document: Mapping[str, Any]) -> None:
        self.writes.append(copy.deepcopy(dict(document)))
        if self.full and not self.object:
            return
        if not self.object:
            self.own = True
        self.object = {"spec": document["spec"], **self.object, "status": document["status"]}
