"""Many waiters on one connection, for threads.

A doorbell says that there is something to see, and at the end of a job how it ended, where that is short. Whoever is
rung for anything else reads the truth by an ordinary command, and looks now and then without having been rung; so a
lost message costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from queueing.errors import ClientClosed
from queueing.faults import FOREIGN

PROGRESS = b"event"
"""What the bell says when a job goes on; at its end it says its state, a space and the outcome."""
HEALTH_S = 15.0
"""A connection silent for this long is asked whether it lives; after one more such silence it is dropped."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 2.0
JOIN_S = 6.0


class Waiter:
    """Somebody who waits at one doorbell."""

    __slots__ = ("channel", "final", "rung", "said")

    def __init__(self, channel: str, *, final: bool) -> None:
        self.channel = channel
        self.final = final
        self.rung = threading.Event()
        self.said = b""
        """How the job ended, as the bell has it: its state, and the outcome where that is small."""

    def wait(self, seconds: float) -> bool:
        """True where it rang since the last wait."""
        rang = self.rung.wait(seconds)
        self.rung.clear()
        return rang


class Bells:
    """One thread and one pub/sub connection, both made when the first waiter comes.

    ``connect`` makes an unconnected redis-py connection that speaks RESP2. After a fork this object is of
    no use to the child, which makes its own.
    """

    def __init__(self, connect: Callable[[], Any], *, health_s: float = HEALTH_S) -> None:
        self.pid = os.getpid()
        self._make = connect
        self._health_s = health_s
        self._lock = threading.Lock()
        self._waiters: dict[str, set[Waiter]] = {}
        self._changed: set[str] = set()
        self._subscribed: set[str] = set()
        self._confirmed: set[str] = set()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._hear, self._poke = socket.socketpair()
        self._hear.setblocking(False)
        self._poke.setblocking(False)

    # --- for waiters, from any thread ---

    def listen(self, channel: str, *, final: bool, confirm_s: float) -> Waiter:
        """Start to listen, and wait until the server has confirmed it or the time is over."""
        waiter = Waiter(channel, final=final)
        with self._lock:
            if self._closing:
                raise ClientClosed("the client is closed")
            self._waiters.setdefault(channel, set()).add(waiter)
            if channel in self._confirmed:
                return waiter
            self._changed.add(channel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="decibatch-bells", daemon=True)
                self._thread.start()
        self._wake()
        waiter.wait(confirm_s)
        return waiter

    def drop(self, waiter: Waiter) -> None:
        with self._lock:
            others = self._waiters.get(waiter.channel)
            if others is None:
                return
            others.discard(waiter)
            if not others:
                del self._waiters[waiter.channel]
                self._changed.add(waiter.channel)
        self._wake()

    def stop(self) -> None:
        """Let go of all waiters and of the connection, without waiting for it."""
        with self._lock:
            self._closing = True
            everyone = [waiter for others in self._waiters.values() for waiter in others]
        for waiter in everyone:
            waiter.rung.set()
        self._wake()

    def close(self) -> None:
        self.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)
        if thread is None or not thread.is_alive():
            self._hear.close()
            self._poke.close()

    def _wake(self) -> None:
        try:
            self._poke.send(b".")
        except BlockingIOError:
            pass  # it is full of pokes already
        except OSError:
            if not self._closing:
                raise

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._keep_serving()
        finally:
            # Whatever ended it: the next waiter starts another one.
            with self._lock:
                self._thread = None

    def _keep_serving(self) -> None:
        backoff = FIRST_BACKOFF_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._hear, selectors.EVENT_READ)
            while not self._closing:
                connection = self._make()
                started = time.monotonic()
                try:
                    self._serve(connection, selector)
                except FOREIGN:
                    # Waiters look by themselves meanwhile, and say what is wrong with the server.
                    pass
                finally:
                    self._forget()
                    _quietly(connection.disconnect)
                if time.monotonic() - started > self._health_s:
                    backoff = FIRST_BACKOFF_S
                self._sleep(selector, backoff)
                backoff = min(LONGEST_BACKOFF_S, backoff * 2)

    def _serve(self, connection: Any, selector: selectors.BaseSelector) -> None:
        connection.connect()
        sock = connection._sock  # no public way to wait for a connection and for something else
        selector.register(sock, selectors.EVENT_READ)
        try:
            self._converse(connection, selector)
        finally:
            selector.unregister(sock)

    def _converse(self, connection: Any, selector: selectors.BaseSelector) -> None:
        with self._lock:
            self._changed.update(self._waiters)
        asked: Counter[str] = Counter()
        heard = time.monotonic()
        pinged = False
        while not self._closing:
            self._subscribe(connection, asked)
            while connection.can_read(timeout=0):
                self._understand(connection.read_response(), asked)
                heard, pinged = time.monotonic(), False
            silence = time.monotonic() - heard
            if silence > self._health_s * (2 if pinged else 1):
                if pinged:
                    return
                connection.send_command("PING", check_health=False)
                pinged = True
            left = self._health_s * (2 if pinged else 1) - silence
            for key, _ in selector.select(max(0.01, left)):
                if key.fileobj is self._hear:
                    self._swallow()

    def _subscribe(self, connection: Any, asked: Counter[str]) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
            wanted = {channel for channel in changed if channel in self._waiters}
            new, old = wanted - self._subscribed, (changed - wanted) & self._subscribed
            self._subscribed = (self._subscribed | new) - old
            self._confirmed -= old
        if new:
            connection.send_command("SUBSCRIBE", *new, check_health=False)
            asked.update(new)
        if old:
            connection.send_command("UNSUBSCRIBE", *old, check_health=False)

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
                with self._lock:
                    if channel in self._subscribed:
                        self._confirmed.add(channel)
                self._ring(channel, b"")

    def _ring(self, channel: str, said: bytes) -> None:
        progress = said == PROGRESS
        with self._lock:
            for waiter in self._waiters.get(channel, ()):
                if not (progress and waiter.final):
                    waiter.said = b"" if progress else said
                    waiter.rung.set()

    def _forget(self) -> None:
        with self._lock:
            self._subscribed.clear()
            self._confirmed.clear()

    def _sleep(self, selector: selectors.BaseSelector, seconds: float) -> None:
        """Back off; a poke does not cut it short, or every new waiter would hammer a dead server."""
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            if selector.select(left):
                self._swallow()

    def _swallow(self) -> None:
        try:
            while self._hear.recv(4096):
                pass
        except BlockingIOError:
            pass


def _quietly(act: Callable[[], object]) -> None:
    with contextlib.suppress(*FOREIGN):
        act()
