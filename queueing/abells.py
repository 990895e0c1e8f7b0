"""Many waiters on one connection, for asyncio; see :mod:`queueing.bells`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from queueing.bells import FIRST_BACKOFF_S, HEALTH_S, LONGEST_BACKOFF_S, PROGRESS
from queueing.errors import ClientClosed
from queueing.faults import FOREIGN


class AsyncWaiter:
    """Somebody who waits at one doorbell."""

    __slots__ = ("channel", "final", "rung", "said")

    def __init__(self, channel: str, *, final: bool) -> None:
        self.channel = channel
        self.final = final
        self.rung = asyncio.Event()
        self.said = b""
        """See :class:`queueing.bells.Waiter`."""

    async def wait(self, seconds: float) -> bool:
        """True where it rang since the last wait."""
        try:
            async with asyncio.timeout(seconds):
                await self.rung.wait()
        except TimeoutError:
            return False
        finally:
            self.rung.clear()
        return True


class _Silent(ConnectionError):
    """The connection answered no ping."""


class AsyncBells:
    """One task and one pub/sub connection, both made when the first waiter comes.

    ``connect`` makes an unconnected connection of redis.asyncio that speaks RESP2.
    """

    def __init__(self, connect: Callable[[], Any], *, health_s: float = HEALTH_S) -> None:
        self._make = connect
        self._health_s = health_s
        self._waiters: dict[str, set[AsyncWaiter]] = {}
        self._changed: set[str] = set()
        self._subscribed: set[str] = set()
        self._confirmed: set[str] = set()
        self._poked = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def listen(self, channel: str, *, final: bool, confirm_s: float) -> AsyncWaiter:
        """Start to listen, and wait until the server has confirmed it or the time is over."""
        if self._closing:
            raise ClientClosed("the client is closed")
        waiter = AsyncWaiter(channel, final=final)
        self._waiters.setdefault(channel, set()).add(waiter)
        if channel in self._confirmed:
            return waiter
        self._changed.add(channel)
        self._poked.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="decibatch-bells")
        try:
            await waiter.wait(confirm_s)
        except BaseException:
            self.drop(waiter)
            raise
        return waiter

    def drop(self, waiter: AsyncWaiter) -> None:
        others = self._waiters.get(waiter.channel)
        if others is None:
            return
        others.discard(waiter)
        if not others:
            del self._waiters[waiter.channel]
            self._changed.add(waiter.channel)
            self._poked.set()

    async def close(self) -> None:
        self._closing = True
        for others in self._waiters.values():
            for waiter in others:
                waiter.rung.set()
        self._poked.set()
        if self._task is not None:
            await _end([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF_S
        while not self._closing:
            connection = self._make()
            started = loop.time()
            try:
                await connection.connect()
                await self._converse(connection)
            except FOREIGN:
                # Waiters look by themselves meanwhile, and say what is wrong with the server.
                pass
            finally:
                self._subscribed.clear()
                self._confirmed.clear()
                await _quietly(connection)
            if loop.time() - started > self._health_s:
                backoff = FIRST_BACKOFF_S
            await asyncio.sleep(backoff)
            backoff = min(LONGEST_BACKOFF_S, backoff * 2)

    async def _converse(self, connection: Any) -> None:
        """Until the connection fails; one side writes and the other reads, and either ends both."""
        asked: Counter[str] = Counter()
        sides = [
            asyncio.ensure_future(self._write(connection, asked)),
            asyncio.ensure_future(self._read(connection, asked)),
        ]
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(sides)
        for side in sides:
            if not side.cancelled() and (error := side.exception()) is not None:
                raise error

    async def _write(self, connection: Any, asked: Counter[str]) -> None:
        self._changed.update(self._waiters)
        while not self._closing:
            self._poked.clear()
            changed, self._changed = self._changed, set()
            wanted = {channel for channel in changed if channel in self._waiters}
            new, old = wanted - self._subscribed, (changed - wanted) & self._subscribed
            self._subscribed = (self._subscribed | new) - old
            self._confirmed -= old
            if new:
                asked.update(new)
                await connection.send_command("SUBSCRIBE", *new, check_health=False)
            if old:
                await connection.send_command("UNSUBSCRIBE", *old, check_health=False)
            await self._poked.wait()

    async def _read(self, connection: Any, asked: Counter[str]) -> None:
        pinged = False
        while True:
            reply = await connection.read_response(timeout=self._health_s)
            if reply is not None:
                pinged = False
                self._understand(reply, asked)
            elif pinged:
                raise _Silent
            else:
                pinged = True
                await connection.send_command("PING", check_health=False)

    def _understand(self, reply: Any, asked: Counter[str]) -> None:
        if not isinstance(reply, list) or len(reply) < 3:
            return
        kind, channel = reply[0], reply[1].decode() if isinstance(reply[1], bytes) else reply[1]
        if kind == b"message":
            self._ring(channel, reply[2])
        elif kind == b"subscribe":
            asked[channel] -= 1
            # One that was dropped and wanted again is confirmed by its last answer only.
            if asked[channel] <= 0:
                del asked[channel]
                if channel in self._subscribed:
                    self._confirmed.add(channel)
                self._ring(channel, b"")

    def _ring(self, channel: str, said: bytes) -> None:
        progress = said == PROGRESS
        for waiter in self._waiters.get(channel, ()):
            if not (progress and waiter.final):
                waiter.said = b"" if progress else said
                waiter.rung.set()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    # Until Python 3.12 asyncio.wait_for, by which redis-py sends, can swallow a cancellation: ask again.
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.2)


async def _quietly(connection: Any) -> None:
    with contextlib.suppress(*FOREIGN):
        await connection.disconnect(nowait=True)
