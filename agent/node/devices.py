"""The NPUs that the kernel shows: device files and PCI functions. What npu-smi says of them is read elsewhere."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from agent.model.reason import Reason
from agent.node.files import ABSENT, join, list_folder, numbered_devices, read_text, refusal

_DAVINCI: Final = re.compile(r"davinci([0-9]{1,5})", re.ASCII)
_HUAWEI: Final = 0x19E5
_ACCELERATOR: Final = 0x1200
"""PCI class 12h, subclass 00h: processing accelerator (PCI Code and ID Assignment Specification)."""


def read_davinci(root: Path) -> dict[int, tuple[int, int]]:
    """N -> (major, minor) of the host's /dev/davinciN, ascending by N.

    On a host these are the character devices of that name; in a recorded tree ``dev/davinci`` is a file of lines
    ``N major:minor``. Refused(InventoryIncomplete) where /dev is there and cannot be read.
    """
    folder = f"{join(root)}/dev"
    found: dict[int, tuple[int, int]] = {}
    for name in list_folder(folder, Reason.INVENTORY_INCOMPLETE):
        path = f"{folder}/{name}"
        if match := _DAVINCI.fullmatch(name):
            try:
                number = _device_number(path)
            except OSError as error:
                if error.errno in ABSENT:
                    continue
                raise refusal(Reason.INVENTORY_INCOMPLETE, path, error) from error
            if number:
                found[int(match[1])] = number
        elif name == "davinci" and not os.path.isdir(path):  # noqa: PTH112
            text = read_text(path, Reason.INVENTORY_INCOMPLETE) or ""
            found.update(numbered_devices(text, path, Reason.INVENTORY_INCOMPLETE))
    return dict(sorted(found.items()))


def device_number(path: str, at: int | None = None) -> tuple[int, int] | None:
    """(major, minor) of a character device; None for anything else. Symbolic links are not followed."""
    try:
        return _device_number(path, at)
    except OSError:
        return None


def _device_number(path: str, at: int | None = None) -> tuple[int, int] | None:
    status = os.stat(path, dir_fd=at, follow_symlinks=False)
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


def has_npu(root: Path) -> bool:
    """Whether the host has an Ascend NPU, driver loaded or not (design section 7, "A node without NPUs")."""
    if read_davinci(root):
        return True
    folder = f"{join(root)}/sys/bus/pci/devices"
    return any(
        _hex(f"{folder}/{address}/vendor") == _HUAWEI and (_hex(f"{folder}/{address}/class") or 0) >> 8 == _ACCELERATOR
        for address in list_folder(folder, Reason.INVENTORY_INCOMPLETE)
    )


def _hex(path: str) -> int | None:
    """The number in a sysfs attribute such as ``0x19e5``; None where there is none."""
    text = read_text(path, Reason.INVENTORY_INCOMPLETE) or ""
    try:
        return int(text.strip()[:16], 16)
    except ValueError:
        return None
