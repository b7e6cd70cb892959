"""Where the agent listens for probes and scrapes: ``HOST:PORT``, or nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from agent.model.reason import Reason, Refused, printable

OFF: Final = "off"

_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
"""A host name as of RFC 1123."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on."""

    host: str
    """An IPv4 or IPv6 address without brackets, or a host name; empty for all interfaces, IPv4 and IPv6."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address | None:
    """``127.0.0.1:8086``, ``localhost:8086``, ``[::1]:8086``, ``:8086`` for all interfaces; None for ``off``.

    Raises `Refused` with InvalidSpec; the message does not name the setting.
    """
    if text == OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon:
        raise _refused(text, "is neither HOST:PORT nor :PORT nor off")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65535):
        raise _refused(text, "has no port from 1 to 65535 behind its last colon")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ipv6(host):
            raise _refused(text, "has no IPv6 address in its brackets")
    elif ":" in host:
        raise _refused(text, "needs brackets around its IPv6 address, as in [::1]:8086")
    elif host and not _is_name(host):
        raise _refused(text, "has neither a host name nor an IPv4 address before its port")
    return Address(host, int(port))


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return host.isascii() and host.isprintable()  # behind a % anything goes


def _is_name(host: str) -> bool:
    if re.fullmatch(r"[0-9.]+", host):  # no name that anybody means: a mistyped IPv4 address
        try:
            IPv4Address(host)
        except ValueError:
            return False
        return True
    return len(host) <= 253 and _NAME.fullmatch(host) is not None


def _refused(text: str, what: str) -> Refused:
    return Refused(Reason.INVALID_SPEC, f"{printable(repr(text), 80)} {what}")
