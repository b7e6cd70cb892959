"""An API server that has the plans of two nodes, as people with a kubeconfig read them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

RECORDED = Path(__file__).parent / "recorded"
PLANS = "/apis/cpubind.dev/v1alpha1/cpubindingplans"

Object = dict[str, Any]


def recorded(*names: str) -> list[Object]:
    """Plans as agents on virtual nodes wrote them: on a3-0 all is well, on a2-0 a pod has four CPUs, too few."""
    return [json.loads((RECORDED / f"{name}.json").read_text()) for name in names]


class Server:
    """An API server that has plans and pods, and notes who asked for what."""

    def __init__(self) -> None:
        self.plans: list[Object] = recorded("a3-0", "a2-0")
        self.pods: dict[str, Object] = {}
        self.refuses = 0
        self.asked: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append((self.path, self.headers.get("Authorization")))
                status, answer = server.answer(self.path)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, path: str) -> tuple[int, Object]:
        if self.refuses:
            return self.refuses, {"kind": "Status", "metadata": {}, "message": "no such right"}
        where = urlsplit(path)
        if where.path == PLANS:
            query = {key: values[0] for key, values in parse_qs(where.query).items()}
            wanted = query.get("fieldSelector", "").removeprefix("metadata.name=")
            found = [p for p in self.plans if wanted in ("", p["metadata"]["name"])]
            begin = int(query.get("continue", 0))
            end = begin + int(query.get("limit") or len(found))
            left = {"continue": str(end), "remainingItemCount": len(found) - end} if end < len(found) else {}
            return 200, {"kind": "CpuBindingPlanList", "metadata": left, "items": found[begin:end]}
        pod = self.pods.get(where.path.removeprefix("/api/v1/namespaces/"))
        return (
            (200, {"kind": "Pod", **pod}) if pod else (404, {"kind": "Status", "metadata": {}, "message": "not found"})
        )

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
