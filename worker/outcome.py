"""How an attempt can end: named, so that nothing is acknowledged on anything else (design, habit 2)."""

from __future__ import annotations

from dataclasses import dataclass

from queueing.job import ErrorInfo


@dataclass(frozen=True, slots=True)
class Done:
    body: str
    """The result, as JSON."""
    audio_s: float
    """Seconds of sound that it covers."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Final: the same input would fail again."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Dead:
    """Given up on: poison, or every attempt used. Lies on the dead list."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Retry:
    """May succeed another time. ``crashed``: it took the engine down while it ran alone."""

    error: ErrorInfo
    alone: bool = False
    crashed: bool = False
    counted: bool = True
    """False where the failure says nothing about this job, e.g. a crash of a shared batch."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """Not our doing and not its own: back to the head of the backlog, uncounted."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing to write: the job has ended or belongs to somebody else."""

    reason: str


Outcome = Done | Failed | Dead | Retry | HandBack | Dropped
