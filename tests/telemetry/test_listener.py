"""The HTTP listener: nobody can hold it up, and a port in use is waited for."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.model.address import Address
from agent.model.reason import Reason
from agent.telemetry import listener as module
from agent.telemetry.listener import NOT_FOUND, Listener, Request, Response, text
from tests.telemetry.listening import LOOPBACK, ask, port_of, raw, wait_for


def _answer(request: Request) -> Response:
    if request.path == "/broken":
        raise ValueError("broken")
    if request.path == "/large":
        return Response(HTTPStatus.OK, b"x" * (32 << 20))
    return text(HTTPStatus.OK, "fine") if request.path == "/fine" else NOT_FOUND


@contextlib.contextmanager
def _listening(address: Address, *, retry: float = 0.05, deadline: float = 5.0) -> Iterator[Listener]:
    one = Listener("test", address, _answer, retry=retry, deadline=deadline)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with _listening(Address(LOOPBACK, 0)) as one:
        yield port_of(one)


def test_an_answer_has_its_status_its_text_and_its_length(port: int) -> None:
    status, body, headers = ask(port, "/fine")
    assert (status, body) == (200, "fine\n")
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["content-length"] == "5"
    assert "python" not in headers["server"].lower()


def test_head_is_answered_without_a_body(port: int) -> None:
    status, body, headers = ask(port, "/fine", "HEAD")
    assert (status, body, headers["content-length"]) == (200, "", "5")


def test_a_query_does_not_change_what_is_asked_for(port: int) -> None:
    assert ask(port, "/fine?verbose=1")[0] == 200


@pytest.mark.parametrize("path", ["/", "/fine/", "/Fine", "/%66ine", "/fine%00"])
def test_any_other_path_is_not_found(port: int, path: str) -> None:
    assert ask(port, path)[:2] == (404, "not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "get"])
def test_any_other_method_is_refused_and_the_allowed_ones_named(port: int, method: str) -> None:
    status, body, headers = ask(port, "/fine", method)
    assert (status, body, headers["allow"]) == (405, "method not allowed\n", "GET, HEAD")


def test_a_fault_of_our_own_is_a_500_without_particulars(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(port, "/broken")[:2] == (500, "internal error\n")
    assert "ValueError: broken" in caplog.text


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
        (b"GET <script> /fine HTTP/1.0\r\n\r\n", 400),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /fine HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /fine HTTP/9.9\r\n\r\n", 505),
    ],
)
def test_nonsense_is_refused_in_one_line_that_repeats_nothing_of_it(
    port: int, request_bytes: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        head, _, body = raw(port, request_bytes).partition(b"\r\n\r\n")
    except ConnectionResetError:
        # The server closed with bytes unread, and its answer may be lost to that. It has to live on all the same.
        head, body = f"HTTP/1.0 {status} ".encode(), b"\n"
    assert head.startswith(f"HTTP/1.0 {status} ".encode())
    assert body.count(b"\n") == 1
    assert b"script" not in body
    assert ask(port, "/fine")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_peer_that_hangs_up_before_its_answer_is_one_quiet_line(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="agent"):
        with socket.create_connection((LOOPBACK, port), timeout=10) as connection:
            connection.sendall(b"GET /large HTTP/1.0\r\n\r\n")
            connection.recv(100)
        wait_for(lambda: "ended early" in caplog.text)
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("DEBUG", None)]
    assert "\n" not in caplog.records[0].getMessage()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_whatever_is_sent_the_next_one_is_served(port: int, sent: bytes) -> None:
    with socket.create_connection((LOOPBACK, port), timeout=10) as connection:
        connection.sendall(sent)
    assert ask(port, "/fine")[0] == 200


def test_clients_that_say_nothing_hold_up_nobody_and_are_cut() -> None:
    with _listening(Address(LOOPBACK, 0), deadline=1.0) as one, contextlib.ExitStack() as stack:
        port = port_of(one)
        silent = [stack.enter_context(socket.create_connection((LOOPBACK, port), timeout=10)) for _ in range(20)]
        assert ask(port, "/fine")[0] == 200
        assert [connection.recv(1) for connection in silent] == [b""] * 20


def test_a_client_that_sends_a_byte_now_and_then_is_cut_at_the_deadline() -> None:
    with _listening(Address(LOOPBACK, 0), deadline=1.0) as one:
        connection = socket.create_connection((LOOPBACK, port_of(one)), timeout=10)
        started = time.monotonic()
        with connection, contextlib.suppress(ConnectionError):
            while time.monotonic() < started + 10:
                connection.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - started < 5


def test_a_client_that_reads_nothing_is_cut_at_the_deadline() -> None:
    with _listening(Address(LOOPBACK, 0), deadline=1.0) as one:
        port = port_of(one)
        with socket.create_connection((LOOPBACK, port), timeout=10) as connection:
            connection.sendall(b"GET /large HTTP/1.0\r\n\r\n")
            wait_for(lambda: _connection_threads() > 0)
            wait_for(lambda: _connection_threads() == 0)
        assert ask(port, "/fine")[0] == 200


def test_a_crowd_of_silent_clients_takes_a_bounded_number_of_threads_and_gives_way() -> None:
    with _listening(Address(LOOPBACK, 0), deadline=60.0) as one, contextlib.ExitStack() as stack:
        port = port_of(one)
        for _ in range(5 * module.MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection((LOOPBACK, port), timeout=10))
            assert _connection_threads() <= 2 * module.MAX_CONNECTIONS
        wait_for(lambda: _connection_threads() <= module.MAX_CONNECTIONS)
        assert ask(port, "/fine")[0] == 200


def test_out_of_file_descriptors_it_waits_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with _listening(Address(LOOPBACK, 0)) as one:
        port = port_of(one)
        tries: list[float] = []
        accept = socket.socket.accept

        def failing(listening: socket.socket) -> tuple[socket.socket, object]:
            tries.append(time.monotonic())
            if len(tries) < 4:
                raise OSError(24, "Too many open files")
            return accept(listening)

        monkeypatch.setattr(socket.socket, "accept", failing)
        assert ask(port, "/fine")[0] == 200
        assert tries[3] - tries[0] >= 0.25, "it spun"


def test_a_port_in_use_is_a_problem_until_it_is_free() -> None:
    with contextlib.closing(socket.create_server((LOOPBACK, 0))) as other:
        taken = other.getsockname()[1]
        with _listening(Address(LOOPBACK, taken)) as one:
            wait_for(lambda: one.problem() is not None)
            problem = one.problem()
            assert problem is not None
            assert problem.reason is Reason.PORT_IN_USE
            assert problem.message == f"test cannot listen on 127.0.0.1:{taken}: Address already in use"
            other.close()
            wait_for(lambda: one.problem() is None)
            assert ask(port_of(one), "/fine")[0] == 200


def test_an_address_that_is_not_of_this_machine_is_a_problem() -> None:
    with _listening(Address("192.0.2.1", 0)) as one:
        wait_for(lambda: one.problem() is not None)
        assert str(one.problem()).startswith("PortInUse: test cannot listen on 192.0.2.1:0: ")


def test_a_host_name_that_is_not_known_is_a_problem_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def not_known(*what: object, **how: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", not_known)
    with _listening(Address("localhost", 0)) as one:
        wait_for(lambda: one.problem() is not None)
        assert str(one.problem()) == "PortInUse: test cannot listen on localhost:0: Name or service not known"
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        port_of(one)
        assert one.problem() is None


def test_without_a_host_it_listens_on_all_interfaces_of_both_families() -> None:
    with _listening(Address("", 0)) as one:
        port = port_of(one)
        assert ask(port, "/fine")[0] == 200
        if _has_ipv6():
            assert ask(port, "/fine", host="::1")[0] == 200


def test_without_ipv6_it_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def no_ipv6(address: tuple[str, int], **how: int) -> socket.socket:
        if how.get("family") == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return create(address)

    monkeypatch.setattr(socket, "create_server", no_ipv6)
    with _listening(Address("", 0)) as one:
        assert ask(port_of(one), "/fine")[0] == 200


def test_with_a_host_it_listens_there_alone() -> None:
    with _listening(Address(LOOPBACK, 0)) as one:
        port = port_of(one)
        with pytest.raises(ConnectionRefusedError):
            ask(port, "/fine", host="127.0.0.2")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 in this Python")
def test_an_ipv6_address_is_listened_on() -> None:
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    with _listening(Address("::1", 0)) as one:
        assert ask(port_of(one), "/fine", host="::1")[0] == 200


def test_a_closed_listener_lets_go_of_its_port_and_of_its_connections() -> None:
    with _listening(Address(LOOPBACK, 0)) as one:
        port = port_of(one)
        with socket.create_connection((LOOPBACK, port), timeout=10) as connection:
            wait_for(lambda: _connection_threads() > 0)
            one.close()
            assert connection.recv(1) == b""
        with contextlib.closing(socket.create_server((LOOPBACK, port))):
            pass
        one.close()


def test_closing_while_the_port_is_in_use_ends_the_waiting() -> None:
    with contextlib.closing(socket.create_server((LOOPBACK, 0))) as other:
        one = Listener("waits", Address(LOOPBACK, other.getsockname()[1]), _answer, retry=3600)
        wait_for(lambda: one.problem() is not None)
        one.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "cpubind-waits"]


def _connection_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
