"""What a change of precision costs, told by one clip that is decoded before and after it.

The clip is the latest speech that the model was given: what it is used for, and nothing that would have to be shipped.
Its samples stay in memory, and for the moment of decoding in the spool, which is swept if the process dies; no
word of it leaves this module.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine import spool
from engine.protocol import Canary, ChunkDone, ChunkRequest
from engine.whisper.model import Whisper
from engine.whisper.session import WhisperSession
from engine.whisper.tokenizer import Tokenizer

KEEP_S = 60.0
"""For which a clip is kept before a newer one takes its place."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A chunk that was given to a model, with its samples (s16le)."""

    request: ChunkRequest
    samples: bytes
    at: float
    """Monotonic seconds at which it was heard."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model made of a clip. Never leaves the engine."""

    words: tuple[str, ...]
    logprob: float
    seconds: float


def keep(held: Clip | None, request: ChunkRequest, now: float) -> Clip | None:
    """The clip to hold from now on. One that cannot be read is passed over: its job is told, not the canary."""
    if held is not None and now - held.at < KEEP_S:
        return held
    try:
        samples = spool.read_spool(request.path, request.offset, request.samples)
    except spool.BadSpool:
        return held
    options = replace(request.options, temperatures=(0.0,))
    return Clip(replace(request, id="canary", job="canary", options=options), samples, now)


def read(model: Whisper, tokenizer: Tokenizer, clip: Clip) -> Reading | None:
    """Decode the clip alone, greedily. None where the model refuses or fails it, or its folder is gone."""
    began = time.monotonic()
    folder = Path(clip.request.path).parent
    try:
        handle, name = tempfile.mkstemp(prefix=".canary-", suffix=".raw", dir=folder)
    except OSError:
        return None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(clip.samples)
        done = _decode(WhisperSession(model, tokenizer), replace(clip.request, path=name, offset=0))
    finally:
        Path(name).unlink(missing_ok=True)
    if done is None or done.avg_logprob is None:
        return None
    return Reading(tuple(done.text.lower().split()), done.avg_logprob, time.monotonic() - began)


def _decode(session: WhisperSession, request: ChunkRequest) -> ChunkDone | None:
    session.add([request])
    while session.busy:
        if session.plan() is not None:
            session.step()
    return next((outcome for outcome in session.take() if isinstance(outcome, ChunkDone)), None)


def compare(before: Reading | None, after: Reading | None) -> Canary | None:
    """Figures without words; None where one of the two is missing."""
    if before is None or after is None:
        return None
    return Canary(
        words=len(before.words),
        words_changed=distance(before.words, after.words),
        logprob_before=before.logprob,
        logprob_after=after.logprob,
        seconds_before=before.seconds,
        seconds_after=after.seconds,
    )


def distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Words to substitute, leave out or put in (Levenshtein, 1966)."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
