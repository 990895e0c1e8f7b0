"""Where a connection that a job asked for may lead.

The address is judged after the name has been resolved and before the first packet is sent, and the connection
goes to that very address: a name that resolves differently from one moment to the next (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
"""Prefixes whose last 32 bits are an IPv4 address behind a translator (RFC 6052, RFC 8215)."""


class PrivateAddress(Exception):
    """The host has no address on the public internet."""


def is_public(address: str) -> bool:
    """Whether an address, as ``getaddrinfo`` writes it, is one that anybody on the internet could reach.

    An IPv6 address that stands for an IPv4 one (mapped, 6to4, Teredo, NAT64) is judged by what it stands for.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return all(_is_global(one) for one in (parsed, *_embedded(parsed)))


def _is_global(address: Address) -> bool:
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None
    return mapped or (address.is_global and not address.is_multicast)


def _embedded(address: Address) -> list[Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
    found += address.teredo or ()
    if any(address in network for network in NAT64):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return [one for one in found if one is not None]


def allowed(infos: list[tuple[str, int]], *, allow_private: bool) -> list[tuple[str, int]]:
    """Of (address, port) pairs those that may be connected to. Raises PrivateAddress where none may."""
    kept = [info for info in infos if allow_private or is_public(info[0])]
    if infos and not kept:
        raise PrivateAddress
    return kept


def _connect(host: str, port: int, timeout_s: float, *, allow_private: bool) -> socket.socket:
    """The first address that answers. Raises PrivateAddress, or OSError as ``socket.create_connection`` does."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    pairs = [(str(info[4][0]), int(info[4][1])) for info in infos]
    for address, its_port in allowed(pairs, allow_private=allow_private):
        try:
            return socket.create_connection((address, its_port), timeout_s)
        except OSError as exc:
            failure = exc
    raise failure or OSError(f"{host} has no address")


def why(exc: Exception) -> str:
    """Why a connection failed, in words; nothing of its address."""
    match exc:
        case ssl.SSLCertVerificationError():
            return "its certificate is not valid"
        case TimeoutError():
            return "it was silent for too long"
        case socket.gaierror():
            return "its name is not known"
        case ConnectionRefusedError():
            return "it refused"
        case ConnectionError():
            return "it was cut"
    return type(exc).__name__


class Connection(http.client.HTTPConnection):
    """An HTTP(S) connection that goes to no private address unless that is allowed.

    ``connect`` raises PrivateAddress before anything has been sent.
    """

    def __init__(
        self, host: str, port: int | None, *, tls: bool, connect_timeout_s: float, allow_private: bool
    ) -> None:
        super().__init__(host, port or (443 if tls else 80), timeout=connect_timeout_s)
        # Without the default port in the Host header, as browsers do it.
        self.default_port = 443 if tls else 80
        self._tls = ssl.create_default_context() if tls else None
        self._allow_private = allow_private
        self._connect_timeout_s = connect_timeout_s

    def connect(self) -> None:
        self.sock = _connect(self.host, self.port, self._connect_timeout_s, allow_private=self._allow_private)
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
