"""Keeps an engine process alive: starts it, loads its models, kills it when it hangs, starts it again.

The keeper knows nothing of jobs. It tells a listener what the engine said, and that a life of it
has ended; what to do about the work that was running is the listener's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from typing import Protocol

from engine.handle import EngineExit, EngineGone, EngineProcess
from engine.protocol import Command, Event, Load, Loaded, LoadFailed, Ready, Shutdown
from worker.config import EngineSettings

log = logging.getLogger("decibatch.engine")

WATCH_S = 0.25


class Listener(Protocol):
    def engine_event(self, event: Event) -> None: ...
    def engine_ready(self) -> None: ...
    def engine_gone(self, exit_: EngineExit) -> None: ...


def describe_exit(exit_: EngineExit) -> str:
    """How an engine ended, in a few words; nothing of what it wrote."""
    how = exit_.signal or f"status {exit_.returncode}"
    return f"{exit_.reason} ({how})"


class EngineKeeper:
    """One engine process at a time, for as long as :meth:`run` runs."""

    def __init__(self, settings: EngineSettings, listener: Listener) -> None:
        self._settings = settings
        self._listener = listener
        self._process: EngineProcess | None = None
        self.state = "starting"
        """ "starting", "loading", "ready", "restarting" or "stopped"."""
        self.device: Ready | None = None
        self.loaded: dict[str, Loaded] = {}
        self.failed_models: dict[str, LoadFailed] = {}
        self.failures = 0
        """Exits in a row."""
        self.restarts = 0
        self.last_exit = ""
        self.bits: dict[str, int] = {}
        """At which models are loaded; those that are not here come as they are."""
        self._planned = False
        self._stop = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def progressing(self, now: float) -> bool:
        """Whether the engine does what it should: an idle, loading or restarting one does (invariant I2)."""
        return self._process is None or not self._process.stuck(now)

    def progress_age(self, now: float) -> float:
        """Seconds since the engine last said anything."""
        return 0.0 if self._process is None else max(0.0, now - self._process.progress.last_event)

    def send(self, command: Command) -> bool:
        """Send a command to the living engine; False where there is none."""
        if self._process is None:
            return False
        # Sending waits for a slow reader; who decides must not. What is sent is bounded by what is dispatched.
        # Where it is gone already, its exit is on the way to the listener, who knows what was running.
        with contextlib.suppress(EngineGone):
            self._process.post(command)
        return True

    def restart(self) -> None:
        """End the engine and start another one, without counting it a failure. Nothing may be running."""
        if self.send(Shutdown()):
            self._planned = True
            self.state = "restarting"

    async def run(self) -> None:
        """Run lives of the engine, one after the other, until :meth:`stop`."""
        while not self._stop.is_set():
            began = time.monotonic()
            await self._one_life()
            if self._stop.is_set():
                break
            if self._planned:
                self._planned = False
                self.restarts += 1
                continue
            if time.monotonic() - began >= self._settings.settled_after_s:
                self.failures = 0
            self.failures += 1
            self.restarts += 1
            self.state = "restarting"
            pauses = self._settings.restart_backoff_s
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pauses[min(self.failures, len(pauses)) - 1])
        self.state = "stopped"

    async def _one_life(self) -> None:
        self.state, self.loaded, self.failed_models = "starting", {}, {}
        argv = self._settings.command or (sys.executable, "-m", "engine")
        try:
            process = await EngineProcess.spawn(self._settings.process, argv=argv)
        except OSError as exc:
            self.last_exit = f"not started: {exc.strerror or exc}"
            log.error("engine does not start", extra={"reason": self.last_exit})
            return
        self._process = process
        if self._stop.is_set():
            # Told to stop while the process was being made: stop() found nothing to end.
            process.kill()
        watchdog = asyncio.create_task(self._watch(process, time.monotonic()), name="engine-watchdog")
        try:
            async for event in process.events():
                self._note(event)
                self._listener.engine_event(event)
        finally:
            watchdog.cancel()
            process.kill()
            exit_ = await process.wait()
            self._process = None
            self.last_exit = describe_exit(exit_)
            if not self._stop.is_set() and not self._planned:
                log.error("engine is gone", extra={"reason": self.last_exit, "pid": process.pid})
            self._listener.engine_gone(exit_)

    async def _watch(self, process: EngineProcess, began: float) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            now = time.monotonic()
            silent_start = self.state == "starting" and now - began > self._settings.start_timeout_s
            if silent_start or process.stuck(now):
                log.error("engine hangs and is killed", extra={"pid": process.pid})
                process.kill()
                return

    def _note(self, event: Event) -> None:
        match event:
            case Ready():
                self.device = event
                self.state = "loading"
                for alias in self._settings.serve:
                    self.send(Load(alias, self.bits.get(alias)))
            case Loaded():
                self.loaded[event.model] = event
                log.info("model is ready", extra={"model": event.model, "seconds": round(event.seconds, 2)})
                self._check_loaded()
            case LoadFailed():
                self.failed_models[event.model] = event
                log.error("model failed to load", extra={"model": event.model, "code": event.code})
                self._check_loaded()
            case _:
                pass

    def _check_loaded(self) -> None:
        answered = len(self.loaded) + len(self.failed_models)
        if self.state == "loading" and answered == len(self._settings.serve) and self.loaded:
            self.state = "ready"
            self._listener.engine_ready()

    async def stop(self, timeout_s: float) -> None:
        """End the engine; safe twice, safe before start."""
        self._stop.set()
        if self._process is not None:
            await self._process.stop(timeout_s)
