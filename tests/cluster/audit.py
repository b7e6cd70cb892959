"""The audit log of a real API server, as requests."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.cluster.cluster import USER, Request

POLICY = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  users: ["{USER}"]
- level: None
"""
"""What the service account asks, and nothing else."""


class AuditLog:
    """Reads what was added since `forget`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._from = 0

    def forget(self) -> None:
        """What is in it now is not told any more."""
        self._from = self.path.stat().st_size if self.path.exists() else 0

    def requests(self) -> list[Request]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._from)
            text = file.read()
        # Each is in it several times: when it came, was answered, and ended; the last says most.
        events: dict[str, dict[str, Any]] = {}
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            event = json.loads(line)
            events[event["auditID"]] = event
        told = [event for event in events.values() if event["verb"] == "watch" or "responseStatus" in event]
        return sorted(map(_request, told), key=lambda request: request.time)


def _request(event: dict[str, Any]) -> Request:
    url = urlsplit(event["requestURI"])
    return Request(
        verb=event["verb"],
        path=unquote(url.path),
        query=dict(reversed(parse_qsl(url.query, keep_blank_values=True))),
        user=event["user"]["username"],
        # v1.20 says that a watch was answered when its first event is sent; a refusal it says at once.
        code=event.get("responseStatus", {}).get("code", 200),
        time=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
    )
