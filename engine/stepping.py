"""What a session that is advanced step by step shows to whoever advances it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.protocol import ChunkDone, ChunkFailed, ChunkRequest

Outcome = ChunkDone | ChunkFailed
Kind = Literal["encode", "detect", "decode", "align"]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the next step is going to do."""

    kind: Kind
    chunks: tuple[str, ...]
    jobs: tuple[str, ...]
    window_s: float
    """Longest window among the rows."""


class Session(Protocol):
    """Chunks of one model, some of them in a running batch."""

    @property
    def busy(self) -> bool:
        """Whether :meth:`step` has something to do."""

    def add(self, chunks: Iterable[ChunkRequest]) -> None:
        """Let chunks join. What cannot be done is answered by the next :meth:`take`."""

    def cancel(self, ids: Iterable[str]) -> None:
        """Drop the rows of these chunks and answer for them; others' ids are passed over."""

    def abandon(self) -> list[ChunkRequest]:
        """Drop all rows and return their chunks, unanswered."""

    def plan(self) -> StepPlan | None:
        """What :meth:`step` would do now; None when there is nothing left."""

    def step(self) -> None:
        """Run one step. Outcomes wait for :meth:`take`."""

    def take(self) -> list[Outcome]:
        """Outcomes since the last call."""

    def texts(self) -> list[tuple[ChunkRequest, str]]:
        """Text so far of each chunk that is being decoded."""
