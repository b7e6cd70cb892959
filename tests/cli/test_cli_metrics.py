"""Where a standalone agent serves metrics, and what settings cannot mean."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import trustme

from agent.cli.demo import demo
from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import PROFILES
from agent.demo.show import AgentSetup, MakeAgent
from agent.demo.virtual import VirtualNode
from agent.model.reason import Refused
from agent.settings import load_settings
from tests.cli.running import TIMEOUT, Running, condition

Start = Callable[..., Running]
SWEPT = "cpubind_last_sweep_timestamp_seconds"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    NpuSmiStandIn(tmp_path, PROFILES["a2"])
    started: list[Running] = []

    def run(*args: str) -> Running:
        started.append(Running(tmp_path, *args))
        return started[-1]

    yield run
    for agent in started:
        agent.process.kill()
        agent.process.wait()
        assert agent.process.stderr is not None
        agent.process.stderr.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def listening(agent: Running) -> list[tuple[str, int]]:
    connections = psutil.Process(agent.process.pid).net_connections(kind="tcp")
    return [(one.laddr.ip, one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN]


def until_listened_on(port: int) -> None:
    """That begins in a thread of its own."""
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end, "nobody listens"
            time.sleep(0.01)
        else:
            return


def sample(text: str, name: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def read(url: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=10, context=context) as answer:
        body: bytes = answer.read()
    return body.decode()


def planned(agent: Running) -> None:
    agent.state(lambda document: bool(document["status"]["npus"]))


def test_without_being_told_to_it_listens_nowhere(start: Start) -> None:
    agent = start()
    planned(agent)
    assert listening(agent) == []
    assert agent.end()[0] == 0


def test_where_it_is_told_to_it_serves_what_its_loop_does(start: Start) -> None:
    port = free_port()
    agent = start("--metrics-address", f"127.0.0.1:{port}")
    planned(agent)
    assert listening(agent) == [("127.0.0.1", port)]
    text = read(f"http://127.0.0.1:{port}/metrics")
    assert sample(text, "cpubind_npus") == 8
    assert sample(text, "cpubind_last_sweep_timestamp_seconds") > 1_700_000_000
    assert agent.end()[0] == 0


def test_by_tls_it_serves_by_tls_alone(start: Start, tmp_path: Path) -> None:
    ca, port = trustme.CA(), free_port()
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    both = str(tmp_path / "both.pem")
    agent = start("--metrics-address", f"127.0.0.1:{port}", "--metrics-tls-cert", both, "--metrics-tls-key", both)
    planned(agent)
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    assert sample(read(f"https://127.0.0.1:{port}/metrics", trusting), "cpubind_npus") == 8
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        read(f"http://127.0.0.1:{port}/metrics")
    assert agent.end()[0] == 0


def test_on_a_node_without_npus_the_loop_of_a_cluster_s_agent_is_seen_to_turn(tmp_path: Path) -> None:
    """CpubindSweepStale is about an agent that never ended a pass, too."""
    (tmp_path / "proc").symlink_to("/proc")
    port = free_port()
    where = ("--host-root", str(tmp_path), "--npu-smi", str(tmp_path / "none"), "--node-name", "test-node")
    addresses = ("--metrics-address", f"127.0.0.1:{port}", "--health-address", "off")
    process = subprocess.Popen(
        [sys.executable, "-m", "agent", "run", *where, *addresses, "--sweep-interval", "0.1"],
        env={**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: list[float] = []
    end = time.monotonic() + TIMEOUT
    try:
        while len(set(seen)) < 2 and time.monotonic() < end:
            time.sleep(0.3)
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                lines = read(f"http://127.0.0.1:{port}/metrics").splitlines()
                seen += [float(line.split()[1]) for line in lines if line.startswith(f"{SWEPT} ")]
    finally:
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT)
    assert "no NPU on this node" in log
    assert len(set(seen)) == 2


def test_a_port_that_somebody_else_has_is_told_in_the_plan_and_had_once_it_is_free(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = start("--metrics-address", f"127.0.0.1:{port}")
        agent.state(lambda document: condition(document, "Degraded")["reason"] == "PortInUse")
    agent.state(lambda document: condition(document, "Degraded")["reason"] != "PortInUse")
    assert listening(agent) == [("127.0.0.1", port)]
    assert agent.end()[0] == 0


def test_the_demo_serves_those_of_its_agent_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    port = free_port()

    def shown(device: str, *, serve: bool, console: object, make_agent: MakeAgent) -> int:
        node = VirtualNode(tmp_path / "root", device)
        agent = make_agent(
            AgentSetup(
                node=node.name,
                root=node.root,
                npu_smi=node.npu_smi.path,
                host=node.kernel,
                architecture="aarch64",
                pods=tuple,
                state_file=tmp_path / "plan.yaml",
                journal_file=tmp_path / "journal.json",
                clock=time.monotonic,
            )
        )
        until_listened_on(port)
        for _ in range(200):
            agent.step()
            seen.append(read(f"http://127.0.0.1:{port}/metrics"))
            if sample(seen[-1], "cpubind_npus"):
                return 0
            time.sleep(0.05)
        return 1

    monkeypatch.setattr("agent.cli.demo.run_demo", shown)
    assert demo.main(["--device", "a2", "--metrics-address", f"127.0.0.1:{port}"], standalone_mode=False) == 0
    assert sample(seen[-1], "cpubind_last_sweep_timestamp_seconds") > 1_700_000_000
    with pytest.raises(urllib.error.URLError):
        read(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"metrics_tls_cert": "/x"}, "--metrics-tls-key is missing: --metrics-tls-cert needs it"),
        ({"metrics_tls_key": "/x"}, "--metrics-tls-cert is missing: --metrics-tls-key needs it"),
        ({"metrics_tls_client_ca": "/x"}, "--metrics-tls-cert is missing: --metrics-tls-client-ca needs it"),
    ],
)
def test_half_of_what_tls_takes_is_refused_by_name(flags: dict[str, str], said: str) -> None:
    with pytest.raises(Refused) as refused:
        load_settings(flags)
    assert refused.value.message == said


def test_it_is_refused_by_the_name_of_the_variable_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUBIND_METRICS_TLS_CLIENT_CA", "/x")
    with pytest.raises(Refused) as refused:
        load_settings({})
    assert refused.value.message == "CPUBIND_METRICS_TLS_CERT is missing: CPUBIND_METRICS_TLS_CLIENT_CA needs it"
