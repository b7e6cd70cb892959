"""Every reader and writer of the host with all that can go wrong there, while all are bound and from the start.

What no test can break: a file of /proc, /sys or /dev whose reading does not end, since the kernel sleeps for ever. No
time limit helps a thread that sleeps so; `test_a_file_of_the_kernel_that_hangs…` shows what is seen of it then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.host_rows import ROWS, HostRow
from tests.faults.trial import SCENES, Seen

TRIALS = [(row, name) for row in ROWS if isinstance(row, HostRow) for name in row.scenes]


def tried(row: HostRow, name: str, folder: Path) -> None:
    fault = row.made()
    lenient = row.unknowable and name == "started"
    seen = SCENES[name](
        folder, row.device, lambda node: node.injector.broken(fault), lenient=lenient, lasting=row.lasting(name)
    )
    assert fault.met or row.fault == "comes and goes", "nobody met it"
    expect(row, name, seen)


def expect(row: HostRow, name: str, seen: Seen) -> None:
    """What is reported is what the row says, and what follows from it."""
    assert seen.strays == {}
    reason = row.at_start if name == "started" and row.at_start is not None else row.reason
    expected = set() if reason is None else {reason.value}
    also = {reason.value for reason in row.also}
    if row.unknowable and name == "started":
        assert seen.reasons <= expected | also | ({row.reason.value} if row.reason else set())
    else:
        assert expected <= seen.reasons <= expected | also


@pytest.mark.parametrize(("row", "name"), TRIALS, ids=[f"{row.key}: {name}" for row, name in TRIALS])
def test_a_fault_of_the_host_unbinds_nobody_is_told_and_heals(row: HostRow, name: str, tmp_path: Path) -> None:
    tried(row, name, tmp_path)
