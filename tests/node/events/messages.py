"""Messages as the kernel sends them."""

from __future__ import annotations

import struct

from agent.node.proc_messages import Event


def message(event: Event, *, idx: int = 1, val: int = 1) -> bytes:
    """One message: `idx` and `val` say which connector it is of."""
    body = struct.pack("=I4xQii16s", *event)
    cn_msg = struct.pack("=IIIIHH", idx, val, 0, 0, len(body), 0)
    return struct.pack("=IHHII", 36 + len(body), 3, 0, 0, 0) + cn_msg + body
