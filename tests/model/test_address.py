"""Addresses to listen on, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.address import Address, parse_address
from agent.model.reason import Reason, Refused


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":8086", "", 8086),
        ("127.0.0.1:8086", "127.0.0.1", 8086),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("[::1]:9486", "::1", 9486),
        ("[::]:65535", "::", 65535),
        ("[fe80::1%eth0]:9486", "fe80::1%eth0", 9486),
        ("localhost:8086", "localhost", 8086),
        ("node-7.example.org:8086", "node-7.example.org", 8086),
    ],
)
def test_an_address_is_a_host_and_a_port_and_reads_back_as_it_was_written(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert str(address) == text


def test_off_is_no_address() -> None:
    assert parse_address("off") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither HOST:PORT"),
        ("8086", "neither HOST:PORT"),
        ("Off", "neither HOST:PORT"),
        (":", "no port"),
        (":0", "no port"),
        (":65536", "no port"),
        (":-1", "no port"),
        (":８０８６", "no port"),
        (":http", "no port"),
        ("localhost:", "no port"),
        ("::1:8086", "brackets"),
        ("[::1:8086", "brackets"),
        ("[::1]8086", "no port"),
        ("[127.0.0.1]:8086", "no IPv6"),
        ("[]:8086", "no IPv6"),
        ("[fe80::1%a\x1b]:1", "no IPv6"),
        ("127.0.0.256:8086", "neither a host name"),
        ("127.1:8086", "neither a host name"),
        ("http://localhost:8086", "brackets"),
        ("-a:1", "neither a host name"),
        ("a b:1", "neither a host name"),
        ("a..b:1", "neither a host name"),
        ("x" * 64 + ":1", "neither a host name"),
    ],
)
def test_what_is_no_address_is_refused_with_what_is_wrong_with_it(text: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        parse_address(text)
    assert refused.value.reason is Reason.INVALID_SPEC
    assert refused.value.message.isprintable()


@given(st.text(max_size=300) | st.from_regex(r"[\[\]:%0-9a-f.]{0,20}:[0-9]{1,6}", fullmatch=True))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except Refused:
        return
    assert address is None or parse_address(str(address)) == address
