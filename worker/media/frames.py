"""Frames between the supervisor and a media process: 4 bytes of big-endian length, then JSON.

Every frame is an object whose key "t" tells its kind:

worker -> media: ``limits`` (once, the fields of MediaLimits), ``job`` (job, kind, source, spool, temp, patient).
media -> worker: ``ready``; ``started``; ``decoding`` (fetched: bytes held in the temp file); any number of ``long`` (it
is longer than a piece, or another minute of it is done), ``whole`` (pieces: one, all of a recording that is no longer
than a piece may be, which the detector has not heard yet) and ``pieces`` (pieces: offset and samples of each, which can
be read from the spool file by now); then one of ``done`` (the fields of MediaDone, but only the pieces that were not
told before), ``error`` (code, message, retryable) and ``crash`` (where).
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

MAX_FRAME = 16 << 20
"""Bytes. Six hours of pieces are under 100 kB; more than this is a broken peer."""

Frame = dict[str, Any]


class BrokenFrame(Exception):
    """The peer sent something that is no frame."""


def pack(frame: Frame) -> bytes:
    """The bytes of a frame. Raises ValueError where it holds NaN or an infinity."""
    body = json.dumps(frame, allow_nan=False).encode()
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> Frame:
    """A frame from its body. Raises BrokenFrame."""
    try:
        frame = json.loads(body)
    except ValueError as exc:
        raise BrokenFrame("A frame is not JSON.") from exc
    if not isinstance(frame, dict) or not isinstance(frame.get("t"), str):
        raise BrokenFrame("A frame has no kind.")
    return frame


def checked_length(head: bytes) -> int:
    """The length that a frame's head states. Raises BrokenFrame where it is absurd."""
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME:
        raise BrokenFrame("A frame is too long.")
    return length


async def read(reader: asyncio.StreamReader) -> Frame:
    """The next frame. Raises EOFError when the peer is gone, BrokenFrame otherwise."""
    try:
        length = checked_length(await reader.readexactly(4))
        return unpack(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError) as exc:
        raise EOFError("The media process is gone.") from exc


def receive(sock: socket.socket) -> Frame:
    """The next frame of a blocking socket. Raises EOFError when the peer is gone."""
    return unpack(_exactly(sock, checked_length(_exactly(sock, 4))))


def _exactly(sock: socket.socket, count: int) -> bytes:
    body = bytearray()
    while len(body) < count:
        got = sock.recv(min(count - len(body), 1 << 16))
        if not got:
            raise EOFError("The worker is gone.")
        body += got
    return bytes(body)
