"""docs/security.md says what chart and agent have, and what docs/kubernetes.md says."""

from __future__ import annotations

import ast
import re

from agent.cli.doctor import RIGHTS
from agent.control import storms
from agent.model.reason import Reason
from agent.node.capabilities import Capability
from agent.node.kubelet import STATE
from agent.telemetry import listener, turnstile
from tests.chart.crd import fields, schema
from tests.docs import privileges
from tests.docs.pages import ROOT, code, one_line, sections, table
from tests.docs.values import VALUES, has

PAGE = ROOT / "docs/security.md"
TEXT = PAGE.read_text()
SECTIONS = sections(PAGE)
APPROVED = sections(ROOT / "docs/kubernetes.md")["What you approve"]
CAPABILITIES, WRITABLE = (table(part) for part in SECTIONS["What the container reaches"].split("With `hostPID`"))


def test_the_rights_are_those_that_doctor_asks_for() -> None:
    said = set()
    for right, _ in table(SECTIONS["What the token reaches"]):
        resource, *verbs = code(right)
        said |= {(verb, resource) for verb in verbs}
    assert said == {(verb, f"{name}/{sub}" if sub else name) for verb, _, name, sub in RIGHTS}


def test_the_table_of_capabilities_is_the_agents() -> None:
    assert privileges.page(TEXT) == TEXT, "make docs"


def test_the_capabilities_are_those_that_the_agent_has_a_use_for() -> None:
    assert {code(row[0])[0] for row in CAPABILITIES} == {one.name for one in Capability}
    assert {one.name for one in Capability} == set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", APPROVED)) - {"CAP_NET_ADMIN"}


def test_what_can_be_written_is_what_the_other_page_says() -> None:
    mounts = table(APPROVED.partition("What of the host it sees:")[2])
    assert [code(row[0])[0] for row in WRITABLE] == [code(row[0])[0] for row in mounts if row[2] == "writable"]


def test_what_a_pod_can_do_is_limited_as_the_page_says() -> None:
    said = one_line(SECTIONS["What a pod, or its owner, can do"])
    assert (
        f"more than {storms.MOST:,} events a second is not listened to for {storms.FIRST_SECONDS:.0f} seconds" in said
    )
    host = one_line((ROOT / "docs/host.md").read_text())
    assert f"more than {storms.MOST:,} events come in a second is left to the sweep for 10 seconds" in host
    assert f"up to {storms.LONGEST_SECONDS:.0f}; the log says so" in host


def test_the_ports_and_limits_are_the_code_s() -> None:
    ports = [row[0] for row in table(SECTIONS["What it listens on"])]
    assert ports == [str(VALUES[kind]["port"]) for kind in ("health", "metrics")]
    assert (listener.DEADLINE_SECONDS, listener.MAX_CONNECTIONS) == (5, 32)
    assert "A connection has five seconds, and there are 32 of them at most." in one_line(
        SECTIONS["What it listens on"]
    )
    assert (listener.HEAD_BYTES, turnstile.BURST, turnstile.PER_SECOND) == (16 << 10, 256, 32)
    assert "16 KiB of a request are read" in one_line(SECTIONS["What it listens on"])
    assert "more than 256 at once, and 32 a second" in one_line(SECTIONS["What it listens on"])
    methods = {
        name.removeprefix("do_")
        for name in re.findall(r"\bdo_[A-Z]+", (ROOT / "agent/telemetry/listener.py").read_text())
    }
    assert methods == {"GET", "HEAD"}
    assert "minimum_version = ssl.TLSVersion.TLSv1_2" in (ROOT / "agent/telemetry/tls.py").read_text()
    assert "by TLS 1.2 or newer" in one_line(SECTIONS["What it listens on"])


def test_what_a_plan_says_of_a_worker_is_what_the_page_says_leaves_the_node() -> None:
    names = {path.rpartition(".")[2] for path, _ in fields(schema()) if path.startswith("status.npus[].workers[].")}
    cpus = {"pool", "roles", "irq", "main", "acl", "release"}
    states = {name for name in names if re.fullmatch(r"state|reason|message|memory(Reason|Message)?", name)}
    assert names - cpus - states == {"pid", "namespace", "pod", "container"}


def test_the_agent_opens_of_kubelets_folder_what_the_page_says() -> None:
    opened = set()
    for file in (ROOT / "agent").rglob("*.py"):
        if "demo" in file.parts or "cli" in file.parts:
            continue
        opened |= set(re.findall(r"\"/?(var/lib/kubelet[\w/.-]*)\"", file.read_text()))
    assert opened == {STATE, "var/lib/kubelet/pod-resources/kubelet.sock"}


def test_one_module_runs_a_program_and_it_uses_no_shell() -> None:
    runners = set()
    for file in (ROOT / "agent").rglob("*.py"):
        if {"demo", "cli"} & set(file.parts):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if "subprocess" in names:
                runners.add(file.relative_to(ROOT).as_posix())
            if isinstance(node, ast.keyword):
                assert node.arg != "shell"
    assert runners == {"agent/node/npu_smi/command.py"}


def test_what_opens_files_to_write_them_is_what_the_page_lists() -> None:
    """Interrupts by way of host.py; the journal and the lock; and commands that write a bundle, or unpack one."""
    writing = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|write_text|write_bytes|open\([^)\n]*\"[wax]b?\"")
    found = set()
    for file in (ROOT / "agent").rglob("*.py"):
        if not {"demo", "cli"} & set(file.parts) and writing.search(file.read_text()):
            found.add(file.relative_to(ROOT).as_posix())
    assert found == {f"agent/node/{name}.py" for name in ("irq", "storage", "capture", "archive")}
    callers = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "agent").rglob("*.py")
        if "write_affinity(" in file.read_text() and "demo" not in file.parts
    }
    assert callers == {"agent/node/irq.py", "agent/node/host.py"}
    assert "All writes to the host go through one file, `agent/node/host.py`" in one_line(TEXT)
    setting = [file for file in (ROOT / "agent").rglob("*.py") if "libc.sched_setaffinity" in file.read_text()]
    assert setting == [ROOT / "agent/node/host.py"]


def test_every_value_on_the_page_is_one_of_the_chart() -> None:
    named = {name.partition(":")[0] for row in table(SECTIONS["Giving it less"]) for name in code(row[1])}
    named = {name for name in named if not name.startswith("[")} - {"Annotated", "securityContext.capabilities.add"}
    assert {name for name in named if not has(name) and name not in Capability.__members__} == set()


def test_every_reason_on_the_page_exists() -> None:
    words = {word for word in code(TEXT) if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+", word)}
    assert words - {"DryRun", "RuntimeDefault", "IfPossible"} <= {reason.value for reason in Reason}
