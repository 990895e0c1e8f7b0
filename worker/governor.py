"""How much may be dispatched: levels over the engine's memory, as a pure state machine.

============  =======  ===========================================================
level         from     what it does
============  =======  ===========================================================
open          --       credits and batches as configured
queue         80 %     the cache is cleared, again and again; nothing new is taken, jobs
                       wait in Redis
shrink        90 %     the batch is halved, again and again while it does not help
pause         100 %    intake is paused; nothing is dispatched but, while nothing
                       runs, one smallest chunk at a time
============  =======  ===========================================================

A level is left ten points below where it is entered, after several samples in a row and a minimum
stay, one level at a time: a server that judged each sample by itself flapped every second or two.
A reading of 0 is unknown and holds the level. Levels are recomputed with every sample; nothing
latches.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from enum import IntEnum

from engine.protocol import Sample


class Level(IntEnum):
    OPEN = 0
    QUEUE = 1
    SHRINK = 2
    PAUSE = 3


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares of the budget at which a level begins (R1), and how it is left."""

    queue: float = 0.80
    shrink: float = 0.90
    pause: float = 1.00
    exit_margin: float = 0.10
    """A level ends this far below its threshold."""
    up_samples: int = 2
    """Samples in a row at or above a threshold before the level rises."""
    down_samples: int = 5
    min_stay_s: float = 1.0
    """Seconds that a level lasts at least, unless it rises further."""
    shrink_every_s: float = 1.0
    """Seconds between two halvings of the batch."""
    reclaim_every_s: float = 1.0
    """Seconds between two releases of the cache while a level holds work back: what waits for memory must itself
    see to it that memory comes back."""
    grow_every_s: float = 3.0
    """Seconds of level open between two doublings on the way back."""

    def enter(self, level: Level) -> float:
        return {Level.OPEN: 0.0, Level.QUEUE: self.queue, Level.SHRINK: self.shrink, Level.PAUSE: self.pause}[
            level
        ]


@dataclass(frozen=True, slots=True)
class Transition:
    at: float
    """Monotonic seconds."""
    before: Level
    after: Level
    share: float
    """Of the budget, at that moment."""


@dataclass(frozen=True, slots=True)
class State:
    level: Level = Level.OPEN
    since: float = 0.0
    batch_items: int = 16
    resized_at: float = 0.0
    cleared_at: float = -math.inf
    above: int = 0
    """Samples in a row that call for a higher level."""
    below: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    clear_cache: bool = False
    transition: Transition | None = None


def danger_bytes(sample: Sample) -> int | None:
    """What macOS would count against us: the most of what MLX holds, what the step reached, and what the process is.

    None where the reading is unknown.
    """
    if sample.active <= 0 and sample.footprint <= 0:
        return None
    return max(sample.active + sample.cache, sample.peak, sample.footprint)


def _wanted(share: float, thresholds: Thresholds) -> Level:
    for level in (Level.PAUSE, Level.SHRINK, Level.QUEUE):
        if share >= thresholds.enter(level):
            return level
    return Level.OPEN


def observe(
    state: State, danger: int | None, budget: int, now: float, *, max_items: int, thresholds: Thresholds
) -> Decision:
    """One sample in, the next state and what to do out."""
    if danger is None or budget <= 0:
        return Decision(state)
    decision = _judge(state, danger / budget, now, max_items, thresholds)
    held_back = decision.state.level > Level.OPEN and now - state.cleared_at >= thresholds.reclaim_every_s
    if decision.clear_cache or held_back:
        return replace(decision, state=replace(decision.state, cleared_at=now), clear_cache=True)
    return decision


def _judge(state: State, share: float, now: float, max_items: int, thresholds: Thresholds) -> Decision:
    state = replace(state, share=share)
    wanted = _wanted(share, thresholds)
    if wanted > state.level:
        return _rise(state, wanted, now, thresholds)
    state = replace(state, above=0)
    if state.level > Level.OPEN and share < thresholds.enter(state.level) - thresholds.exit_margin:
        return _fall(state, now, thresholds)
    return _resize(replace(state, below=0), now, max_items, thresholds)


def _rise(state: State, wanted: Level, now: float, thresholds: Thresholds) -> Decision:
    above = state.above + 1
    if above < thresholds.up_samples:
        # The cache may be all that is too much: give it back, and judge the next sample.
        return Decision(replace(state, above=above, below=0), clear_cache=above == 1)
    batch_items = max(1, state.batch_items // 2) if wanted >= Level.SHRINK else state.batch_items
    resized_at = now if batch_items != state.batch_items else state.resized_at
    after = replace(
        state, level=wanted, since=now, above=0, below=0, batch_items=batch_items, resized_at=resized_at
    )
    return Decision(after, clear_cache=True, transition=Transition(now, state.level, wanted, state.share))


def _fall(state: State, now: float, thresholds: Thresholds) -> Decision:
    below = state.below + 1
    if below < thresholds.down_samples or now - state.since < thresholds.min_stay_s:
        return Decision(replace(state, below=below))
    lower = Level(state.level - 1)
    after = replace(state, level=lower, since=now, below=0, resized_at=now)
    return Decision(after, transition=Transition(now, state.level, lower, state.share))


def _resize(state: State, now: float, max_items: int, thresholds: Thresholds) -> Decision:
    waited = now - state.resized_at
    if state.level >= Level.SHRINK and state.share >= thresholds.shrink and state.batch_items > 1:
        if waited >= thresholds.shrink_every_s:
            return Decision(replace(state, batch_items=state.batch_items // 2, resized_at=now))
    elif state.level is Level.OPEN and state.batch_items < max_items and waited >= thresholds.grow_every_s:
        return Decision(replace(state, batch_items=min(max_items, state.batch_items * 2), resized_at=now))
    return Decision(state)


class Governor:
    """Holds the state between samples; everything that decides is :func:`observe`."""

    def __init__(self, thresholds: Thresholds, *, max_items: int, budget_bytes: int = 0) -> None:
        self._thresholds = thresholds
        self._max_items = max_items
        self._state = State(batch_items=max_items)
        self.budget_bytes = budget_bytes
        """0 until it is known; until then every level is open."""
        self.transitions: deque[Transition] = deque(maxlen=64)
        self.last: Sample | None = None

    @property
    def level(self) -> Level:
        return self._state.level

    @property
    def share(self) -> float:
        return self._state.share

    def observe(self, sample: Sample, now: float) -> Decision:
        self.last = sample
        decision = observe(
            self._state,
            danger_bytes(sample),
            self.budget_bytes,
            now,
            max_items=self._max_items,
            thresholds=self._thresholds,
        )
        self._state = decision.state
        if decision.transition is not None:
            self.transitions.append(decision.transition)
        return decision

    def reset(self) -> None:
        """A new engine process starts with nothing held: its first samples decide again."""
        self._state = State(batch_items=self._state.batch_items, level=Level.OPEN)

    def may_take(self) -> bool:
        return self.level is Level.OPEN

    def max_items(self, *, idle: bool) -> int:
        """Rows that the next batch may have; 0 for none now. ``idle``: nothing runs in the engine."""
        if self.level is Level.PAUSE:
            return 1 if idle else 0
        return self._state.batch_items
