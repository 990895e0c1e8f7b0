"""Which addresses a connection that a job asked for may go to."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import outbound
from worker.outbound import Connection, PrivateAddress, allowed, is_public

PRIVATE = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "239.1.1.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1"),
    # An IPv4 address in the clothes of another: mapped, NAT64 of both prefixes, 6to4, Teredo.
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::"),
    "2001:0:7f00:1::",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_on_the_internet_is_not_public(address: str) -> None:
    """Loopback, private, link-local (where clouds keep credentials), shared, multicast, documentation, embedded."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_what_is_on_the_internet_is_public(address: str) -> None:
    """Ordinary addresses, and IPv4 ones behind a translator."""
    assert is_public(address)


@settings(max_examples=200, deadline=None)
@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_never_freer_than_itself(address: ipaddress.IPv4Address) -> None:
    """No IPv6 form of a private IPv4 address passes."""
    number = int(address)
    forms = [f"::ffff:{address}", str(ipaddress.IPv6Address((0x64FF9B << 96) | number))]
    forms.append(str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80))))
    if not is_public(str(address)):
        assert not any(is_public(form) for form in forms)


def test_private_addresses_of_a_name_with_both_are_left_out() -> None:
    """Of a name that resolves to both kinds, only the public ones are tried."""
    both = [("10.0.0.1", 80), ("1.1.1.1", 80)]
    assert allowed(both, allow_private=False) == [("1.1.1.1", 80)]
    assert allowed(both, allow_private=True) == both
    with pytest.raises(PrivateAddress):
        allowed(both[:1], allow_private=False)


def test_a_private_host_gets_no_packet() -> None:
    """The address is judged before the connection: whoever listens there hears nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        connection = Connection("localhost", port, tls=False, connect_timeout_s=5, allow_private=False)
        with pytest.raises(PrivateAddress):
            connection.connect()
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_name_that_resolves_anew_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is looked up once, and what was judged is what is connected to (DNS rebinding)."""
    answers = [[(0, 0, 0, "", ("1.1.1.1", 80))], [(0, 0, 0, "", ("127.0.0.1", 80))]]
    went: list[Any] = []

    def connect(address: Any, _timeout: float) -> socket.socket:
        went.append(address)
        return socket.socket()

    monkeypatch.setattr(outbound.socket, "getaddrinfo", lambda *_a, **_k: answers.pop(0))
    monkeypatch.setattr(outbound.socket, "create_connection", connect)
    connection = Connection("rebinding.example", 80, tls=False, connect_timeout_s=5, allow_private=False)
    connection.connect()
    connection.close()
    assert went == [("1.1.1.1", 80)]
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "its name is not known"),
        (ConnectionRefusedError(111, "Connection refused"), "it refused"),
        (ConnectionResetError(104, "Connection reset by peer"), "it was cut"),
        (TimeoutError(), "it was silent for too long"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "its certificate is not valid"),
        (ssl.SSLError(1, "hunter2"), "SSLError"),
    ],
)
def test_why_a_connection_failed_is_told_in_words(failure: Exception, words: str) -> None:
    """Whoever gave the URL reads what is wrong with it; nothing that the other side said is repeated."""
    assert outbound.why(failure) == words
