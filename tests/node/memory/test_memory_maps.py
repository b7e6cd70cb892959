"""Which ranges of a process are its own private memory, from /proc/<pid>/maps."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.reason import Reason, Refused
from agent.node.memory import Account, Range, free_memory, parse_maps, read_account, read_ranges

# Lines as Linux 5.10 and 6.x print them, those of Ascend's driver as its runtime maps them.
TAKEN = [
    b"ffff80000000-ffff80021000 rw-p 00000000 00:00 0 ",
    b"ffff84000000-ffff84021000 rwxp 00000000 00:00 0 ",
    b"aaab07c54000-aaab0d5f2000 rw-p 00000000 00:00 0                          [heap]",
    b"ffffeb2b4000-ffffeb2d5000 rw-p 00000000 00:00 0                          [stack]",
    b"ffff90000000-ffff90021000 rw-p 00000000 00:00 0                          [stack:4711]",
    b"ffff91000000-ffff91021000 rw-p 00000000 00:00 0                          [anon:glibc: malloc arena]",
    b"ffff92000000-ffff92021000 rw-p 00000000 00:00 0                          [anon:odd ] \xff name]",
]
NOT_TAKEN = [
    b"ffff80000000-ffff80021000 rw-s 00000000 00:01 1034                       /dev/zero (deleted)",
    b"ffff80000000-ffff80021000 rw-p 00000000 00:05 6                          /dev/zero",
    b"ffff80000000-ffff80021000 rw-s 00000000 00:1a 2                          /dev/shm/psm_2f1c0e5a",
    b"ffff80000000-ffff80021000 rw-s 00000000 00:01 32769                      /SYSV00000000 (deleted)",
    b"ffff80000000-ffff80021000 rw-s 00000000 00:01 2061                       /memfd:table with blanks (deleted)",
    b"ffff80000000-ffff80021000 rw-p 00000000 00:0f 25609                      /anon_hugepage (deleted)",
    b"ffff80000000-ffff80021000 rw-p 00000000 00:2f 77                         /mnt/huge/a",
    b"ffff80000000-ffff80021000 rw-s 00000000 00:05 533                        /dev/davinci_manager",
    b"ffff80000000-ffff80021000 rw-p 00000000 00:05 533                        /dev/davinci0",
    b"ffff80000000-ffff80021000 rw-p 001f2000 fe:01 1836                       /usr/lib/libc.so.6",
    b"ffff80000000-ffff80021000 rw-p 001f2000 fe:01 1836                       /tmp/odd\\012name [heap]",
    b"ffff80000000-ffff80021000 r--p 00000000 00:00 0 ",
    b"ffff80000000-ffff80021000 ---p 00000000 00:00 0 ",
    b"ffff80000000-ffff80021000 rw-s 00000000 00:00 0 ",
    b"ffff80000000-ffff80021000 rw-s 00000000 00:01 5                          [anon_shmem:table]",
    b"ffff80000000-ffff80021000 r--p 00000000 00:00 0                          [vvar]",
    b"ffff80000000-ffff80021000 rw-p 00000000 00:00 0                          [vvar_vclock]",
    b"ffff80000000-ffff80021000 r-xp 00000000 00:00 0                          [vdso]",
    b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]",
    b"ffff80000000-ffff80021000 rw-p 00000000 00:00 0                          [something new]",
    b"ffff80000000-ffff80021000 rw-p 00000000 00:00 0                          anon_inode:[io_uring]",
]


def test_private_anonymous_memory_that_can_be_written_is_taken_whatever_it_is_called() -> None:
    ranges = parse_maps(b"\n".join(TAKEN) + b"\n")
    assert len(ranges) == len(TAKEN)
    assert ranges[0] == Range(0xFFFF80000000, 0xFFFF80021000)


@pytest.mark.parametrize("line", NOT_TAKEN, ids=lambda line: line[73:].decode(errors="replace") or "unnamed")
def test_shared_file_device_huge_and_kernel_memory_is_not_taken(line: bytes) -> None:
    assert parse_maps(line + b"\n") == []


@pytest.mark.parametrize(
    "damaged",
    [
        TAKEN[0],
        TAKEN[0] + b"\n\n",
        b"ffff80000000-ffff80021000 rw-p 00000000 00:00\n",
        b"ffff80021000-ffff80000000 rw-p 00000000 00:00 0 \n",
        b"ffff80000000-ffff80000000 rw-p 00000000 00:00 0 \n",
        b"-1-ffff80021000 rw-p 00000000 00:00 0 \n",
        b"1ffff80000000ffff-ffff80021000 rw-p 00000000 00:00 0 \n",
        b"ffff80000000-ffff80021000 rw-x 00000000 00:00 0 \n",
        b"Hello\n",
    ],
)
def test_a_damaged_line_is_refused_and_not_guessed_at(damaged: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse_maps(damaged, "/proc/1/maps")
    assert refused.value.reason is Reason.PROCESS_UNREADABLE
    assert "/proc/1/maps" in refused.value.message


@given(st.binary(max_size=200) | st.lists(st.sampled_from([*TAKEN, *NOT_TAKEN])).map(b"\n".join))
def test_whatever_is_read_it_is_ranges_or_refused(content: bytes) -> None:
    try:
        ranges = parse_maps(content)
    except Refused as refused:
        assert refused.reason is Reason.PROCESS_UNREADABLE  # noqa: PT017 - either is right
    else:
        assert all(each.start < each.end for each in ranges)


_NAME = st.binary(max_size=30).map(lambda name: name.replace(b"\n", b"\\012"))


@given(
    perms=st.tuples(*map(st.sampled_from, ("r-", "w-", "x-", "ps"))).map("".join),
    dev=st.sampled_from(["00:00", "00:01", "fe:01", "103:00002"]),
    inode=st.integers(0, 1 << 63),
    name=st.sampled_from([b"", b"[heap]", b"[stack]", b"[anon:x]"]) | _NAME,
)
def test_nothing_that_is_shared_or_a_file_is_ever_taken(perms: str, dev: str, inode: int, name: bytes) -> None:
    line = f"7f0000000000-7f0000002000 {perms} 00000000 {dev} {inode}".encode().ljust(73) + name + b"\n"
    taken = parse_maps(line)
    if perms[3] == "s" or perms[1] == "-" or inode or dev != "00:00" or name.startswith(b"/"):
        assert taken == []
    elif name in (b"", b"[heap]", b"[stack]", b"[anon:x]"):
        assert taken == [Range(0x7F0000000000, 0x7F0000002000)]


def process(root: Path, **files: str | bytes) -> Path:
    folder = root / "proc/42"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_fifty_thousand_mappings_are_read_small_ones_first(tmp_path: Path) -> None:
    lines = [f"{k << 24:x}-{(k << 24) + 8192:x} rw-p 00000000 00:00 0 \n" for k in range(1, 50_001)]
    lines.insert(0, "1000-900000 rw-p 00000000 00:00 0                          [heap]\n")
    ranges = read_ranges(process(tmp_path, maps="".join(lines)), 42)
    assert ranges is not None
    assert len(ranges) == 50_001
    assert ranges[0] == Range(1 << 24, (1 << 24) + 8192)
    assert ranges[-1] == Range(0x1000, 0x900000)


def test_a_process_that_is_gone_or_a_zombie_has_no_ranges(tmp_path: Path) -> None:
    assert read_ranges(tmp_path, 42) is None
    assert read_ranges(process(tmp_path, maps=""), 42) is None
    assert read_account(tmp_path, 42) is None


def test_without_the_right_to_look_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/<pid>/maps of another user, without CAP_SYS_PTRACE. The tests may run as root, who has it."""
    process(tmp_path, maps="")

    def refuse(*_args: object, **_more: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Refused) as refused:
        read_ranges(tmp_path, 42)
    assert refused.value.reason is Reason.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("lines", "resident"),
    [
        ("VmRSS:\t  3000 kB\nRssAnon:\t  2000 kB\nRssFile:\t  1000 kB\n", 2000 << 10),
        ("VmRSS:\t  3000 kB\n", 3000 << 10),  # before Linux 4.5
        ("", 0),  # one that ends
    ],
)
def test_private_memory_is_at_most_what_is_resident(tmp_path: Path, lines: str, resident: int) -> None:
    status = f"Name:\tpython\n{lines}Mems_allowed:\t0000000b\nMems_allowed_list:\t0-1,3\n"
    account = read_account(process(tmp_path, status=status), 42)
    assert isinstance(account, Account)
    assert (account.resident, str(account.mems_allowed)) == (resident, "0-1,3")


def test_free_memory_is_that_of_the_node(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/system/node/node130"
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text(
        "Node 130 MemTotal:  200 kB\nNode 130 MemFree:        77 kB\nNode 130 MemUsed: 3 kB\n"
    )
    assert free_memory(tmp_path, 130) == 77 << 10
    assert free_memory(tmp_path, 0) is None
