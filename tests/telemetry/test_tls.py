"""Metrics by TLS: for whom, and what happens when the files are none, or are replaced."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from agent.model.address import Address
from agent.model.reason import Reason
from agent.telemetry.listener import Listener
from agent.telemetry.metrics import Metrics, MetricsServer
from agent.telemetry.tls import TlsFiles, TlsPaths
from tests.telemetry.listening import LOOPBACK, ask, port_of, raw, wait_for


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, ca: trustme.CA, name: str = LOOPBACK) -> TlsPaths:
    """A Secret as it is mounted, with a new certificate."""
    issued = ca.issue_cert(name)
    paths = TlsPaths(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
    for path, content in (
        (paths.certificate, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
        (paths.key, issued.private_key_pem.bytes()),
        (folder / "ca.crt", ca.cert_pem.bytes()),
    ):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(path)
    return paths


@contextlib.contextmanager
def serving(paths: TlsPaths, *, retry: float = 0.05) -> Iterator[MetricsServer]:
    server = MetricsServer(Address(LOOPBACK, 0), Metrics(dict), tls=TlsFiles(paths), retry=retry)
    try:
        yield server
    finally:
        server.close()


def trusting(ca: trustme.CA, *, client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if client:
        ca.issue_cert("prometheus@example.com").configure_cert(context)
    return context


def get(port: int, context: ssl.SSLContext, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=5, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def without_clients(paths: TlsPaths) -> TlsPaths:
    return TlsPaths(paths.certificate, paths.key)


def serial(port: int, ca: trustme.CA) -> str:
    """Of the certificate that is shown."""
    with (
        socket.create_connection((LOOPBACK, port), timeout=5) as plain,
        trusting(ca).wrap_socket(plain, server_hostname=LOOPBACK) as secure,
    ):
        shown = secure.getpeercert()
    assert shown is not None
    return str(shown["serialNumber"])


def test_metrics_are_served_by_tls_and_not_in_the_clear(tmp_path: Path, ca: trustme.CA) -> None:
    with serving(without_clients(write(tmp_path, ca))) as server:
        status, body = get(port_of(server), trusting(ca))
        assert (status, "cpubind_npus 0.0\n" in body) == (200, True)
        assert get(port_of(server), trusting(ca), "/healthz")[0] == 404
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port_of(server), "/metrics")
        assert b"cpubind" not in raw(port_of(server), b"GET /metrics HTTP/1.0\r\n\r\n")
        assert server.problem() is None


def test_with_a_ca_for_clients_nobody_is_answered_without_a_certificate_of_it(tmp_path: Path, ca: trustme.CA) -> None:
    with serving(write(tmp_path, ca)) as server:
        assert get(port_of(server), trusting(ca, client=True))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(port_of(server), trusting(ca))
        stranger = trusting(ca)
        trustme.CA().issue_cert("stranger@example.com").configure_cert(stranger)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(port_of(server), stranger)
        assert get(port_of(server), trusting(ca, client=True))[0] == 200


def test_old_versions_of_tls_are_not_spoken(tmp_path: Path, ca: trustme.CA) -> None:
    context = TlsFiles(write(tmp_path, ca)).context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_certificate_that_is_renewed_is_used_for_the_next_connection(tmp_path: Path, ca: trustme.CA) -> None:
    paths = without_clients(write(tmp_path, ca))
    with serving(paths) as server:
        first = serial(port_of(server), ca)
        assert serial(port_of(server), ca) == first
        write(tmp_path, ca)
        assert serial(port_of(server), ca) != first


def test_while_a_renewed_one_is_half_written_the_last_one_is_used(tmp_path: Path, ca: trustme.CA) -> None:
    paths = without_clients(write(tmp_path, ca))
    with serving(paths) as server:
        first = serial(port_of(server), ca)
        paths.certificate.write_text("-----BEGIN CERT")
        assert serial(port_of(server), ca) == first
        paths.key.unlink()
        assert serial(port_of(server), ca) == first


def test_without_a_usable_certificate_nobody_is_served_the_plan_says_why_and_it_is_tried_again(
    tmp_path: Path, ca: trustme.CA
) -> None:
    paths = TlsPaths(tmp_path / "tls.crt", tmp_path / "tls.key")
    with serving(paths) as server:
        wait_for(lambda: server.problem() is not None)
        problem = server.problem()
        assert problem is not None
        said = f"metrics cannot be served with TLS: {tmp_path}/tls.crt: No such file or directory"
        assert (problem.reason, problem.message) == (Reason.TLS_UNUSABLE, said[:256])
        assert server.listener.port() is None
        write(tmp_path, ca)
        assert get(port_of(server), trusting(ca))[0] == 200
        assert server.problem() is None


@pytest.mark.parametrize("damage", ["key of another", "no PEM"])
def test_files_that_do_not_belong_together_are_a_problem_and_no_crash(
    tmp_path: Path, ca: trustme.CA, damage: str
) -> None:
    paths = without_clients(write(tmp_path, ca))
    paths.key.write_bytes(
        ca.issue_cert("other").private_key_pem.bytes() if damage == "key of another" else b"\xff no PEM"
    )
    with serving(paths) as server:
        wait_for(lambda: server.problem() is not None)
        problem = server.problem()
        assert problem is not None
        assert problem.reason is Reason.TLS_UNUSABLE


def test_a_peer_that_never_shakes_hands_holds_nobody_up(tmp_path: Path, ca: trustme.CA) -> None:
    tls = TlsFiles(without_clients(write(tmp_path, ca)))
    server = MetricsServer(Address(LOOPBACK, 0), Metrics(dict), tls=tls)
    silent: list[socket.socket] = []
    try:
        port = port_of(server)
        silent = [socket.create_connection((LOOPBACK, port), timeout=5) for _ in range(40)]
        silent[0].sendall(b"\x16\x03\x01\x02")  # a hello that goes no further
        assert get(port, trusting(ca))[0] == 200
    finally:
        for one in silent:
            one.close()
        server.close()


def test_a_connection_is_cut_at_its_deadline_in_the_midst_of_shaking_hands(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsFiles(without_clients(write(tmp_path, ca)))
    listener = Listener("test", Address(LOOPBACK, 0), lambda _: pytest.fail("asked"), deadline=0.5, tls=tls)
    try:
        with socket.create_connection((LOOPBACK, port_of(listener)), timeout=10) as connection:
            began = time.monotonic()
            connection.sendall(b"\x16\x03\x01")
            with contextlib.suppress(ConnectionError):  # it is reset, or ends
                while connection.recv(100):
                    pass
            assert time.monotonic() - began < 5
    finally:
        listener.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
