"""The worker's side of one life of one engine process. Imports no MLX."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine import wire
from engine.config import EngineConfig
from engine.protocol import (
    BatchDone,
    Command,
    Dispatch,
    Event,
    Loaded,
    Requantized,
    Shutdown,
    StepDone,
    StepStarted,
)
from engine.windows import window_s

MAX_EVENTS = 4096
"""Events that may wait to be read; beyond them the engine waits."""

STDERR_BYTES = 8192
"""Of the process's stderr, kept for its exit."""

_READ_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class EngineExit:
    """How a process ended."""

    returncode: int
    """Negative: the signal that killed it."""
    signal: str | None
    """Its name, e.g. "SIGKILL"."""
    reason: str
    """ "stopped", "killed" (by this handle), "broken" (the device failed), "orphaned", "protocol", "crashed"."""
    stderr_tail: str
    """The last of what it wrote on stderr."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the engine's thread stands."""

    step: str | None = None
    """Kind of the step that runs, "batch" before and between those of a batch; None while there is nothing to do."""
    deadline: float | None = None
    """Monotonic time by which it must have ended."""
    last_event: float = 0.0
    """Monotonic time of the last event."""
    batch_s: float = 0.0
    """Seconds that an engine with a batch may take until it says that a step has begun; 0 while it has none."""

    def after(self, event: Event, now: float) -> Progress:
        """Progress once an event has come."""
        match event:
            case StepStarted():
                return replace(self, step=event.kind, deadline=now + event.deadline_s, last_event=now)
            case BatchDone():
                return Progress(last_event=now)
            case StepDone() if self.batch_s:
                return replace(self, step="batch", deadline=now + self.batch_s, last_event=now)
            case StepDone():
                return Progress(last_event=now)
            case _:
                return replace(self, last_event=now)

    def given(self, batch: Dispatch, config: EngineConfig, now: float, bits: Iterable[int] = ()) -> Progress:
        """Progress once a batch has been sent. The word that a step begins may come late, or never where the process
        hangs with Python's lock held; so an engine that has a batch may be silent for as long as its longest step may
        take, and no longer.

        :param bits: of the models that are loaded.
        """
        batch_s = config.deadline_s(sum(window_s(chunk.duration_s) for chunk in batch.chunks), bits)
        if self.deadline is not None:
            return replace(self, batch_s=batch_s)
        return Progress("batch", now + batch_s, self.last_event, batch_s)

    def stuck(self, now: float) -> bool:
        """Whether a step has outrun its deadline. An idle engine never is."""
        return self.deadline is not None and now > self.deadline


class EngineGone(ConnectionError):
    """The process has ended: nothing can be sent to it."""


_REASONS = {0: "stopped", 3: "orphaned", 4: "broken", 5: "protocol"}


class EngineProcess:
    """One engine process, from :meth:`spawn` to its exit. Made anew after a crash, never restarted."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        config: EngineConfig,
        clock: Callable[[], float],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._config = config
        self._clock = clock
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._dropping = False
        self._stderr = bytearray()
        self._killed = False
        self.progress = Progress(last_event=clock())
        self._bits: dict[str, int] = {}
        """Of each model, now."""
        self.exit: EngineExit | None = None
        self._ended = asyncio.Event()
        self._main = asyncio.create_task(self._run(), name=f"engine-{process.pid}")

    @classmethod
    async def spawn(
        cls,
        config: EngineConfig,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> EngineProcess:
        """Start a process. It answers with :class:`~engine.protocol.Ready` once MLX is imported.

        :param argv: what to run, without ``--fd``; None is this interpreter's ``-m engine``.
        :param env: its whole environment; None is this process's own.
        :raises OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(argv or (sys.executable, "-m", "engine")),
                    "--fd",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    # A ^C in the terminal is the worker's to interpret.
                    start_new_session=True,
                    env=_environment(env),
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        engine = cls(process, reader, writer, config, clock)
        writer.write(wire.encode_message(config))
        return engine

    @property
    def pid(self) -> int:
        return self._process.pid

    def post(self, command: Command) -> None:
        """Send a command without waiting: what the engine does not read at once is kept here until it does.

        :raises EngineGone: the process has ended.
        """
        if self._ended.is_set() or self._writer.is_closing():
            raise EngineGone("the engine process has ended")
        self._writer.write(wire.encode_message(command))
        if isinstance(command, Dispatch):
            self.progress = self.progress.given(command, self._config, self._clock(), self._bits.values())

    async def send(self, command: Command) -> None:
        """Send a command; waits while the engine reads slowly.

        :raises EngineGone: the process has ended.
        """
        self.post(command)
        try:
            await self._writer.drain()
        except ConnectionError as exc:
            raise EngineGone("the engine process has ended") from exc

    async def events(self) -> AsyncIterator[Event]:
        """Events in order, up to the last one before the process ended. For one reader."""
        while True:
            while self._events:
                event = self._events.popleft()
                self._changed.set()
                yield event
            if self._ended.is_set():
                return
            await self._change()

    def stuck(self, now: float) -> bool:
        """Whether its step has outrun its deadline at monotonic time *now*."""
        return self.progress.stuck(now)

    def kill(self) -> None:
        """End the process at once. Safe at any time, and twice."""
        if self._process.returncode is None:
            self._killed = self._dropping = True
            self._changed.set()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def wait(self) -> EngineExit:
        """Wait until the process has ended and been reaped."""
        await self._ended.wait()
        assert self.exit is not None
        return self.exit

    async def stop(self, timeout_s: float) -> EngineExit:
        """Ask it to stop, and kill it if it has not within *timeout_s* seconds. Safe twice.

        Of the events that nobody reads meanwhile, those beyond :data:`MAX_EVENTS` are dropped.
        """
        self._dropping = True
        self._changed.set()
        try:
            with contextlib.suppress(TimeoutError, EngineGone):
                async with asyncio.timeout(timeout_s):
                    await self.send(Shutdown())
                    await self._ended.wait()
        finally:
            self.kill()
            await self._ended.wait()
        return await self.wait()

    # --- inside -------------------------------------------------------------------------------

    async def _change(self) -> None:
        """Wait until something has been put in or taken out of the events, or the process has ended."""
        self._changed.clear()
        await self._changed.wait()

    async def _run(self) -> None:
        """Read events and stderr, then reap; whatever happens, nothing is left behind."""
        stderr = asyncio.create_task(self._read_stderr())
        try:
            await self._read_events()
        except wire.WireError:
            self.kill()
        finally:
            # Closing our end ends the process within a second, should it still run.
            self._writer.close()
            await self._reap(stderr)

    async def _reap(self, stderr: asyncio.Task[None]) -> None:
        try:
            async with asyncio.timeout(5):
                returncode = await self._process.wait()
        except TimeoutError:
            self.kill()
            returncode = await self._process.wait()
        finally:
            await stderr
        name = signal.Signals(-returncode).name if returncode < 0 else None
        reason = "killed" if self._killed else _REASONS.get(returncode, "crashed")
        self.exit = EngineExit(returncode, name, reason, self._stderr.decode(errors="replace"))
        self._ended.set()
        self._changed.set()

    async def _read_events(self) -> None:
        decoder = wire.FrameDecoder()
        try:
            while data := await self._reader.read(_READ_SIZE):
                for payload in decoder.feed(data):
                    event = wire.decode_message(payload)
                    if not isinstance(event, Event):
                        raise wire.WireError("the engine sent a command")
                    self.progress = self.progress.after(event, self._clock())
                    if isinstance(event, Loaded | Requantized):
                        self._bits[event.model] = event.bits
                    await self._put(event)
        except ConnectionError:
            return

    async def _put(self, event: Event) -> None:
        while len(self._events) >= MAX_EVENTS:
            if self._dropping:
                return
            await self._change()
        self._events.append(event)
        self._changed.set()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_READ_SIZE):
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """The child's environment, by which it finds this checkout or installation."""
    child = dict(os.environ if env is None else env)
    paths = [str(Path(__file__).resolve().parents[1]), *filter(None, [child.get("PYTHONPATH")])]
    child["PYTHONPATH"] = os.pathsep.join(paths)
    return child
