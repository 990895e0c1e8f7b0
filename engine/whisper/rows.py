"""A chunk on its way through the decoder, and the rows that it takes: what a session keeps of each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import numpy as np

from engine import windows
from engine.protocol import ChunkRequest, Segment
from engine.whisper import audio, rules, transcript
from engine.whisper.kernels import Features
from engine.whisper.search import Beam, Line, Sampling, Search


@dataclass(slots=True, eq=False)
class Task:
    """A chunk and what is known of it so far."""

    request: ChunkRequest
    samples: audio.FloatArray
    language: str | None
    prompt: list[int]
    segments: list[Segment] = field(default_factory=list)
    no_speech_prob: float | None = None
    logprob_sum: float = 0.0
    logprob_count: int = 0
    tokens: int = 0
    temperature: float = 0.0
    window_s: float = 0.0
    widened: bool = False
    _mel: audio.FloatArray | None = None
    _coming: Future[audio.FloatArray] | None = None

    def foresee(self, pool: Executor, n_mels: int) -> None:
        """Have the spectrogram made by a thread of *pool*, as soon as one is free."""
        if self._mel is None and self._coming is None:
            self._coming = pool.submit(audio.log_mel, self.samples, n_mels)

    def spectrogram(self, n_mels: int) -> audio.FloatArray:
        """Log-mel frames of the whole chunk, made now where no thread has begun with them."""
        if self._mel is None:
            coming, self._coming = self._coming, None
            if coming is None or coming.cancel():
                self._mel = audio.log_mel(self.samples, n_mels)
            else:
                self._mel = coming.result()
        return self._mel

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()


@dataclass(slots=True, eq=False)
class Row:
    """One decode of a chunk, or of the rest of it."""

    task: Task
    start: int
    """First mel frame (10 ms)."""
    window: int
    """Encoder frames (20 ms)."""
    cap: int
    cap_is_asked: bool
    """The cap is the caller's: reaching it is no sign of a loop."""
    tail: bool = False
    """Follows a decode that took the rest for silence: taken only if it is good at once."""
    attempt: int = 0
    features: Features | None = None
    opening: list[int] = field(default_factory=list)
    search: Search | None = None
    """From the first decoder call to the last."""
    line: Line = field(default_factory=Line)
    """What the search has found; empty until it is over."""
    no_speech_prob: float = 0.0
    reading: transcript.Reading | None = None
    """With the times of the words, where they were asked for."""
    rejected: list[Row] = field(default_factory=list)
    """Earlier decodes of the same audio, which looked wrong."""

    @property
    def window_s(self) -> float:
        return self.window / windows.FRAMES_PER_SECOND

    @property
    def length_s(self) -> float:
        return self.task.request.duration_s - self.start / audio.MEL_FRAMES_PER_SECOND

    @property
    def temperature(self) -> float:
        return self.task.request.options.temperatures[self.attempt]

    @property
    def lines(self) -> Sequence[Line]:
        """Lines that are being decoded, each of which is a row of the caches."""
        return self.search.lines if self.search is not None else ()

    @property
    def width(self) -> int:
        """Slots that the row takes: as many as it may have lines."""
        options = self.task.request.options
        return options.best_of if self.temperature > 0 else options.beam_size


def tried_again(row: Row, *, window: int, attempt: int) -> Row:
    """The same audio once more."""
    rejected = [*row.rejected, row]
    return Row(row.task, row.start, window, row.cap, row.cap_is_asked, row.tail, attempt, rejected=rejected)


def search_of(row: Row, choose: rules.LogitRules, end: int) -> Search:
    """How the row's tokens are found: a beam at temperature 0, samples above it (Whisper's ``decode``)."""
    options = row.task.request.options
    if row.temperature == 0 and options.beam_size > 1:
        return Beam(choose, width=options.beam_size, timestamps=options.timestamps, cap=row.cap, end=end)
    return Sampling(
        choose,
        timestamps=options.timestamps,
        temperature=row.temperature,
        generators=_generators(row),
        cap=row.cap,
        end=end,
    )


def _generators(row: Row) -> list[np.random.Generator | None]:
    """Draws of each line, which depend on the chunk's samples, the job's seed and the attempt alone."""
    if row.temperature == 0:
        return [None]
    options = row.task.request.options
    audio_digest = hashlib.sha256(row.task.samples.tobytes())

    def generator(line: int) -> np.random.Generator:
        digest = audio_digest.copy()
        digest.update(f"{row.start}/{row.attempt}/{options.seed}/{line}".encode())
        return np.random.Generator(np.random.Philox(int.from_bytes(digest.digest()[:8], "big")))

    return [generator(line) for line in range(options.best_of)]
