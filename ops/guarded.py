"""A child process that ends when we do, even if we are killed: see :mod:`ops.guard`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

GUARD = Path(__file__).with_name("guard.py")
GUARD_MARGIN_S = 5.0


class Guarded:
    """A running program and its guard.

    :param command: argv.
    :param output: where its output and errors go.
    :param grace_s: seconds between SIGTERM and SIGKILL at the end.
    :raises OSError: the program could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes],
        grace_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._grace_s = grace_s
        # -I keeps this folder, whose modules have common names, off the guard's path.
        argv = [sys.executable, "-I", str(GUARD), str(grace_s), *command]
        # Of a session of its own, so that ^C in a terminal reaches us alone and we end it in order.
        self._guard = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=dict(env) if env is not None else None,
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        if not line:
            self._guard.wait()
            raise OSError(f"{command[0]} could not be started")
        self.pid = int(line)
        """Of the program itself, not of its guard."""

    def status(self) -> int | None:
        """Exit status (128 + n after signal n), or None while it runs."""
        return self._guard.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit status, or None where it still runs after ``timeout_s``."""
        try:
            return self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def family(self) -> list[psutil.Process]:
        """The guard, the program, and whatever these have started, as far as it runs now."""
        try:
            guard = psutil.Process(self._guard.pid)
            return [guard, *guard.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> int:
        """SIGTERM, a grace, SIGKILL; returns the exit status. Safe to call twice."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        try:
            return self._guard.wait(self._grace_s + GUARD_MARGIN_S)
        finally:
            self._guard.stdout.close()
