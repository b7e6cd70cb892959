"""What goes wrong between here and the API server, in a few words that are the same each time."""

from __future__ import annotations

import http.client
import json
import os
import ssl

import aiohttp

from agent.model.reason import printable

MAX_STATUS = 64 << 10
"""Bytes of a Status that says why something is refused. What is longer is somebody else's, and not looked into."""

_BROKEN = (
    *(ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError),
    *(http.client.IncompleteRead, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError),
    aiohttp.http_exceptions.PayloadEncodingError,
)
"""How a connection that breaks off is called, by where it does."""


def said(error: Exception) -> str:
    """What is at the bottom of an error of aiohttp, urllib3 or Python's own.

    Their own texts name objects by their address in memory and repeat the URL: no two are the same, and a log that
    tells what is new would tell each of them.
    """
    bottom = _bottom(error)
    if isinstance(bottom, TimeoutError) or "timed out" in str(bottom):
        return "no answer in time"
    if isinstance(bottom, _BROKEN):
        return "the connection broke off"
    if isinstance(bottom, ssl.SSLError):
        why = getattr(bottom, "verify_message", "") or (bottom.reason or "").replace("_", " ").lower()
        return f"TLS: {printable(why or str(bottom), 120)}"
    if isinstance(bottom, OSError) and bottom.errno is not None:
        return os.strerror(bottom.errno) if bottom.errno > 0 else str(bottom.strerror)
    return printable(str(bottom) or type(bottom).__name__, 120)


def status_message(body: str | bytes) -> str:
    """``message`` of the Status in an answer; empty where it is none."""
    try:
        status = json.loads(body) if 0 < len(body) <= MAX_STATUS else None
    except (ValueError, RecursionError):
        return ""
    return str(status.get("message") or "") if isinstance(status, dict) else ""


def _bottom(error: Exception) -> Exception:
    """The one that the others are made of."""
    for _ in range(10):
        under = [getattr(error, name, None) for name in ("certificate_error", "os_error", "reason", "__cause__")]
        deeper = next((one for one in (*under, *error.args) if isinstance(one, Exception) and one is not error), None)
        if deeper is None:
            break
        error = deeper
    return error
