"""Whatever it is given, a parser reads it or refuses it, in a line that can be told; and no parser is left out."""

from __future__ import annotations

import functools
import sys
import types
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.parsers import parsers
from tests.fuzz.targets import TARGETS, check

CORPUS = Path(__file__).parent / "corpus"

ELSEWHERE: Final = {
    # What is told by the kernel to this process alone, and is tried against the kernel.
    "agent.node.taskstats:TaskStats._open": "tests/host: the running kernel's taskstats",
    "agent.node.taskstats:TaskStats._ask": "tests/host: the running kernel's taskstats",
    "agent.node.taskstats:TaskStats._tells": "tests/host: the running kernel's taskstats",
    "agent.node.statx:_by_statx": "tests/host: what statx(2) fills in",
    "agent.node.listing:Listing._read_end": "tests/node/threads: getdents64(2); what it reads is given to parse",
    "agent.node.capabilities:capabilities": "tests/cli: this process's own status",
    # Bytes that pass through, and are looked at by a parser that is in the table.
    "agent.node.host_copy:_HostCopy._cgroup": "a copy",
    "agent.node.host_copy:_HostCopy._file": "a copy",
    "agent.node.npu_smi.command:_read": "a pipe, whose reader has a limit: tests/node/npu_smi/test_npu_smi_command.py",
    "agent.node.irqbalance:Irqbalance._connected": "tests/host: SO_PEERCRED of a real irqbalance",
    "agent.node.irqbalance:_answer": "tests/host: a real irqbalance; its limit is the table's",
    "agent.node.irqbalance:_done_with": "tests/host: what is read is dropped",
    "agent.node.storage:_head": "200 bytes of a lock's file, printed: tests/node/host_reading",
    "agent.cli.options:read_journal": "journal_file.parse",
    "agent.cli.options:_parsed": "journal_file.parse",
    "agent.control.journal_file:_read": "a file, for journal_file.parse",
    "agent.node.cgroups:_lists": "a number is looked for in a list of numbers",
    # HTTP, whose parsers are those of aiohttp, urllib3 and kopf.
    "agent.kube.api:Api._request.<locals>.make": "tests/api, tests/kube/test_api_client.py: faults of an API server",
    "agent.kube.bounds:_bounded_sockets.<locals>.Bounded.recv_into": "tests/kube/test_bounds.py: they pass through",
    "agent.kube.kubeconfig:_token": "a file, of which what is no token is refused: tests/cli/test_kubeconfig.py",
    "agent.kube.traffic:Traffic._look_at": "tests/kube/test_watch_faults.py",
    "agent.kube.traffic:Traffic._is_restored": "tests/kube/test_watch.py",
    "agent.kube.publisher:Publisher._apply": "a message of 256 bytes is searched: tests/kube/test_publisher_faults.py",
    "agent.telemetry.families:Label.fitted": "a value of the agent's own is compared with a form",
}
"""Functions that take something in and are not in the table, with where they are tried, or why that is elsewhere."""


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once_is_read_or_refused_ever_after(name: str) -> None:
    target = TARGETS[name]
    read = [check(target, seed) for seed in target.seeds]
    assert any(read), "no seed of it is read"
    for path in sorted((CORPUS / name).iterdir()) if (CORPUS / name).is_dir() else ():
        check(target, path.read_bytes())


def test_the_corpus_has_no_folder_that_is_no_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


@functools.cache
def _called() -> frozenset[str]:
    """The functions of the agent that the seeds of all targets get to."""
    called: set[str] = set()

    def note(frame: types.FrameType, event: str, _argument: object) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith("agent."):
                called.add(f"{module}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        for target in TARGETS.values():
            for seed in target.seeds:
                check(target, seed)
    finally:
        sys.setprofile(None)
    return frozenset(called)


def test_every_function_of_the_agent_that_takes_something_in_is_in_the_table() -> None:
    forgotten = [name for name in sorted(parsers()) if name not in _called() and name not in ELSEWHERE]
    assert not forgotten, "put them into TARGETS, or say in ELSEWHERE where they are tried"


def test_what_is_said_to_be_tried_elsewhere_is_there_and_is_not_in_the_table() -> None:
    assert ELSEWHERE.keys() <= parsers()
    assert not ELSEWHERE.keys() & _called()


def test_parsers_are_found_by_their_name_and_by_what_they_call() -> None:
    found = parsers()
    assert "agent.node.procfs:parse_status" in found
    assert "agent.node.cgroups:CgroupTree.path" in found
    assert "agent.planning.validation:_choice.<locals>.parse" in found
    assert not any(name.startswith("agent.demo") for name in found)
