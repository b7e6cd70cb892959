"""Processes and threads with names that are no words: what the agent says of them is printable text, line by line."""

from __future__ import annotations

import io
import json
import logging
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.telemetry.log import JsonFormatter, TextFormatter
from agent.telemetry.page import NodePage
from agent.telemetry.svg import plan_svg
from tests.cli.conftest import Cpubind, cpubind, snapshot_of  # noqa: F401 - a fixture
from tests.control.exported import Scraper
from tests.control.rig import Rig

NAMES = (
    "a\nb\n\n",
    "\x1b[31mred\x1b[0m",
    "\udcff\udcfe\udc80",
    "x) R 1 1 0",
    "<b>&\"'</b>",
    "\r\x07\x9b31m",
    "acl_thread\n",
    "{a=\"b\"} 1\n# x",
)  # fmt: skip
"""Each is cut to fifteen bytes, as the kernel does it. NUL can't be in a name."""


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A bound worker for each name, whose threads were moved by somebody, and a process of that name besides."""
    rig = Rig(tmp_path)
    for npu, name in enumerate(NAMES):
        worker = Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}"), comm=name, threads=3)
        worker.grow(2, name)
        rig.node.kernel.start_process(name)
    rig.settle()
    for npu in range(len(NAMES)):
        workers = [w for w in rig.npu(npu)["workers"] if w["state"] == "Bound"]
        assert len(workers) == 1, rig.npu(npu)
        rig.node.kernel.set_by_other(workers[0]["pid"], CpuSet.parse("600-610"))
    return rig


def assert_plain(text: str) -> None:
    """What a terminal, or whoever reads line by line, takes for nothing but text."""
    for line in text.split("\n"):
        assert line.isprintable(), repr(line)
    text.encode()  # no half of a character


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [s for key, entry in value.items() for s in (*strings(key), *strings(entry))]
    if isinstance(value, list | tuple):
        return [s for entry in value for s in strings(entry)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_log_has_a_line_for_each_record(rig: Rig, style: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logger = logging.getLogger("agent")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        rig.sweep()
        rig.restart()
        rig.settle()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    logged = stream.getvalue()
    assert logged.count("\n") > len(NAMES)
    assert_plain(logged)
    if style == "json":
        for line in logged.splitlines():
            assert isinstance(json.loads(line), dict)


def test_the_plan_and_what_is_told_of_it_is_text(rig: Rig) -> None:
    rig.told.clear()
    rig.sweep()
    document = yaml.safe_load(rig.state_file.read_text())
    for text in strings(document):
        assert_plain(text)
    assert_plain(rig.state_file.read_text())
    repaired = [happening for happening in rig.told if happening.reason.value == "CpuBindingRepaired"]
    assert len(repaired) == len(NAMES)
    for happening in rig.told:
        assert_plain(happening.message)


def test_metrics_have_no_name_of_a_process_and_can_be_parsed(rig: Rig) -> None:
    rig.sweep()
    scraper = Scraper(rig)
    series = scraper.all()
    assert len(series) > 50
    assert_plain(scraper.text())
    for name in NAMES:
        assert not [entry for entry in series if any(name[:15] == label for label in entry)]


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)


def test_the_page_and_the_picture_have_no_element_of_a_name(rig: Rig) -> None:
    rig.sweep()
    document = rig.agent.plan_object()
    page = NodePage(lambda: "")
    page.passed(document, {})
    body = page.response().body.decode()
    parser = _Text()
    parser.feed(body)
    assert "b" not in parser.tags
    assert_plain(body)
    svg = plan_svg(document)
    ElementTree.fromstring(svg)
    assert_plain(svg)


@pytest.mark.parametrize("live", [True, False], ids=["host", "snapshot"])
def test_commands_print_text(rig: Rig, cpubind: Cpubind, tmp_path: Path, live: bool) -> None:  # noqa: F811
    rig.node.kernel.sync()
    where: list[object] = ["--host-root", rig.node.root, "--npu-smi", rig.node.npu_smi.path]
    if not live:
        where = ["--snapshot", snapshot_of(rig.node, tmp_path / "snapshot")]
    pids = [worker["pid"] for npu in range(len(NAMES)) for worker in rig.npu(npu)["workers"]]
    commands: list[list[object]] = [
        ["plan"],
        ["plan", "-o", "json"],
        ["plan", "-o", "yaml"],
        ["plan", "-o", "svg"],
        ["verify"],
    ]
    for npu, pid in enumerate(pids):
        commands += [["explain", pid], ["explain", f"npu:{npu}"], ["explain", f"llm-{npu}"]]
    for command in commands:
        result = cpubind(*command, *where)
        assert result.out + result.err, command
        assert_plain(result.out)
        assert_plain(result.err)
        assert "Traceback" not in result.err
        if command[-1] == "json":
            for text in strings(json.loads(result.out)):
                assert_plain(text)
