"""The agent's page ``/``."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given

from agent.model.address import Address
from agent.telemetry.health import Health, HealthServer
from agent.telemetry.page import RECENT_SECONDS, NodePage
from tests.telemetry.listening import LOOPBACK, ask, port_of
from tests.telemetry.plans import hostile, large, little, mangled, odd
from tests.telemetry.test_svg import ANY, EVIL

PAGE = {"html", "head", "meta", "title", "style", "body", "header", "main", "h1", "h2", "p", "ul", "li", "span", "div"}
ELEMENTS = PAGE | {"svg", "g", "rect", "text", "table", "thead", "tbody", "tr", "th", "td", "wbr"}
VOID = {"meta", "wbr"}


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Reader(HTMLParser):
    """Text and elements; every element is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.lines: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.lines.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class _Page:
    def __init__(self) -> None:
        self.clock, self.wall = _Clock(), _Clock()
        self.page = NodePage(lambda: "npu-smi has not answered yet", clock=self.clock, wall_clock=self.wall)

    def read(self) -> _Reader:
        response = self.page.response()
        assert response.content_type == "text/html; charset=utf-8"
        return _Reader(response.body.decode())


def test_before_the_first_pass_it_says_what_is_waited_for() -> None:
    shown = _Page().read().text
    assert "The agent has just started; it has not looked at the node yet." in shown
    assert "There is no plan yet: npu-smi has not answered yet" in shown


def test_passes_without_a_plan_are_told_from_none() -> None:
    page = _Page()
    page.page.passed({}, {})
    page.clock.now += 4
    shown = page.read().text
    assert "There is no plan yet: npu-smi has not answered yet" in shown
    assert "As of 1970-01-01 00:16:40 UTC, 4 s ago, when the agent last looked." in shown


@pytest.mark.parametrize(("seconds", "said"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h")])
def test_it_says_how_old_it_is(seconds: float, said: str) -> None:
    page = _Page()
    page.page.passed(large(), {})
    page.clock.now += seconds
    assert f", {said} ago, when the agent last looked" in page.read().text


def test_it_has_the_node_its_npus_and_their_workers() -> None:
    page = _Page()
    page.page.passed(large(), {})
    shown = page.read()
    for line in ("a3-0", "A3 · GlobalSlice · Enforce · aarch64 · plan 6f1c09ab12cd", "16 NPUs, 16 workers, 16 bound"):
        assert line in shown.lines
    assert "4726 prod/llm-15/vllm" in shown.lines
    assert sum(attrs.get("role") == "img" for _, attrs in shown.elements) == 640
    assert sum(tag == "tr" for tag, _ in shown.elements) == 17
    assert "There is no plan yet" not in shown.text


def test_it_says_what_is_not_as_it_should_be() -> None:
    page = _Page()
    page.page.passed(odd(), {})
    shown = page.read()
    assert "What is not as it should be" in shown.lines
    assert "Ready: False  InsufficientCpus" in shown.lines
    assert "Partial, drifted" in shown.lines
    assert "5001: CpuBindingConflict: somebody else keeps moving it" in shown.lines


def test_an_npu_whose_threads_had_moved_is_marked_for_ten_minutes() -> None:
    page = _Page()
    page.page.passed(large(), {3: 9, 4: 0})
    page.clock.now += 30
    page.page.passed(large(), {5: 1})
    shown = page.read()
    assert "NPU 3: 9 threads or interrupts, found 30 s ago" in shown.lines
    assert "NPU 5: 1 thread or interrupt, found 0 s ago" in shown.lines
    assert shown.text.count("! drifted") == 2
    page.clock.now += RECENT_SECONDS - 30
    assert page.read().text.count("! drifted") == 1
    page.clock.now += 30
    page.page.passed(large(), {})
    shown = page.read()
    assert "drifted" not in shown.text
    assert "What had moved" not in shown.text


def test_a_later_pass_is_what_is_shown_then() -> None:
    page = _Page()
    page.page.passed(large(), {})
    page.read()
    page.page.passed(little(), {})
    assert "2 NPUs, 1 worker, 1 bound" in page.read().lines


def test_it_runs_nothing_and_fetches_nothing() -> None:
    page = _Page()
    page.page.passed(large(), {})
    shown = page.read()
    assert {tag for tag, _ in shown.elements} <= ELEMENTS
    assert not {name for _, attrs in shown.elements for name in attrs} & {"href", "src", "xlink:href", "action"}
    assert not [name for _, attrs in shown.elements for name in attrs if name.startswith("on")]
    policy = page.page.response().headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


@given(ANY | EVIL)
def test_whatever_a_name_is_it_is_text_and_no_more(name: str) -> None:
    page = _Page()
    page.page.passed(hostile(name), {})
    shown = page.read()
    assert {tag for tag, _ in shown.elements} <= ELEMENTS
    assert all(line.replace("\n", "").isprintable() for line in shown.lines)
    assert len(page.page.response().body) < 100_000


@pytest.mark.parametrize("replacement", [None, 7, "5-3", {}, [None, 3, {}]])
def test_an_object_of_another_form_is_shown_as_far_as_it_goes(replacement: Any) -> None:
    for doc in [{}, {"status": replacement}, *mangled(little(), replacement)]:
        page = _Page()
        page.page.passed(doc, {0: 1})
        page.read()


def test_nothing_of_the_agent_s_environment_is_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_SECRET", "not-for-everybody")
    page = _Page()
    page.page.passed(large(), {})
    shown = page.page.response().body.decode()
    assert "not-for-everybody" not in shown
    assert os.environ["PATH"] not in shown


def test_it_is_served_beside_the_probes() -> None:
    health = Health(5)
    page = NodePage(lambda: health.readiness()[1])
    server = HealthServer(Address(LOOPBACK, 0), health, page=page.response)
    try:
        status, body, headers = ask(port_of(server), "/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "There is no plan yet: starting" in body
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert ask(port_of(server), "/index.html")[0] == 404
        assert ask(port_of(server), "/healthz")[0] == 200
    finally:
        server.close()
