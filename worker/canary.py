"""A worker that has just come up measures itself on a clip, and remembers the best it ever did.

A Mac that throttles, a wheel that fell back to another device, a BLAS that is not found: all of them work, at a
tenth of the speed, and nothing else says so. The clip is made here, so that it is there wherever the worker is; what
it sounds like does not matter, only that it is the same each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.protocol import SAMPLE_RATE, ChunkDone, ChunkFailed, ChunkRequest, DecodeOptions, Event, Loaded
from engine.windows import window_s
from queueing.job import Lane
from worker.assembler import WaitingChunk
from worker.media.spool import PCM

log = logging.getLogger("decibatch.canary")

CLIP_VERSION = 1
"""Part of what a best is kept under: speeds over different clips cannot be compared."""
CLIP_S = 4.0
MAX_TOKENS = 24
RUNS = 3
"""The first one touches memory that later ones find; the quickest counts."""
SLOW_BELOW = 0.5
"""A share of its own best below which a worker says that it is slow."""
TIMEOUT_S = 60.0
TRIES = 2
"""Lives of the engine that are measured at most: one that dies over the clip must not go on so for ever."""
JOB = "canary"
BESTS = "canary.json"


def clip() -> bytes:
    """:data:`CLIP_S` seconds of 16 kHz s16le: a buzz of 120 Hz through three formants, in syllables, above faint noise.

    The same bytes on every machine of one byte order: integers come from a fixed recipe, the noise from a seed.
    """
    t = np.arange(int(CLIP_S * SAMPLE_RATE)) / SAMPLE_RATE
    voice = np.zeros_like(t)
    for number in range(1, 30):
        frequency = 120.0 * number
        loudness = sum(np.exp(-(((frequency - formant) / 180.0) ** 2)) for formant in (600.0, 1400.0, 2600.0))
        voice += (0.05 + loudness) * np.sin(2 * np.pi * frequency * t)
    syllables = np.clip(np.sin(2 * np.pi * 3.5 * t), 0.0, None)
    noise = np.random.default_rng(CLIP_VERSION).normal(0.0, 0.002, t.shape)
    samples = voice / np.abs(voice).max() * syllables * 0.5 + noise
    return bytes(np.clip(samples * 32767, -32768, 32767).astype("<i2").tobytes())


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one model. Speeds are seconds of audio for each second of the engine."""

    speed: float
    best: float
    """Of all times on this host, this one included."""

    @property
    def share(self) -> float:
        return self.speed / self.best if self.best > 0 else 1.0

    @property
    def slow(self) -> bool:
        return self.share < SLOW_BELOW


def best_key(host: str, model: Loaded, engine: str) -> str:
    """What must be alike for two speeds to be compared. The device is left out: that it changed is what we look for.

    :param engine: "mlx", or a stand-in's command line.
    """
    return f"{host} {engine} {model.model} {model.n_audio_state} {model.bits}bit clip{CLIP_VERSION}"


class Bests:
    """Speeds by key, in one small JSON file that several workers of a host may share."""

    def __init__(self, path: Path | None) -> None:
        """:param path: None keeps nothing."""
        self._path = path

    def raise_to(self, key: str, speed: float) -> float:
        """The best so far, with this one. A file that cannot be read or written costs the memory, not the worker."""
        if self._path is None:
            return speed
        known = self._read(self._path)
        best = max(speed, known.get(key, 0.0))
        if best > known.get(key, 0.0):
            try:
                self._write(self._path, {**known, key: best})
            except OSError as exc:
                log.warning("best speed not kept", extra={"error": exc.strerror or "not written"})
        return best

    @staticmethod
    def _read(path: Path) -> dict[str, float]:
        try:
            told: Any = json.loads(path.read_text("utf-8"))
            return {str(key): float(speed) for key, speed in told.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):
            log.warning("bests cannot be read and begin anew", extra={"file": path.name})
            return {}

    @staticmethod
    def _write(path: Path, bests: dict[str, float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=".canary-")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump(bests, file, indent=1, sort_keys=True)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise


Offer = Callable[[list[WaitingChunk]], None]


class Canary:
    """Runs the clip through the same engine, in the same manner, as a job's chunk: alone, before there is other work.

    :param offer: hands chunks to the dispatcher.
    :param spool: folder for the clip while it is run.
    """

    def __init__(self, offer: Offer, spool: Path, bests: Bests, *, host: str, engine: str) -> None:
        self._offer = offer
        self._spool = spool
        self._bests = bests
        self._host = host
        self._engine = engine
        self._began: dict[str, float] = {}
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self._task: asyncio.Task[None] | None = None
        self._tries = 0
        self.results: dict[str, Measured] = {}
        self.problem = ""
        """Why there is no result; "" where there is one, or it is still to come."""

    def begin(self, models: tuple[Loaded, ...]) -> None:
        """The engine is ready. Does nothing where it has been measured, or is being."""
        left = [model for model in models if model.model not in self.results]
        busy = self._task is not None and not self._task.done()
        if left and not busy and self._tries < TRIES:
            self._tries += 1
            self._task = asyncio.create_task(self._measure(left), name="canary")

    async def _measure(self, models: list[Loaded]) -> None:
        path = self._spool / f"{JOB}-{self._tries}{PCM}"
        try:
            data = clip()
            path.write_bytes(data)
            path.chmod(0o600)
            for model in models:
                async with asyncio.timeout(TIMEOUT_S):
                    seconds = min([await self._run(model, path, len(data) // 2, n) for n in range(RUNS)])
                self._keep(model, CLIP_S / max(seconds, 1e-6))
            self.problem = ""
        except (TimeoutError, OSError, RuntimeError) as exc:
            self.problem = f"not measured: {exc or type(exc).__name__}"
            log.warning("self-benchmark failed", extra={"reason": self.problem})
        finally:
            path.unlink(missing_ok=True)

    def _keep(self, model: Loaded, speed: float) -> None:
        key = best_key(self._host, model, self._engine)
        measured = Measured(speed, self._bests.raise_to(key, speed))
        self.results[model.model] = measured
        log.log(
            logging.WARNING if measured.slow else logging.INFO,
            "far below its own best" if measured.slow else "self-benchmark",
            extra={"model": model.model, "speed": round(speed, 2), "share": round(measured.share, 3)},
        )

    async def _run(self, model: Loaded, path: Path, samples: int, number: int) -> float:
        """Seconds between dispatch and text."""
        name = f"{JOB}/{self._tries}/{model.model}/{number}"
        options = DecodeOptions(
            language="en" if "en" in model.languages else model.languages[0],
            temperatures=(0.0,),
            timestamps=False,
            max_tokens=MAX_TOKENS,
        )
        request = ChunkRequest(name, JOB, model.model, str(path), 0, samples, options)
        future = self._waiting[name] = asyncio.get_running_loop().create_future()
        chunk = WaitingChunk(
            request, Lane.INTERACTIVE, time.monotonic(), window_s(request.duration_s), alone=True
        )
        try:
            self._offer([chunk])
            seconds: float = await future
            return seconds
        finally:
            del self._waiting[name]

    # --- what the worker sees pass by -------------------------------------------------------------

    def dispatched(self, batch: tuple[WaitingChunk, ...], now: float) -> None:
        for chunk in batch:
            if chunk.request.id in self._waiting:
                self._began[chunk.request.id] = now

    def engine_event(self, event: Event, now: float) -> None:
        if not self._waiting:
            return
        match event:
            case ChunkDone(chunk=name) if name in self._waiting:
                self._settle(name, now - self._began.pop(name, now))
            case ChunkFailed(chunk=name) if name in self._waiting:
                self._settle(name, RuntimeError(event.code))
            case _:
                pass

    def engine_gone(self) -> None:
        for name in list(self._waiting):
            self._settle(name, RuntimeError("the engine died"))

    def _settle(self, name: str, answer: float | RuntimeError) -> None:
        future = self._waiting[name]
        if future.done():
            return
        if isinstance(answer, RuntimeError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def close(self) -> None:
        """Safe at any time, and twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def document(self) -> dict[str, Any]:
        """By model: ``speed``, ``best``, ``share``, ``slow``; and ``problem`` where there is one."""
        told: dict[str, Any] = {
            model: {
                "speed": round(one.speed, 3),
                "best": round(one.best, 3),
                "share": round(one.share, 4),
                "slow": one.slow,
            }
            for model, one in self.results.items()
        }
        return {"models": told, "problem": self.problem}
