"""``python -m engine.fake --fd N``: a stand-in for the engine, without MLX, that answers in milliseconds.

It runs the real process, loop and protocol over a session whose text is a function of the chunk's samples
(:func:`fake_text`). How long it takes, what memory it reports and when it dies is told by
:class:`FakeConfig`, as JSON in the environment variable :data:`CONFIG_VARIABLE`, and by the samples of
a chunk (:class:`Poison`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum

from engine import process, spool, windows
from engine.config import EngineConfig
from engine.limits import resolve
from engine.loop import LoadedSession, LoadRefused
from engine.protocol import (
    Canary,
    ChunkDone,
    ChunkFailed,
    ChunkRequest,
    Loaded,
    Ready,
    Requantized,
    Rung,
    Sample,
    Segment,
    Shape,
    Surroundings,
)
from engine.stepping import GivesWay, Kind, Outcome, StepPlan, never
from engine.system import SystemMemory

CONFIG_VARIABLE = "DECIBATCH_FAKE_ENGINE"

DENSE_BITS = 32
SHAPE = Shape(n_audio_layer=1, n_text_layer=1, n_text_state=64, n_vocab=64, item_bytes=4, windows_at_once=0)
"""A model so small that what the stand-in is told to hold is all that matters."""

INTERRUPT_POLL_S = 0.001

MAGIC = (31_337, -31_337, 31_337)
"""First samples of a poisoned chunk; the fourth is a :class:`Poison`."""


class Poison(IntEnum):
    """What a chunk does to the stand-in once its row is run."""

    CRASH = 1
    """Killed by SIGKILL, as the out-of-memory killer does."""
    HANG = 2
    """The step never ends."""
    EXIT = 3
    """Exits with status 1."""
    ERROR = 4
    """The step raises what MLX raises: all rows fail, and the process ends."""
    NUMERIC = 5
    """The row alone fails, with code "numeric"."""


@dataclass(frozen=True, slots=True)
class FakeConfig:
    """How the stand-in behaves."""

    step_s: float = 0.0
    """Time that each step takes."""
    decode_steps: int = 3
    """Decode steps of a chunk."""
    load_s: float = 0.0
    base_bytes: int = 100_000_000
    """Active memory of a loaded model."""
    row_bytes: int = 1_000_000
    """Active memory of each row, while it runs."""
    cache_fraction: float = 0.5
    """Of the rows' memory, what stays in the cache until it is cleared."""
    second_bytes: int = 0
    """Active memory of each row for every second of its window, while it runs."""
    encode_row_bytes: int = 0
    """Active memory of each row beyond that, in the step that encodes it."""
    encode_rows: int = 0
    """Rows that a step encodes; 0 for all that wait."""
    encode_gives_way: bool = False
    """A step that encodes goes on until a command interrupts it, and is done when it goes on."""
    leak_bytes: int = 0
    """Active memory that every chunk leaves behind for good."""
    fails_requantize: bool = False
    delayed_error: bool = False
    """Behave as Metal does out of memory: the step that crosses ``memory_total`` gives zeros, the next one throws."""
    memory_total: int = 16_000_000_000
    crash_after: int | None = None
    """Killed by SIGKILL in the step after this many chunks have been answered."""
    languages: tuple[str, ...] = ("en",)
    can_translate: bool = False

    def environment(self) -> dict[str, str]:
        """The variable that tells the stand-in."""
        return {CONFIG_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> FakeConfig:
        told = json.loads(os.environ.get(CONFIG_VARIABLE, "{}"))
        if "languages" in told:
            told["languages"] = tuple(told["languages"])
        return cls(**told)


def fake_text(samples: bytes) -> str:
    """What the stand-in hears in samples (s16le)."""
    return hashlib.sha256(samples).hexdigest()[:12]


def poisoned(poison: Poison, samples: int) -> bytes:
    """Samples of a chunk that does this to the stand-in."""
    head = struct.pack("<4h", *MAGIC, poison)
    return head + bytes(spool.SAMPLE_BYTES * samples - len(head))


class DeviceMemory:
    """What the stand-in's device holds, bytes. Weights follow the bits, the rest the rows."""

    def __init__(self, config: FakeConfig) -> None:
        self._config = config
        self.bits: dict[str, int] = {}
        self.sessions: list[FakeSession] = []
        self.encoding = 0
        """Rows in the encoder."""
        self.leaked = 0
        self.cached = 0
        self.peak = 0
        self.exhausted = False
        """A step has asked for more than there is, and its numbers are zeros."""

    def weights(self, bits: int) -> int:
        """A tenth of a model is never quantized; a scale and a zero stand beside 64 weights."""
        base = self._config.base_bytes
        return base if bits == DENSE_BITS else int(base * (0.1 + 0.9 * (bits / DENSE_BITS + 1 / 32)))

    @property
    def active(self) -> int:
        config = self._config
        rows = [row for session in self.sessions for row in session.running]
        windows_s = sum(windows.window_s(row.request.duration_s) for row in rows)
        held = config.row_bytes * len(rows) + int(config.second_bytes * windows_s)
        return sum(map(self.weights, self.bits.values())) + held + self.leaked

    def note(self) -> None:
        """Something came or went: keep the high water, and let what is freed stay in the cache."""
        active, base = self.active, sum(map(self.weights, self.bits.values())) + self.leaked
        now = active + self._config.encode_row_bytes * self.encoding
        self.peak = max(self.peak, now)
        self.cached = max(self.cached, int(self._config.cache_fraction * (active - base)))
        if now > self._config.memory_total:
            self.exhausted = True


@dataclass(slots=True, eq=False)
class _Row:
    request: ChunkRequest
    data: bytes = b""
    steps: int = 0


class FakeSession:
    """See :class:`engine.stepping.Session`."""

    def __init__(self, config: FakeConfig, alias: str, device: DeviceMemory) -> None:
        self._config = config
        self._alias = alias
        self._device = device
        self._arriving: list[_Row] = []
        self.running: list[_Row] = []
        self._outcomes: list[Outcome] = []
        self._answered = 0
        self._interrupted = False

    @property
    def busy(self) -> bool:
        return bool(self._arriving or self.running)

    def add(self, chunks: Iterable[ChunkRequest]) -> None:
        for chunk in chunks:
            reason = spool.refusal(
                chunk, languages=self._config.languages, can_translate=self._config.can_translate
            )
            if reason is None:
                self._arriving.append(_Row(chunk))
            else:
                self._outcomes.append(ChunkFailed(chunk.id, chunk.job, *reason, retryable=False))

    def cancel(self, ids: Iterable[str]) -> None:
        names = set(ids)
        for row in [*self._arriving, *self.running]:
            if row.request.id in names:
                self._fail(row, "cancelled", "cancelled", retryable=False)
        self._drop(names)

    def abandon(self) -> list[ChunkRequest]:
        left = [row.request for row in [*self._arriving, *self.running]]
        self._drop({request.id for request in left})
        return left

    def plan(self) -> StepPlan | None:
        if self._arriving:
            return replace(_plan("encode", self._next()), begun=self._interrupted)
        return _plan("decode", self.running) if self.running else None

    def step(self, gives_way: GivesWay = never) -> bool:
        if self._config.step_s:
            time.sleep(self._config.step_s)
        if self._config.crash_after is not None and self._answered >= self._config.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._config.delayed_error and self._device.exhausted:
            raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory")
        if self._arriving:
            if self._config.encode_gives_way and not self._interrupted:
                while not gives_way():
                    time.sleep(INTERRUPT_POLL_S)
                self._interrupted = True
                return False
            self._read()
            self._interrupted = False
            return True
        for row in list(self.running):
            row.steps += 1
            self._act_on_poison(row)
            if row.steps >= self._config.decode_steps and row in self.running:
                self._answer(row)
        return True

    def take(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def texts(self) -> list[tuple[ChunkRequest, str]]:
        return [(row.request, fake_text(row.data)[: 2 * row.steps]) for row in self.running if row.steps]

    def _next(self) -> list[_Row]:
        """Rows that the next step encodes."""
        return self._arriving[: self._config.encode_rows or len(self._arriving)]

    def _read(self) -> None:
        arriving = self._next()
        self._arriving = self._arriving[len(arriving) :]
        for row in arriving:
            request = row.request
            try:
                row.data = spool.read_spool(request.path, request.offset, request.samples)
            except spool.BadSpool as exc:
                self._fail(row, "bad_spool", str(exc), retryable=True)
                continue
            self.running.append(row)
            self._device.encoding += 1
        self._device.note()
        self._device.encoding = 0

    def _act_on_poison(self, row: _Row) -> None:
        if len(row.data) < 8 or struct.unpack_from("<3h", row.data) != MAGIC:
            return
        match Poison(struct.unpack_from("<h", row.data, 6)[0]):
            case Poison.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            case Poison.HANG:
                threading.Event().wait()
            case Poison.EXIT:
                os._exit(1)
            case Poison.ERROR:
                raise RuntimeError("[fake] the device has failed")
            case Poison.NUMERIC:
                self._fail(row, "numeric", "the model gave numbers that are not finite", retryable=True)
                self._drop({row.request.id})

    def _answer(self, row: _Row) -> None:
        request = row.request
        text = fake_text(row.data)
        done = ChunkDone(
            chunk=request.id,
            job=request.job,
            text=text,
            segments=(Segment(0.0, request.duration_s, text),),
            language=request.options.language or "en",
            avg_logprob=-0.1,
            no_speech_prob=0.0,
            compression_ratio=1.0,
            temperature=0.0,
            tokens=row.steps,
            window_s=windows.window_s(request.duration_s),
            widened=False,
            bits=self._device.bits[self._alias],
        )
        self._outcomes.append(done)
        self._answered += 1
        self._device.note()
        self._device.leaked += self._config.leak_bytes
        self._drop({request.id})

    def _fail(self, row: _Row, code: str, message: str, *, retryable: bool) -> None:
        self._outcomes.append(ChunkFailed(row.request.id, row.request.job, code, message, retryable))

    def _drop(self, names: set[str]) -> None:
        self._arriving = [row for row in self._arriving if row.request.id not in names]
        self.running = [row for row in self.running if row.request.id not in names]
        self._interrupted = self._interrupted and bool(self._arriving)


def _plan(kind: Kind, rows: Sequence[_Row]) -> StepPlan:
    return StepPlan(
        kind,
        tuple(row.request.id for row in rows),
        tuple(row.request.job for row in rows),
        max(windows.window_s(row.request.duration_s) for row in rows),
    )


class FakeBackend:
    """See :class:`engine.loop.Backend`."""

    def __init__(self, config: EngineConfig, told: FakeConfig) -> None:
        self._aliases = set(config.aliases)
        self._config = told
        self._device = DeviceMemory(told)
        self.limits = resolve(told.memory_total, budget=config.budget, reserve=config.reserve)

    def load(self, alias: str, bits: int | None) -> LoadedSession:
        if alias not in self._aliases:
            raise LoadRefused("unknown_model", f"no model is called {alias!r}")
        time.sleep(self._config.load_s)
        session = FakeSession(self._config, alias, self._device)
        self._device.sessions.append(session)
        self._device.bits[alias] = bits or DENSE_BITS
        self._device.note()
        config = self._config
        loaded = Loaded(
            model=alias,
            seconds=0.0,
            weights_bytes=self._device.weights(self._device.bits[alias]),
            bits=self._device.bits[alias],
            n_audio_state=384,
            languages=config.languages,
            can_translate=config.can_translate,
            shape=replace(SHAPE, windows_at_once=self._config.encode_rows),
            rungs=tuple(Rung(each, self._device.weights(each), 0, 0) for each in (DENSE_BITS, 8, 4)),
        )
        return LoadedSession(session, loaded)

    def requantize(self, alias: str, bits: int) -> Requantized:
        if self._config.fails_requantize:
            raise RuntimeError("[fake] the weights did not change")
        before, active = self._device.bits[alias], self._device.active
        self._device.bits[alias] = bits
        self._device.note()
        return Requantized(
            model=alias,
            bits_before=before,
            bits=bits,
            seconds=0.0,
            active_before=active,
            active_after=self._device.active,
            active_peak=active,
            weights_bytes=self._device.weights(bits),
            canary=Canary(10, 0, -0.1, -0.1, 0.1, 0.1),
        )

    def heard(self, chunk: ChunkRequest) -> None:
        """The stand-in's canary needs no clip."""

    def sample(self, after_step: bool) -> Sample:
        device = self._device
        device.note()
        held = device.active
        reading = Sample(held, device.cached, device.peak, held + device.cached)
        if after_step:
            reading = replace(reading, peak_footprint=device.peak + device.cached)
            device.peak = held
        return reading

    def surroundings(self) -> Surroundings:
        return Surroundings(SystemMemory(pressure=1), 0)

    def clear(self) -> None:
        self._device.cached = 0


def start(config: EngineConfig) -> tuple[FakeBackend, Ready]:
    """Make the backend that :data:`CONFIG_VARIABLE` describes."""
    backend = FakeBackend(config, FakeConfig.from_environment())
    return backend, Ready(os.getpid(), "cpu", "float32", None, "fake", backend.limits)


def main() -> int:
    """Run the stand-in; see :func:`engine.process.run`."""
    parser = argparse.ArgumentParser(prog="python -m engine.fake", description="A stand-in for the engine.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the worker")
    return process.run(parser.parse_args().fd, start)


if __name__ == "__main__":
    process.leave(main())
