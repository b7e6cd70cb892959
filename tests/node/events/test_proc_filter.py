"""What the kernel is told to drop, as it runs such programs."""

from __future__ import annotations

import struct
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node.proc_filter import MOST_FAMILY, MOST_NEAR, MOST_QUIET, WANTED, all_processes, far, near, none_at_all
from agent.node.proc_messages import COMM, EXEC, EXIT, FORK, MESSAGE_BYTES, NONE
from tests.node.events.messages import message

KINDS = [0, 1, 2, 4, 0x40, 0x80, 0x100, 0x200, 0x20000000, 0x40000000, 0x80000000]

pids = st.integers(1, 12)
sets = st.frozensets(pids, max_size=6)


def run(program: bytes, packet: bytes) -> bool:
    """Whether a program keeps a datagram."""
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = a = x = 0
    while True:
        opcode, if_true, if_false, k = code[at]
        at += 1
        match opcode:
            case 0x20:
                if k + 4 > len(packet):
                    return False
                a = int.from_bytes(packet[k : k + 4], "big")
            case 0x07:
                x = a
            case 0x15:
                at += if_true if a == k else if_false
            case 0x1D:
                at += if_true if a == x else if_false
            case 0x05:
                at += k
            case _:
                assert opcode == 0x06
                assert k == 0 or k >= MESSAGE_BYTES
                return bool(k)


def event(what: int, pid: int, tgid: int, child: int = 0, child_tgid: int = 0) -> bytes:
    return message((what, 1, pid, tgid, struct.pack("=ii8x", child, child_tgid)))


@pytest.mark.parametrize("what", KINDS)
def test_of_all_processes_the_wanted_kinds_are_kept_and_no_other(what: int) -> None:
    assert run(all_processes(), event(what, 1, 1)) is (what in {NONE, FORK, EXEC, COMM, EXIT})
    assert set(WANTED) == {NONE, FORK, EXEC, COMM, EXIT}
    assert not run(all_processes(), b"short")
    assert not run(none_at_all(), event(what, 1, 1))


@given(st.sampled_from(KINDS), pids, pids, pids, pids, sets)
def test_near_is_all_that_workers_do_but_what_they_fork(
    what: int, pid: int, tgid: int, child: int, child_tgid: int, own: frozenset[int]
) -> None:
    kept = {
        NONE: True,
        FORK: child_tgid in own,
        EXEC: tgid in own,
        COMM: tgid in own,
        EXIT: tgid in own,
    }.get(what, False)
    assert run(near(own), event(what, pid, tgid, child, child_tgid)) is kept


@given(st.sampled_from(KINDS), pids, pids, pids, pids, sets, sets, sets)
def test_far_is_what_is_worth_knowing_of_the_others(
    what: int,
    pid: int,
    tgid: int,
    child: int,
    child_tgid: int,
    own: frozenset[int],
    family: frozenset[int],
    quiet: frozenset[int],
) -> None:
    if what == FORK:
        thread = child != child_tgid
        kept = child_tgid not in own | quiet if thread else tgid in family | own
    elif what == EXIT:
        kept = pid == tgid
    else:
        kept = what == EXEC and tgid in family - own
    assert run(far(own, family, quiet), event(what, pid, tgid, child, child_tgid)) is kept


def many(count: int, first: int = 1000) -> Collection[int]:
    return range(first, first + count)


def test_the_longest_lists_are_told_apart_to_the_last() -> None:
    own, family, quiet = many(MOST_NEAR), many(MOST_FAMILY, 2000), many(MOST_QUIET, 3000)
    for pid in (own[0], own[-1]):  # type: ignore[index]
        assert run(near(own), event(COMM, pid, pid))
        assert not run(far(own, family, quiet), event(FORK, 1, 1, 9, pid))
    assert not run(near(own), event(COMM, 1000 + MOST_NEAR, 1000 + MOST_NEAR))
    assert run(far(own, family, quiet), event(EXEC, 2127, 2127))
    assert not run(far(own, family, quiet), event(EXEC, 2128, 2128))
    assert run(far(own[:-1], family[:-1], quiet), event(FORK, 1, 1001, 9, 9))  # type: ignore[index]
    assert not run(far(own[:-1], family[:-1], quiet), event(FORK, 1, 1, 9, 9))  # type: ignore[index]
    assert not run(far(own, family, quiet), event(FORK, 1, 1, 9, 3063))
    assert run(far(own, family, quiet), event(FORK, 1, 1, 9, 3064))


def test_lists_that_are_too_long_let_more_pass_never_less() -> None:
    own = many(MOST_NEAR + 1)
    assert run(near(own), event(COMM, 7, 7))
    assert not run(far(own, (), ()), event(FORK, 1, 1, 9, 7)), "near hears it already"
    assert run(far((), many(MOST_FAMILY + 1), ()), event(EXEC, 7, 7))
    assert run(far((), (), many(MOST_QUIET + 1)), event(FORK, 1, 1, 9, 1000 + MOST_QUIET))


def test_a_program_is_never_longer_than_older_kernels_take() -> None:
    longest = max(
        len(program) // 8
        for program in (near(many(MOST_NEAR)), far(many(MOST_NEAR), many(MOST_FAMILY, 2000), many(MOST_QUIET, 3000)))
    )
    # 20 KiB for two of them, the one in force and the next; an instruction becomes two of eight bytes, at most.
    assert 2 * longest * 2 * 8 < 20 << 10
