"""What happened in a worker, as those who watch it are told: small frozen values, no text, no paths.

The organs keep their own records; :mod:`worker.watch` turns these into facts at one place, so that metrics and
statistics depend on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from worker.governor import Level


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A delivery has left our hands."""

    job: str
    lane: str
    """ "" where the payload could not be read."""
    outcome: str
    """ "done", "failed", "dead", "retry", "handback" or "dropped"."""
    code: str
    """Of the error; "" where there is none."""
    queued_s: float
    """From submission until it was taken; of a retry, from the first submission on."""
    media_s: float | None
    waiting_s: float | None
    engine_s: float | None
    first_text_s: float | None
    """From submission to the first text of it; None where there was none."""
    total_s: float
    audio_s: float
    at_ms: int
    """Unix milliseconds."""


@dataclass(frozen=True, slots=True)
class BatchSent:
    """Chunks went to the engine together."""

    rows: int


@dataclass(frozen=True, slots=True)
class BatchEnded:
    seconds: float


@dataclass(frozen=True, slots=True)
class StepRan:
    """One record of the engine: one step, or several alike."""

    kind: str
    seconds: float
    """Of all steps together."""
    steps: int
    rows: int
    slots: int
    """Rows that the batch began with: what the step could have held."""
    real_s: float
    """Seconds of audio in the rows; 0 for what is not an encoder step."""
    padded_s: float
    """Seconds encoded for them."""
    again: bool
    """Whether this life of the engine has run a step of this shape before, so that its buffers can be reused."""


@dataclass(frozen=True, slots=True)
class LevelChanged:
    before: Level
    after: Level


@dataclass(frozen=True, slots=True)
class EngineEnded:
    reason: str


Fact = JobEnded | BatchSent | BatchEnded | StepRan | LevelChanged | EngineEnded


class Witness(Protocol):
    """Is told every fact, on the event loop's thread: it must be quick, and must not raise."""

    def note(self, fact: Fact) -> None: ...
