"""How busy processors are: CPU of the worker and its children (psutil), GPU on macOS (``ioreg``)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from typing import Protocol

import psutil

IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
IOREG_TIMEOUT_S = 2.0
_BUSY = re.compile(r'"Device Utilization %"\s*=\s*(\d+)')


def parse_ioreg(text: str) -> float | None:
    """Share of time in which the busiest GPU worked, 0..1, from the ``PerformanceStatistics`` that the driver keeps.

    None where no accelerator is listed: an empty answer means no match, not an idle GPU.
    """
    shares = [int(percent) / 100 for percent in _BUSY.findall(text)]
    return min(1.0, max(shares)) if shares else None


class GpuReader(Protocol):
    async def read(self) -> float | None:
        """Share of time in which the GPU worked, of late; None for unknown."""
        ...


class NoGpuReader:
    """Where nobody tells without root."""

    async def read(self) -> float | None:
        return None


class IoregReader:
    """Asks the driver through ``ioreg``; no root is needed."""

    def __init__(self, command: tuple[str, ...] = IOREG) -> None:
        self._command = command

    async def read(self) -> float | None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return None
        try:
            async with asyncio.timeout(IOREG_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            return None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return parse_ioreg(output.decode(errors="replace"))


def gpu_reader() -> GpuReader:
    """What this system offers."""
    return IoregReader() if sys.platform == "darwin" else NoGpuReader()


class CpuReader:
    """Cores kept busy since the last reading, by role: "worker", "engine" or "media"."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._before: dict[tuple[int, float], float] = {}
        self._at = time.monotonic()

    def read(self, engine_pid: int | None) -> dict[str, float]:
        """Processes that have come since the last reading count from their start."""
        now = time.monotonic()
        span = max(1e-3, now - self._at)
        busy = {"worker": 0.0, "engine": 0.0, "media": 0.0}
        seen: dict[tuple[int, float], float] = {}
        for process in [self._me, *self._me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                key = (process.pid, process.create_time())
                seen[key] = times.user + times.system
                role = _role(process.pid, self._me.pid, engine_pid)
                busy[role] += max(0.0, seen[key] - self._before.get(key, 0.0))
        first = not self._before
        self._before, self._at = seen, now
        # Before the first reading lies all that starting took: it says nothing about now.
        return {role: 0.0 if first else round(seconds / span, 3) for role, seconds in busy.items()}


def _role(pid: int, mine: int, engine: int | None) -> str:
    if pid == mine:
        return "worker"
    return "engine" if pid == engine else "media"
