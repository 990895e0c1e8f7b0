"""A line between one client and the server that can be cut, can lose a reply, can go dead, and can refuse.

It hands bytes on over loopback. It knows of RESP only how a reply begins, and takes for granted that a
connection has one command under way at a time, as the pools of redis-py do.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16
KEPT = 1 << 16
"""Bytes of a command that are looked at."""
CALL_TIMEOUT_S = 10.0


class Switchboard:
    """The thread on whose loop all lines run. A context manager: at its end every line is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lines", daemon=True)
        self._lines: list[Line] = []

    def __enter__(self) -> Switchboard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._lines:
            self.call(line.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the loop and wait for the end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def line(self, server: int | Path) -> Handle:
        """A new line to a port of this machine, or to a unix socket."""
        line = Line(server)
        self.call(line.open())
        self._lines.append(line)
        return Handle(self, line)


@dataclass(slots=True)
class _Trap:
    """The next reply to a command that holds ``needle`` is thrown away."""

    needle: bytes
    sprung: threading.Event = field(default_factory=threading.Event)

    def catches(self, asked: bytes, reply: bytes) -> bool:
        # Neither an error nor an empty list: the server must have done something that the caller will not know of.
        return self.needle in asked and not reply.startswith((b"-", b"*0", b"*-1", b"_"))


class Handle:
    """A line as other threads use it."""

    def __init__(self, board: Switchboard, line: Line) -> None:
        self._board = board
        self._line = line

    @property
    def port(self) -> int:
        """Where the client connects."""
        return self._line.front_port

    def cut(self) -> None:
        """Close all connections; new ones are welcome."""
        self._now(self._line.cut)

    def lead_to(self, server: int | Path) -> None:
        """Another server from now on, as after a failover; what was connected to the old one is cut."""

        def act() -> None:
            self._line.backend = server
            self._line.cut()

        self._now(act)

    def lose_reply(self, needle: bytes) -> threading.Event:
        """Set once a reply to a command that holds ``needle`` has been thrown away and its connection closed."""
        trap = _Trap(needle)
        self._now(lambda: setattr(self._line, "trap", trap))
        return trap.sprung

    def disarm(self) -> None:
        """Lose no reply after all."""
        self._now(lambda: setattr(self._line, "trap", None))

    def go_dead(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._now(self._line.flowing.clear)

    def revive(self, *, close: bool = False) -> None:
        """What was held back goes on its way; with ``close`` it is lost, with its connections."""

        def act() -> None:
            if close:
                self._line.cut()
            self._line.flowing.set()

        self._now(act)

    def slow_down(self, seconds: float) -> None:
        """Every piece of a reply comes so much later; 0 ends it."""
        self._now(lambda: setattr(self._line, "lag_s", seconds))

    def refuse(self, error: str) -> None:
        """Answer every script call with this error instead of handing it on; "" ends it."""
        self._now(lambda: setattr(self._line, "refusal", error.encode()))

    @property
    def refused(self) -> int:
        """Commands answered with an error of ours."""
        return self._line.refused

    def _now(self, act: Callable[[], object]) -> None:
        async def on_loop() -> None:
            act()

        self._board.call(on_loop())


class Line:
    """All of it on the loop's thread."""

    def __init__(self, server: int | Path) -> None:
        self.backend = server
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.front_port = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.trap: _Trap | None = None
        self.lag_s = 0.0
        self.refusal = b""
        self.refused = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        self.front_port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        self.flowing.set()

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connected(self, front: asyncio.StreamReader, to_front: asyncio.StreamWriter) -> None:
        self._writers.add(to_front)
        try:
            await self.flowing.wait()
            back, to_back = await self._connect()
        except OSError:
            self._drop(to_front)
            return
        self._writers.add(to_back)
        asked = bytearray()
        pumps = (
            asyncio.ensure_future(self._commands(front, to_front, to_back, asked)),
            asyncio.ensure_future(self._replies(back, to_front, asked)),
        )
        # The end of one direction is the end of both: a half-closed connection is of no use to anybody.
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._drop(to_front)
        self._drop(to_back)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.backend, Path):
            return await asyncio.open_unix_connection(self.backend)
        return await asyncio.open_connection(LOOPBACK, self.backend)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()

    async def _commands(
        self,
        front: asyncio.StreamReader,
        to_front: asyncio.StreamWriter,
        to_back: asyncio.StreamWriter,
        asked: bytearray,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await front.read(PIECE):
                await self.flowing.wait()
                if self.refusal and b"EVALSHA" in piece:
                    self.refused += 1
                    to_front.write(b"-" + self.refusal + b"\r\n")
                    continue
                asked += piece[: KEPT - len(asked)]
                to_back.write(piece)
                await to_back.drain()

    async def _replies(
        self, back: asyncio.StreamReader, to_front: asyncio.StreamWriter, asked: bytearray
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await back.read(PIECE):
                await self.flowing.wait()
                if self.trap is not None and self.trap.catches(bytes(asked), piece):
                    self.trap.sprung.set()
                    self.trap = None
                    return
                asked.clear()
                if self.lag_s:
                    await asyncio.sleep(self.lag_s)
                to_front.write(piece)
                await to_front.drain()
