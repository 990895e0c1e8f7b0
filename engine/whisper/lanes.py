"""The rows of a session, in two lanes that take turns: those of urgent chunks, and those of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.whisper.encoder_call import EncoderCall
from engine.whisper.kernels import Cache, compacted
from engine.whisper.rows import Row

MEMORY_S = 10.0
"""Seconds of steps over which lanes share time."""


@dataclass(slots=True, eq=False)
class Lane:
    """Rows that share their steps. A row is waiting, in the encoder, encoded, running and aligning, in this order."""

    urgent: bool
    waiting: list[Row] = field(default_factory=list)
    encoding: EncoderCall | None = None
    """A call of the encoder that is not done."""
    encoded: list[Row] = field(default_factory=list)
    running: list[Row] = field(default_factory=list)
    aligning: list[Row] = field(default_factory=list)
    cache: Cache | None = None
    """Of the lines of the running rows."""
    decoder_steps: int = 0
    """Since the last encoder step."""
    seconds: float = 0.0
    """That its steps took of late: see :data:`MEMORY_S`."""

    @property
    def held(self) -> list[Row]:
        """Rows that have a slot."""
        encoding = self.encoding.rows if self.encoding is not None else ()
        return [*encoding, *self.encoded, *self.running, *self.aligning]

    @property
    def rows(self) -> list[Row]:
        return [*self.waiting, *self.held]

    def drop(self, goes: Callable[[Row], bool]) -> None:
        """Take out rows."""
        self.waiting = [row for row in self.waiting if not goes(row)]
        if self.encoding is not None:
            self.encoding.drop(goes)
            self.encoding = self.encoding if self.encoding.rows else None
        self.encoded = [row for row in self.encoded if not goes(row)]
        self.aligning = [row for row in self.aligning if not goes(row)]
        index: list[int] = []
        at = 0
        for row in self.running:
            stop = at + len(row.lines)
            index += [] if goes(row) else range(at, stop)
            at = stop
        self.keep([row for row in self.running if not goes(row)], index, at)

    def keep(self, going: list[Row], index: Sequence[int], held: int) -> None:
        """Go on with these rows only, so that the rest cost nothing.

        :param index: the cache's row that each of their lines goes on from.
        :param held: rows that the cache has.
        """
        self.running = going
        if not index:
            self.cache = None
            return
        order = list(index)
        if len(going) == len(order):
            # Each has one line: those that left are replaced by the last ones, and the others stay where they are.
            order = compacted(order)
            row_at = dict(zip(index, going, strict=True))
            self.running = [row_at[place] for place in order]
        if self.cache is not None and order != list(range(held)):
            self.cache.keep(order)


def wake(patient: Lane, urgent: Lane, share: float) -> None:
    """The patient lane has had nothing to do, and now has: it has its share from now on, and does not make up for the
    time that urgent rows had meanwhile, for which others would wait at the start of each long file. What it had itself
    while no urgent row was there still counts.

    :param share: of the time of both, what the patient lane is to have at least.
    """
    if share < 1:
        patient.seconds = max(patient.seconds, share / (1 - share) * urgent.seconds)


def spend(seconds: float, lane: Lane, lanes: Iterable[Lane]) -> None:
    """A step of *lane* has taken so long. What lanes had before counts for less."""
    for one in lanes:
        one.seconds *= math.exp(-seconds / MEMORY_S)
    lane.seconds += seconds
