"""A small client of an API server for tests: raw documents, every status code, watches read line by line."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3

Object = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

T = TypeVar("T")


class ApiError(Exception):
    """The server refused. `code` is the HTTP status, `status` the Status object where there was one."""

    def __init__(self, code: int, status: Object, text: str) -> None:
        super().__init__(f"{code}: {status.get('message') or text.strip()}")
        self.code = code
        self.status = status

    @property
    def message(self) -> str:
        message: str = self.status.get("message", "")
        return message


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    text: str
    headers: Mapping[str, str]

    @property
    def document(self) -> Object:
        """The body as JSON; empty where it is none."""
        try:
            document = json.loads(self.text)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


class ApiClient:
    """`ask` returns any answer; `get`, `create` and so on raise `ApiError` for anything but 2xx."""

    def __init__(self, host: str, port: int, ca: str, token: str | None, timeout: float = 15.0) -> None:
        context = ssl.create_default_context(cadata=ca)
        self._pool = urllib3.HTTPSConnectionPool(host, port, ssl_context=context, retries=False, maxsize=4)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = timeout

    def close(self) -> None:
        self._pool.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Object | str | None = None,
        *,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request. Raises urllib3's errors where the server can't be reached."""
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = content_type
        answer = self._pool.urlopen(
            method,
            _url(path, query),
            body=json.dumps(body) if isinstance(body, dict) else body,
            headers=headers,
            timeout=self._timeout,
        )
        return Answer(answer.status, answer.data.decode(), dict(answer.headers))

    def request(self, method: str, path: str, body: Object | str | None = None, **how: Any) -> Object:
        answer = self.ask(method, path, body, **how)
        if answer.code >= 300:
            raise ApiError(answer.code, answer.document, answer.text)
        return answer.document

    def apply(self, path: str, body: Object, *, manager: str, force: bool = True) -> Object:
        """Server-side apply."""
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return self.request("PATCH", path, body, content_type=APPLY_PATCH, query=query)

    def watch(self, path: str, query: Mapping[str, str] | None = None) -> Watch:
        """Opens a watch; it raises `ApiError` where the answer is none. Close it."""
        query = {"watch": "true", "timeoutSeconds": "60", **(query or {})}
        answer = self._pool.urlopen(
            "GET",
            _url(path, query),
            headers=self._headers,
            preload_content=False,
            timeout=urllib3.Timeout(connect=self._timeout, read=120),
        )
        if answer.status >= 300:
            text = answer.data.decode()
            raise ApiError(answer.status, Answer(answer.status, text, {}).document, text)
        return Watch(answer)


class Watch:
    """An open watch, read by a thread of its own."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer
        self._news = threading.Condition()
        self._lines: list[Object] = []
        self._ended = False
        self._thread = threading.Thread(target=self._read, name="watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # It may have ended, or end right now; then there is nothing to shut down, and urllib3 says so.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._answer.shutdown()
        self._thread.join(10)
        self._answer.close()

    @property
    def events(self) -> list[Object]:
        """All that came so far: `{"type": …, "object": …}`."""
        with self._news:
            return list(self._lines)

    @property
    def seen(self) -> list[tuple[str, str]]:
        """Type and name of what came so far, without bookmarks."""
        return [
            (event["type"], event["object"].get("metadata", {}).get("name", ""))
            for event in self.events
            if event["type"] != "BOOKMARK"
        ]

    def wait_for(self, kind: str, name: str = "", timeout: float = 10.0) -> Object:
        """The first event of this type, and of this object if one is named."""

        def it(event: Object) -> bool:
            return event["type"] == kind and name in ("", event["object"].get("metadata", {}).get("name"))

        def come() -> bool:
            return self._ended or any(map(it, self._lines))

        with self._news:
            self._news.wait_for(come, timeout)
            for event in self._lines:
                if it(event):
                    return event
            raise AssertionError(f"no {kind} {name} came, but {[line['type'] for line in self._lines]}")

    def wait_for_end(self, timeout: float = 10.0) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self._ended, timeout), "the watch did not end"

    def _read(self) -> None:
        rest = b""
        try:
            for part in self._answer.stream(1 << 16):
                *lines, rest = (rest + part).split(b"\n")
                with self._news:
                    self._lines += [json.loads(line) for line in lines if line]
                    self._news.notify_all()
        except (OSError, ValueError, urllib3.exceptions.HTTPError):
            pass  # cut: an end like any other
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()


def eventually(look: Callable[[], T], what: str, timeout: float = 10.0) -> T:
    """Looks again and again until what it finds is true."""
    until = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < until, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)
    return found


def _url(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path
