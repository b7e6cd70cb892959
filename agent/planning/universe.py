"""The NPUs of a node only grow between driver loads (design 4.1): a card that falls off moves nobody else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.model.node import Inventory, Npu


@dataclass(frozen=True, slots=True)
class Universe:
    """Every NPU seen since the driver was loaded."""

    boot_id: str = ""
    driver_version: str = ""
    npus: tuple[Npu, ...] = ()

    def grow(self, boot_id: str, driver_version: str, seen: Inventory) -> tuple[Universe, Inventory]:
        """The universe with what is seen now, and the inventory to plan with: NPUs that are gone are `missing`.

        Another boot or driver version starts anew.
        """
        same_load = (self.boot_id, self.driver_version) == (boot_id, driver_version)
        npus = {npu.id: npu for npu in self.npus} if same_load else {}
        npus.update({npu.id: npu for npu in seen.npus})
        grown = tuple(npus[key] for key in sorted(npus))
        present = set(seen.ids)
        planned = tuple(npu if npu.id in present else replace(npu, missing=True) for npu in grown)
        return Universe(boot_id, driver_version, grown), Inventory(planned, seen.device_type)
