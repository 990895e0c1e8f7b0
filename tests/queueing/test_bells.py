"""The doorbells, where a real server cannot be made to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queueing.abells import AsyncBells
from queueing.bells import Bells
from queueing.connect import connect_bell, connect_bell_async


class Mute:
    """A server that confirms subscriptions and then never says anything, not even to a ping."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self.accepted = threading.Semaphore(0)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.release()
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock:
            while True:
                try:
                    asked = sock.recv(65536)
                except OSError:
                    return
                if not asked:
                    return
                if b"SUBSCRIBE" in asked:
                    sock.sendall(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nbell\r\n:1\r\n")
                elif b"PING" not in asked:
                    sock.sendall(b"+OK\r\n" * asked.count(b"CLIENT"))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def mute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mute]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="dbm-") as folder:
        server = Mute(Path(folder) / "s")
        yield server
        server.close()


def test_a_half_open_connection(mute: Mute) -> None:
    """A connection that does not answer pings is replaced, and its waiters are rung to look again."""
    bells = Bells(connect_bell(mute.url), health_s=0.1)
    waiter = bells.listen("bell", final=True, confirm_s=10)
    assert mute.accepted.acquire(timeout=10)
    assert mute.accepted.acquire(timeout=10)
    assert waiter.wait(10)
    bells.close()


def test_a_half_open_connection_async(mute: Mute) -> None:
    """The same for asyncio."""

    async def scenario() -> None:
        bells = AsyncBells(connect_bell_async(mute.url), health_s=0.1)
        waiter = await bells.listen("bell", final=True, confirm_s=10)
        assert await asyncio.to_thread(mute.accepted.acquire, timeout=10)
        assert await asyncio.to_thread(mute.accepted.acquire, timeout=10)
        assert await waiter.wait(10)
        await bells.close()

    asyncio.run(scenario())


class Swallowing:
    """A connection whose sending takes a cancellation for its own end, as asyncio.wait_for did before 3.12."""

    async def connect(self) -> None:
        self.silence = asyncio.Event()

    async def disconnect(self, *, nowait: bool) -> None:
        self.silence.set()

    async def send_command(self, *words: str, check_health: bool) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def read_response(self, *, timeout: float) -> Any:  # noqa: ASYNC109
        await self.silence.wait()


def test_closing_over_a_swallowed_cancellation() -> None:
    """Closing ends although a send swallows the cancellation that was meant to end it."""

    async def scenario() -> None:
        bells = AsyncBells(Swallowing)
        await bells.listen("bell", final=True, confirm_s=0.01)
        async with asyncio.timeout(10):
            await bells.close()

    asyncio.run(scenario())
