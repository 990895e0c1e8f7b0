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
from dataclasses import asdict, dataclass
from enum import IntEnum

from engine import process, spool, windows
from engine.config import EngineConfig
from engine.loop import LoadedSession, LoadRefused
from engine.protocol import ChunkDone, ChunkFailed, ChunkRequest, Loaded, Ready, Sample, Segment
from engine.stepping import Kind, Outcome, StepPlan

CONFIG_VARIABLE = "DECIBATCH_FAKE_ENGINE"

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


@dataclass(slots=True, eq=False)
class _Row:
    request: ChunkRequest
    data: bytes = b""
    steps: int = 0


class FakeSession:
    """See :class:`engine.stepping.Session`."""

    def __init__(self, config: FakeConfig) -> None:
        self._config = config
        self._arriving: list[_Row] = []
        self.running: list[_Row] = []
        self._outcomes: list[Outcome] = []
        self._answered = 0

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
            return _plan("encode", self._arriving)
        return _plan("decode", self.running) if self.running else None

    def step(self) -> None:
        if self._config.step_s:
            time.sleep(self._config.step_s)
        if self._config.crash_after is not None and self._answered >= self._config.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._arriving:
            self._read()
            return
        for row in list(self.running):
            row.steps += 1
            self._act_on_poison(row)
            if row.steps >= self._config.decode_steps and row in self.running:
                self._answer(row)

    def take(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def texts(self) -> list[tuple[ChunkRequest, str]]:
        return [(row.request, fake_text(row.data)[: 2 * row.steps]) for row in self.running if row.steps]

    def _read(self) -> None:
        arriving, self._arriving = self._arriving, []
        for row in arriving:
            request = row.request
            try:
                row.data = spool.read_spool(request.path, request.offset, request.samples)
            except spool.BadSpool as exc:
                self._fail(row, "bad_spool", str(exc), retryable=True)
                continue
            self.running.append(row)

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
            bits=32,
        )
        self._outcomes.append(done)
        self._answered += 1
        self._drop({request.id})

    def _fail(self, row: _Row, code: str, message: str, *, retryable: bool) -> None:
        self._outcomes.append(ChunkFailed(row.request.id, row.request.job, code, message, retryable))

    def _drop(self, names: set[str]) -> None:
        self._arriving = [row for row in self._arriving if row.request.id not in names]
        self.running = [row for row in self.running if row.request.id not in names]


def _plan(kind: Kind, rows: Sequence[_Row]) -> StepPlan:
    return StepPlan(
        kind,
        tuple(row.request.id for row in rows),
        tuple(row.request.job for row in rows),
        max(windows.window_s(row.request.duration_s) for row in rows),
    )


class FakeBackend:
    """See :class:`engine.loop.Backend`."""

    def __init__(self, aliases: Iterable[str], config: FakeConfig) -> None:
        self._aliases = set(aliases)
        self._config = config
        self._sessions: list[FakeSession] = []
        self._peak_rows = 0
        self._cached = 0

    def load(self, alias: str) -> LoadedSession:
        if alias not in self._aliases:
            raise LoadRefused("unknown_model", f"no model is called {alias!r}")
        time.sleep(self._config.load_s)
        session = FakeSession(self._config)
        self._sessions.append(session)
        config = self._config
        loaded = Loaded(alias, 0.0, config.base_bytes, 32, 384, config.languages, config.can_translate)
        return LoadedSession(session, loaded)

    def sample(self, after_step: bool) -> Sample:
        rows = sum(len(session.running) for session in self._sessions)
        self._peak_rows = max(self._peak_rows, rows)
        base = self._config.base_bytes * len(self._sessions)
        held = self._config.row_bytes * rows
        self._cached = max(self._cached, int(self._config.cache_fraction * held))
        peak = base + self._config.row_bytes * self._peak_rows
        if after_step:
            self._peak_rows = rows
        return Sample(base + held, self._cached, peak, base + held + self._cached)

    def clear(self) -> None:
        self._cached = 0


def start(config: EngineConfig) -> tuple[FakeBackend, Ready]:
    """Make the backend that :data:`CONFIG_VARIABLE` describes."""
    told = FakeConfig.from_environment()
    ready = Ready(os.getpid(), "cpu", "float32", None, "fake", told.memory_total)
    return FakeBackend(config.aliases, told), ready


def main() -> int:
    """Run the stand-in; see :func:`engine.process.run`."""
    parser = argparse.ArgumentParser(prog="python -m engine.fake", description="A stand-in for the engine.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the worker")
    return process.run(parser.parse_args().fd, start)


if __name__ == "__main__":
    process.leave(main())
