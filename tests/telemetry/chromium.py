"""A headless Chromium that says what it makes of a page. It is spoken to by the DevTools protocol over a pipe: JSON
objects, each ended by a NUL (``--remote-debugging-pipe``)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0
"""Seconds for any one answer: the machine may be busy with something else."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the accessibility tree."""

    role: str
    name: str


class Browser:
    """One page of it."""

    def __init__(self, process: subprocess.Popen[bytes], read: int, write: int) -> None:
        self._process, self._read, self._write = process, read, write
        self._number = 0
        self._buffer = b""
        self._session = ""
        self.complaints: list[str] = []
        """Exceptions, and what the browser logs as an error: a rule of the page's policy that was broken, say."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result

    def open(self, url: str, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Loads a page in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.complaints.clear()
        failed = self.call("Page.navigate", url=url).get("errorText")
        assert not failed, failed
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def eval(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def accessible(self) -> list[Node]:
        """What is there for those who do not see it."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            Node(node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]

    def screenshot(self, path: Path) -> None:
        """The whole page, beyond the window too."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, f"Chromium has ended with {self._process.poll()}"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        if found.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(found["params"]["exceptionDetails"]))
        elif found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            self.complaints.append(str(found["params"]["entry"]))
        return found


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser whose files are in this folder. Skips the test, loudly, where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("NO CHROMIUM ON THIS MACHINE: the picture of a node was not looked at (apt-get install chromium)")
    to_read, to_write = os.pipe(), os.pipe()
    # The protocol's ends are file descriptors 3 and 4.
    redirected = f'exec "$0" "$@" 3<&{to_write[0]} 4>&{to_read[1]}'
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", redirected, program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            pass_fds=(to_write[0], to_read[1]),
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(to_write[0])
    os.close(to_read[1])
    try:
        yield Browser(process, to_read[0], to_write[1])
    finally:
        process.kill()
        process.wait()
        os.close(to_read[0])
        os.close(to_write[1])
