"""The engine process: a socket, a thread that reads it, a thread that samples memory, and the engine's own.

The main thread alone owns MLX. The reader ends the process the moment the worker's end of the socket closes,
even in the middle of a step: an orphan that keeps a model in memory is the crash this project exists to
prevent.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from engine import wire
from engine.config import EngineConfig
from engine.loop import Backend, EngineBroken, Loop
from engine.protocol import ChunkDone, ChunkFailed, Command, Event, Ready, StepDone, StepStarted

EXIT_ORPHAN = 3
"""The worker is gone."""
EXIT_BROKEN = 4
"""The device failed; what was running has been answered."""
EXIT_PROTOCOL = 5
"""The worker sent what this engine does not understand."""


def log(event: str, **facts: Any) -> None:
    """One JSON line on stderr. Facts never hold audio, texts or secrets."""
    sys.stderr.write(json.dumps({"event": event, "pid": os.getpid(), **facts}) + "\n")
    sys.stderr.flush()


HELD = (StepStarted, StepDone, ChunkDone, ChunkFailed)
"""Events that are sent together with the next one, which is never far: each send wakes the worker. What is held when a
step takes long goes with the sampler's next reading; until then the worker counts from what it has sent or heard last
(:meth:`engine.handle.Progress.given`)."""


class Channel:
    """The engine's end of the socket. Frames may be sent from any thread, whole and in turn."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._frames = bytearray()
        self._answers = False
        """Whether an answer is among the frames that are held."""

    def send(self, event: Event) -> None:
        """Send an event, after those that are held; waits while the worker reads nothing. See :data:`HELD`."""
        frame = wire.encode_message(event)
        with self._lock:
            self._frames += frame
            self._answers = self._answers or isinstance(event, ChunkDone | ChunkFailed)
            if not isinstance(event, HELD):
                self._flush()

    def flush(self) -> None:
        """Send the answers that are held: the next step may take long. A record of a step waits for that step."""
        with self._lock:
            if self._answers:
                self._flush()

    def _flush(self) -> None:
        frames, self._frames, self._answers = self._frames, bytearray(), False
        try:
            self._connection.sendall(frames)
        except OSError:
            os._exit(EXIT_ORPHAN)

    def read_into(self, take: Callable[[wire.Message], None]) -> None:
        """Hand every message to *take* until the worker is gone, then end the process."""
        decoder = wire.FrameDecoder()
        try:
            while data := self._connection.recv(1 << 16):
                for payload in decoder.feed(data):
                    take(wire.decode_message(payload))
        except OSError:
            os._exit(EXIT_ORPHAN)
        except wire.WireError as exc:
            log("protocol_error", message=str(exc))
            os._exit(EXIT_PROTOCOL)
        os._exit(EXIT_ORPHAN)


def run(handle: int, start: Callable[[EngineConfig], tuple[Backend, Ready]]) -> int:
    """Serve the worker over an inherited socket until it says to stop.

    :param handle: file descriptor of the socket.
    :param start: makes the device ready; called on this thread, which is to own it.
    :returns: the exit status.
    """
    # A ^C in the worker's terminal is the worker's to interpret.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=handle))
    inbox: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
    threading.Thread(target=channel.read_into, args=(inbox.put,), name="reader", daemon=True).start()
    config = inbox.get()
    if not isinstance(config, EngineConfig):
        log("protocol_error", message="the first frame is not a configuration")
        return EXIT_PROTOCOL
    backend, ready = start(config)
    channel.send(ready)
    loop = Loop(config, backend, channel.send, commands_wait=lambda: not inbox.empty())
    sampler = _Sampler(config, loop, backend, channel.send)
    threading.Thread(target=sampler.run, name="sampler", daemon=True).start()
    try:
        _serve(loop, inbox, channel.flush)
    except EngineBroken as exc:
        # What was running has been answered, and the answers still wait for a next event.
        channel.flush()
        log("engine_broken", message=str(exc))
        return EXIT_BROKEN
    finally:
        sampler.stop()
    return 0


def leave(status: int) -> NoReturn:
    """End the process. Without an interpreter's farewell, in which the reader would see its socket closed first."""
    sys.stderr.flush()
    os._exit(status)


def _serve(loop: Loop, inbox: queue.SimpleQueue[wire.Message], flush: Callable[[], None]) -> None:
    while not loop.stopping:
        # Everything that has arrived is obeyed before the next step, so that a cancellation never waits for two.
        while not inbox.empty() or not (loop.busy or loop.stopping):
            message = inbox.get()
            if isinstance(message, Command):
                loop.obey(message)
                flush()
        if loop.busy and not loop.stopping:
            loop.turn()
            flush()


MOVED_BYTES = 1 << 20
"""A reading that differs by more is told at once, also while nothing runs: levels fall by readings."""


class _Sampler:
    """Sends memory readings beside the engine's thread, often while a batch runs."""

    def __init__(
        self, config: EngineConfig, loop: Loop, backend: Backend, send: Callable[[Event], None]
    ) -> None:
        self._config = config
        self._loop = loop
        self._backend = backend
        self._send = send
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Read twenty times a second; say so while a batch runs, when memory moves, and at least every second."""
        said_at = told_at = -math.inf
        said = 0
        while not self._stopped.wait(self._config.sample_interval_s):
            now = time.monotonic()
            reading = self._backend.sample(after_step=False)
            moved = abs(reading.active + reading.cache + reading.footprint - said) > MOVED_BYTES
            if self._loop.busy or moved or now - said_at >= self._config.idle_sample_interval_s:
                said_at, said = now, reading.active + reading.cache + reading.footprint
                self._send(reading)
            if now - told_at >= self._config.surroundings_interval_s:
                told_at = now
                self._send(self._backend.surroundings())
