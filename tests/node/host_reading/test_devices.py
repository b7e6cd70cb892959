"""NPUs that the kernel shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.model.reason import Reason, Refused
from agent.node.devices import has_npu, read_davinci

from .conftest import Tree

MakeDevice = Callable[[Path, int, int], None]


def test_the_davinci_devices_of_a_host_are_its_character_devices_of_that_name(
    tmp_path: Path, make_device: MakeDevice
) -> None:
    dev = tmp_path / "dev"
    make_device(dev / "davinci10", 236, 10)
    make_device(dev / "davinci2", 236, 2)
    make_device(dev / "davinci_manager", 237, 0)
    make_device(dev / "vdavinci100", 236, 100)
    (dev / "davinci3").write_text("a file")
    (dev / "davinci4").symlink_to(dev / "davinci2")
    (dev / "davinci").mkdir()
    assert read_davinci(tmp_path) == {2: (236, 2), 10: (236, 10)}
    assert list(read_davinci(tmp_path)) == [2, 10]


def test_those_of_a_recorded_host_are_a_list(tree: Tree) -> None:
    assert read_davinci(tree({"dev/davinci": "1 236:1\n0 236:0\n"})) == {0: (236, 0), 1: (236, 1)}


def test_a_host_without_dev_has_none(tmp_path: Path) -> None:
    assert read_davinci(tmp_path) == {}


def test_a_damaged_list_is_refused(tree: Tree) -> None:
    with pytest.raises(Refused) as refused:
        read_davinci(tree({"dev/davinci": "davinci0\n"}))
    assert refused.value.reason is Reason.INVENTORY_INCOMPLETE


def test_this_machine_has_no_npu() -> None:
    if Path("/dev/davinci_manager").exists():
        pytest.skip("it has")
    assert not has_npu(Path("/"))


def test_an_open_device_makes_a_host_with_npus(tree: Tree) -> None:
    assert has_npu(tree({"dev/davinci": "0 236:0\n"}))


@pytest.mark.parametrize(
    ("vendor", "kind", "found"),
    [
        ("0x19e5", "0x120000", True),
        ("0x19e5", "0x120001", True),
        ("0x19e5", "0x020000", False),
        ("0x10de", "0x120000", False),
        ("0x19e5", "", False),
        ("garbage", "0x120000", False),
    ],
)
def test_without_a_driver_the_pci_function_tells(tree: Tree, vendor: str, kind: str, found: bool) -> None:
    root = tree(
        {
            "sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
            "sys/bus/pci/devices/0000:00:00.0/class": "0x060000\n",
            "sys/bus/pci/devices/0000:c1:00.0/vendor": f"{vendor}\n",
            "sys/bus/pci/devices/0000:c1:00.0/class": f"{kind}\n",
        }
    )
    assert has_npu(root) is found
