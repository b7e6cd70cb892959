"""A Prometheus of a test's own: Debian's, with its data in a folder, on a port of the loopback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

SCRAPE_SECONDS = 1.0
"""A scrape may take as long, on a machine that is busy with other tests."""


class Prometheus:
    """Answers queries by its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer. Raises AssertionError with Prometheus' own words where it refuses."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{parameters}: {refused.read().decode()}") from None

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """The series that an instant query gives, by their labels."""
        found = self.get("/api/v1/query", query=expr)
        assert found["resultType"] == "vector", expr
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    def scraped(self, times: int = 2) -> None:
        """Returns when the agent has been scraped so many times more."""
        begun = self._scrapes()
        until(lambda: self._scrapes() >= begun + times)

    def _scrapes(self) -> float:
        return sum(value for _, value in self.query("count_over_time(cpubind_build_info[10m])"))

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=1):
                return True
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, target: int, labels: dict[str, str]) -> Iterator[Prometheus]:
    """One that scrapes this port of the loopback and gives its series these labels. Skips the test without it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("NO prometheus HERE: install Debian's prometheus")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    scrape = {"job_name": "cpubind", "static_configs": [{"targets": [f"127.0.0.1:{target}"], "labels": labels}]}
    timing = {"scrape_interval": f"{SCRAPE_SECONDS * 1000:.0f}ms", "scrape_timeout": f"{SCRAPE_SECONDS * 1000:.0f}ms"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": timing, "scrape_configs": [scrape]}))
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        server = Prometheus(port)
        until(lambda: server.ready() or running.poll() is not None)
        assert running.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        running.terminate()
        running.wait(timeout=30)


def until(done: Callable[[], bool]) -> None:
    """For what another process does."""
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("nothing happened for a minute")
