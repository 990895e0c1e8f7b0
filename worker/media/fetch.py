"""Downloading an input over HTTP: bounded in bytes, in silence and in where it may lead.

The standard library's http.client is enough, and the worker's own dependencies bring no HTTP client. The
wall-clock limit is the supervisor's, which kills the process.
"""

from __future__ import annotations

import http.client
import os
import ssl
from typing import BinaryIO
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from worker import outbound
from worker.media.types import MediaError, MediaLimits

MAX_REDIRECTS = 5
BLOCK = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429)
"""Refusals that ask to come back later (RFC 9110, 8470, 6585)."""


def fetch(url: str, into: BinaryIO, limits: MediaLimits) -> int:
    """Writes the body of `url` to an empty file and returns its length in bytes. Raises MediaError."""
    seen_tls = False
    for _ in range(MAX_REDIRECTS + 1):
        parts = _checked(url, limits, seen_tls)
        seen_tls = parts.scheme == "https"
        connection = _connect(parts, limits)
        try:
            response = _get(connection, parts)
            if response.status in _REDIRECTS:
                url = _target(url, response)
                continue
            _check_status(response.status, _shown(parts))
            return _copy(response, into, limits, _shown(parts))
        except (OSError, http.client.HTTPException) as exc:
            if isinstance(exc, OSError) and exc.filename is not None:
                raise
            raise _lost(parts, exc) from exc
        finally:
            connection.close()
    raise MediaError("fetch_failed", f"The input redirects more than {MAX_REDIRECTS} times.")


def _target(url: str, response: http.client.HTTPResponse) -> str:
    try:
        return urljoin(url, response.headers.get("Location", ""))
    except ValueError as exc:
        raise MediaError("url_not_allowed", "The input redirects to a malformed URL.") from exc


def _checked(url: str, limits: MediaLimits, seen_tls: bool) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as exc:
        raise MediaError("url_not_allowed", "The URL of the input is malformed.") from exc
    if parts.scheme not in limits.allowed_schemes or parts.scheme not in ("http", "https"):
        allowed = ", ".join(limits.allowed_schemes)
        raise MediaError("url_not_allowed", f"The URL of the input must begin with one of: {allowed}.")
    if seen_tls and parts.scheme != "https":
        raise MediaError("url_not_allowed", "The input redirects from https to http.")
    if not host or parts.username is not None or not url.isprintable() or " " in url:
        raise MediaError(
            "url_not_allowed", "The URL of the input must name a host, without user or password."
        )
    return parts


def _connect(parts: SplitResult, limits: MediaLimits) -> http.client.HTTPConnection:
    assert parts.hostname is not None
    connection = outbound.Connection(
        parts.hostname,
        parts.port,
        tls=parts.scheme == "https",
        connect_timeout_s=limits.connect_timeout_s,
        allow_private=limits.allow_private_hosts,
    )
    try:
        connection.connect()
        connection.sock.settimeout(limits.read_timeout_s)
    except outbound.PrivateAddress as exc:
        raise MediaError(
            "url_not_allowed",
            f"The host {parts.hostname} is not on the public internet; DECIBATCH_URL_PRIVATE_HOSTS allows such hosts.",
        ) from exc
    except (OSError, UnicodeError) as exc:
        connection.close()
        raise _lost(parts, exc) from exc
    return connection


def _get(connection: http.client.HTTPConnection, parts: SplitResult) -> http.client.HTTPResponse:
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        target += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "decibatch"}
    connection.request("GET", target, headers=headers)
    return connection.getresponse()


def _check_status(status: int, shown: str) -> None:
    if status == 200:
        return
    if status in (404, 410):
        raise MediaError("input_not_found", f"{shown} has no such file (status {status}).")
    passing = status >= 500 or status in _PASSING
    raise MediaError("fetch_failed", f"{shown} answered with status {status}.", retryable=passing)


def _copy(response: http.client.HTTPResponse, into: BinaryIO, limits: MediaLimits, shown: str) -> int:
    stated = response.length
    too_large = MediaError("too_large", f"The file at {shown} is larger than {limits.max_bytes} bytes.")
    if stated is not None and stated > limits.max_bytes:
        raise too_large
    total = 0
    while block := response.read1(BLOCK):
        total += len(block)
        if total > limits.max_bytes:
            raise too_large
        _write(into, block)
    if stated is not None and total < stated:
        raise MediaError("fetch_failed", f"{shown} sent {total} of {stated} bytes.", retryable=True)
    return total


def _write(into: BinaryIO, block: bytes) -> None:
    try:
        into.write(block)
    except OSError as exc:
        # The name tells a full disk apart from a lost connection.
        raise OSError(exc.errno, os.strerror(exc.errno or 0), into.name) from exc


def _lost(parts: SplitResult, exc: Exception) -> MediaError:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return MediaError("fetch_failed", f"The certificate of {parts.hostname} is not valid.")
    why = outbound.why(exc)
    return MediaError("fetch_failed", f"The connection to {parts.hostname} failed: {why}.", retryable=True)


def _shown(parts: SplitResult) -> str:
    """The host alone: a path or a query may hold a signature."""
    return parts.hostname or "the host"
