"""Messages of the process connector: what the kernel sends, and what anybody could make of it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node.proc_messages import (
    COMM,
    EXEC,
    EXIT,
    FORK,
    MESSAGE_BYTES,
    Event,
    child_of,
    comm_of,
    one,
    parse,
    request,
)
from tests.node.events.messages import message

HEADERS = "=IHHII IIIIHH"

events: st.SearchStrategy[Event] = st.tuples(
    st.sampled_from([FORK, EXEC, COMM, EXIT]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(min_size=16, max_size=16),
)


def kernels(what: int, *, pid: int, tgid: int, rest: bytes) -> bytes:
    """As linux/cn_proc.h lays it out, written down a second time."""
    return (
        struct.pack("=IHHII", 76, 3, 0, 11, 0)
        + struct.pack("=IIIIHH", 1, 1, 11, 0, 40, 0)
        + struct.pack("=IIQ", what, 1, 123456789)
        + struct.pack("=ii", pid, tgid)
        + rest.ljust(16, b"\0")
    )


def test_a_rename_has_thread_process_and_name() -> None:
    [(what, at, pid, tgid, rest)] = parse(kernels(COMM, pid=4712, tgid=4711, rest=b"acl_thread"))
    assert (what, at, pid, tgid, comm_of(rest)) == (COMM, 123456789, 4712, 4711, b"acl_thread")


def test_a_birth_has_the_parent_and_the_child() -> None:
    [(what, _, pid, tgid, rest)] = parse(kernels(FORK, pid=1, tgid=1, rest=struct.pack("=ii", 4713, 4711)))
    assert (what, pid, tgid, child_of(rest)) == (FORK, 1, 1, (4713, 4711))


@pytest.mark.parametrize("what", [EXEC, EXIT])
def test_an_end_and_another_program_have_thread_and_process(what: int) -> None:
    assert [event[:4] for event in parse(kernels(what, pid=4712, tgid=4711, rest=b""))] == [
        (what, 123456789, 4712, 4711)
    ]


@given(st.lists(events, max_size=5))
def test_several_messages_in_one_datagram_are_all_read_in_order(several: list[Event]) -> None:
    assert parse(b"".join(message(event) for event in several)) == several


@given(events)
def test_the_fast_way_reads_the_same(event: Event) -> None:
    data = message(event)
    assert one(bytearray(data) + bytearray(100), len(data)) == event
    assert len(data) == MESSAGE_BYTES


@given(st.binary(max_size=200))
def test_whatever_comes_nothing_is_raised(data: bytes) -> None:
    assert isinstance(parse(data), list)
    one(bytearray(data), len(data))


@given(st.lists(events, min_size=1, max_size=3), st.data())
def test_one_that_is_cut_or_damaged_gives_no_more_than_the_whole_one(several: list[Event], draw: st.DataObject) -> None:
    data = bytearray(b"".join(message(event) for event in several))
    cut = draw.draw(st.integers(0, len(data)))
    assert parse(data[:cut]) == several[: cut // MESSAGE_BYTES]
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert len(parse(data)) <= len(several)
    fast = one(data, len(data))
    assert fast is None or [fast] == parse(data)


@pytest.mark.parametrize("length", [0, 15, 2**32 - 1])
def test_a_length_that_leads_nowhere_ends_the_reading(length: int) -> None:
    data = bytearray(message((COMM, 0, 1, 1, b"x" * 16)) * 2)
    data[:4] = struct.pack("=I", length)
    assert len(parse(data)) <= 1


def test_messages_of_other_connectors_are_left_out() -> None:
    other = message((COMM, 0, 1, 1, b"x" * 16), idx=2)
    event: Event = (COMM, 0, 1, 1, b"x" * 16)
    assert parse(other + message(event)) == [event]
    assert one(bytearray(other), len(other)) is None


def test_a_longer_event_of_a_later_kernel_is_read_by_what_is_known() -> None:
    event: Event = (EXIT, 5, 7, 7, b"y" * 16)
    body = message(event)[36:] + b"more"
    data = struct.pack(HEADERS, 36 + len(body), 3, 0, 0, 0, 1, 1, 0, 0, len(body), 0) + body
    assert parse(data) == [event]


@pytest.mark.parametrize(("listen", "op"), [(True, 1), (False, 2)])
def test_the_request_has_the_four_bytes_that_every_kernel_knows(listen: bool, op: int) -> None:
    data = request(listen=listen)
    assert struct.unpack(HEADERS + "I", data) == (40, 3, 0, 0, 0, 1, 1, 0, 0, 4, 0, op)
