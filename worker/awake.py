"""Holds off the sleep of a Mac while there is work, and not longer.

``caffeinate -i -w PID`` (macOS) prevents idle sleep until it or the process PID ends: so even a worker that is
killed leaves nothing awake.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("decibatch.awake")

CAFFEINATE = "/usr/bin/caffeinate"
LINGER_S = 30.0
"""Seconds without work after which the machine may sleep again."""


class Running(Protocol):
    """What is used of :class:`subprocess.Popen`."""

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Spawn = Callable[[tuple[str, ...]], Running]


def spawn_caffeinate(argv: tuple[str, ...]) -> Running:
    """Raises OSError."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def command(pid: int) -> tuple[str, ...]:
    return (CAFFEINATE, "-i", "-w", str(pid))


class Awake:
    """Call :meth:`update` about once a second.

    :param spawn: starts the command; None does nothing, where there is no caffeinate.
    """

    def __init__(self, spawn: Spawn | None, *, linger_s: float = LINGER_S) -> None:
        self._spawn = spawn
        self._linger_s = linger_s
        self._running: Running | None = None
        self._idle_since: float | None = None

    @property
    def held(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def update(self, working: bool, now: float) -> None:
        """:param now: monotonic seconds."""
        if working:
            self._idle_since = None
            self._hold()
            return
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since >= self._linger_s:
            self.release()

    def _hold(self) -> None:
        if self._spawn is None or self.held:
            return
        self._reap()
        try:
            self._running = self._spawn(command(os.getpid()))
        except OSError as exc:
            log.warning(
                "the machine may fall asleep while it works", extra={"error": exc.strerror or "not started"}
            )
            self._spawn = None

    def release(self) -> None:
        """Let the machine sleep. Safe at any time, and twice."""
        if self.held and self._running is not None:
            self._running.terminate()
        self._reap()

    def _reap(self) -> None:
        if self._running is not None:
            self._running.wait(5.0)
            self._running = None


def keeper_of(wanted: bool) -> Awake:
    """The one for this system."""
    return Awake(spawn_caffeinate if wanted and sys.platform == "darwin" else None)
