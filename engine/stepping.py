"""What a session that is advanced step by step shows to whoever advances it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.protocol import ChunkDone, ChunkFailed, ChunkRequest

Outcome = ChunkDone | ChunkFailed
Kind = Literal["encode", "detect", "decode", "align"]

GivesWay = Callable[[], bool]
"""Whether others wait for the device, so that what can be interrupted should be. Asked often, from any thread."""


def never() -> bool:
    """Nobody waits: see :data:`GivesWay`."""
    return False


def always() -> bool:
    """Somebody does: see :data:`GivesWay`."""
    return True


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the next step is going to do."""

    kind: Kind
    chunks: tuple[str, ...]
    jobs: tuple[str, ...]
    window_s: float
    """Longest window among the rows."""
    audio_s: float = 0.0
    """Seconds of audio in the rows."""
    padded_s: float = 0.0
    """Seconds that their windows hold, padding included."""
    slots: int = 0
    """Slots that the session may fill."""
    waiting: int = 0
    """Rows that wait for one."""
    begun: bool = False
    """An earlier step began it and gave way; this one goes on. The rows may have become fewer."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How encoder and decoder share a session's steps. None of it changes what a row gives."""

    slots: int = 32
    """Rows that may hold features and caches at once; others wait."""
    encode_s: float = 64.0
    """Window seconds of an encoder step while no row is decoded: bounds how long a cancellation waits."""
    encode_beside_s: float = 24.0
    """The same while rows are decoded: bounds how long they are held up. One window always fits."""
    decode_steps: int = 4
    """Decoder steps that running rows get between two encoder steps. Rows that are not urgent get none while others
    of their kind can be encoded: all are done sooner if they are decoded together."""
    patient_s: float = 30.0
    """As *encode_s*, for chunks that are not urgent: bounds how long an urgent one that comes waits for them where an
    encoder step gives way to nobody, and what such a step holds while it has given way."""
    patient_share: float = 0.2
    """Of the time of late, what chunks that are not urgent get at least while urgent ones have work too."""


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

    def step(self, gives_way: GivesWay = never) -> bool:
        """Run one step. Outcomes wait for :meth:`take`.

        :returns: whether it is done. Else it gave way, and a later one whose plan is *begun* goes on with it.
        """

    def take(self) -> list[Outcome]:
        """Outcomes since the last call."""

    def texts(self) -> list[tuple[ChunkRequest, str]]:
        """Text so far of each chunk that is being decoded."""
