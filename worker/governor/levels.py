"""Levels over the engine's memory, as a pure state machine: one reading in, the next state and what to do out.

============  =======  ==============================================================================
level         from     what it does
============  =======  ==============================================================================
open          --       credits and batches as configured
queue         80 %     the cache is cleared, again and again; nothing new is taken, jobs wait in
                       Redis; what is here goes on
shrink        90 %     the batch is halved, again and again; where that does not help within a time,
                       a model moves to fewer bits
pause         100 %    what has not started goes back to Redis; nothing is dispatched but, while
                       nothing runs, one smallest chunk at a time
============  =======  ==============================================================================

A level is entered by several samples in a row, the first of which has the cache released, so that the next is a fresh
one; the emergency line is entered at once. It is left ten points below where it is entered, after several samples in
a row and a minimum stay, one level at a time: a server that judged each sample by itself flapped every second or two.
A reading of 0 is unknown and holds the level. Levels are recomputed with every sample; nothing latches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

from engine.protocol import Sample
from engine.system import CRITICAL, WARN


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
    emergency: float = 1.10
    """From here the level is *pause* with the first sample."""
    exit_margin: float = 0.10
    """A level ends this far below its threshold."""
    up_samples: int = 2
    """Samples in a row at or above a threshold before the level rises."""
    down_samples: int = 5
    min_stay_s: float = 0.5
    """Seconds that a level lasts at least, unless it rises further."""
    shrink_every_s: float = 1.0
    """Seconds between two halvings of the batch."""
    reclaim_every_s: float = 1.0
    """Seconds between two releases of the cache while a level holds work back: what waits for memory must itself
    see to it that memory comes back."""
    grow_every_s: float = 2.0
    """Seconds of level open between two doublings on the way back."""
    requantize_after_s: float = 5.0
    """Seconds of pressure that smaller batches did not end, after which a model moves to fewer bits."""
    restore_after_s: float = 30.0
    """Seconds of calm after which it moves back, if there is room. Doubled by every move down that follows soon."""

    def enter(self, level: Level) -> float:
        return {Level.OPEN: 0.0, Level.QUEUE: self.queue, Level.SHRINK: self.shrink, Level.PAUSE: self.pause}[
            level
        ]

    def leave(self, level: Level) -> float:
        return self.enter(level) - self.exit_margin


@dataclass(frozen=True, slots=True)
class Transition:
    at: float
    """Monotonic seconds."""
    before: Level
    after: Level
    share: float
    """Of the budget, at that moment."""
    reason: str
    """In words: the reading that decided, and the line."""


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
    pressed_since: float | None = None
    """Since when every sample was at or above the line of *shrink*."""


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    clear_cache: bool = False
    transition: Transition | None = None

    @property
    def hand_back(self) -> bool:
        """What has not started is to go back to Redis, for whoever has memory."""
        return self.transition is not None and self.transition.after is Level.PAUSE


def danger_bytes(sample: Sample) -> int | None:
    """What the system would count against us: the more of what MLX holds and of what the process is.

    None where the reading is unknown.
    """
    if sample.active <= 0 and sample.footprint <= 0:
        return None
    return max(sample.active + sample.cache, sample.footprint)


def binding(sample: Sample) -> str:
    """Which of the terms of :func:`danger_bytes` it is, with its bytes."""
    if sample.footprint >= sample.active + sample.cache:
        return f"footprint {mib(sample.footprint)}"
    return f"active {mib(sample.active)} + cache {mib(sample.cache)}"


def mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"


PRESSURE_SHARES = {WARN: 0.90, CRITICAL: 0.75}


def budget_under_pressure(budget: int, pressure: int) -> int:
    """The budget, lowered while the whole machine is short of memory; nothing is ever killed for that."""
    return int(budget * PRESSURE_SHARES.get(pressure, 1.0))


def _wanted(share: float, thresholds: Thresholds) -> Level:
    for level in (Level.PAUSE, Level.SHRINK, Level.QUEUE):
        if share >= thresholds.enter(level):
            return level
    return Level.OPEN


def observe(
    state: State,
    danger: int | None,
    budget: int,
    now: float,
    *,
    max_items: int,
    thresholds: Thresholds,
    reading: str = "",
) -> Decision:
    """One sample in, the next state and what to do out.

    :param danger: :func:`danger_bytes`.
    :param reading: :func:`binding`, for the reason of a transition.
    """
    if danger is None or budget <= 0:
        return Decision(state)
    share = danger / budget
    pressed = share >= thresholds.shrink
    since = (state.pressed_since if state.pressed_since is not None else now) if pressed else None
    state = replace(state, share=share, pressed_since=since)
    decision = _judge(state, now, max_items, thresholds, reading)
    held_back = decision.state.level > Level.OPEN and now - state.cleared_at >= thresholds.reclaim_every_s
    if decision.clear_cache or held_back:
        return replace(decision, state=replace(decision.state, cleared_at=now), clear_cache=True)
    return decision


def _judge(state: State, now: float, max_items: int, thresholds: Thresholds, reading: str) -> Decision:
    wanted = _wanted(state.share, thresholds)
    if wanted > state.level:
        return _rise(state, wanted, now, thresholds, reading)
    state = replace(state, above=0)
    if state.level > Level.OPEN and state.share < thresholds.leave(state.level):
        return _fall(state, now, thresholds, reading)
    return _resize(replace(state, below=0), now, max_items, thresholds)


def _rise(state: State, wanted: Level, now: float, thresholds: Thresholds, reading: str) -> Decision:
    above = state.above + 1
    urgent = state.share >= thresholds.emergency
    if above < thresholds.up_samples and not urgent:
        # The cache may be all that is too much: give it back, and judge the next sample.
        return Decision(replace(state, above=above, below=0), clear_cache=above == 1)
    batch_items = max(1, state.batch_items // 2) if wanted >= Level.SHRINK else state.batch_items
    resized_at = now if batch_items != state.batch_items else state.resized_at
    after = replace(
        state, level=wanted, since=now, above=0, below=0, batch_items=batch_items, resized_at=resized_at
    )
    line = "emergency line" if urgent else f"{thresholds.enter(wanted):.0%} line"
    reason = f"{reading} is {state.share:.0%} of the budget, at or above the {line}"
    return Decision(after, clear_cache=True, transition=_transition(state, wanted, now, reason))


def _fall(state: State, now: float, thresholds: Thresholds, reading: str) -> Decision:
    below = state.below + 1
    if below < thresholds.down_samples or now - state.since < thresholds.min_stay_s:
        return Decision(replace(state, below=below))
    lower = Level(state.level - 1)
    after = replace(state, level=lower, since=now, below=0, resized_at=now)
    reason = f"{reading} is {state.share:.0%} of the budget, under {thresholds.leave(state.level):.0%}"
    return Decision(after, transition=_transition(state, lower, now, reason))


def _transition(state: State, after: Level, now: float, reason: str) -> Transition:
    return Transition(now, state.level, after, state.share, reason)


def _resize(state: State, now: float, max_items: int, thresholds: Thresholds) -> Decision:
    waited = now - state.resized_at
    if state.level >= Level.SHRINK and state.share >= thresholds.shrink and state.batch_items > 1:
        if waited >= thresholds.shrink_every_s:
            return Decision(replace(state, batch_items=state.batch_items // 2, resized_at=now))
    elif state.level is Level.OPEN and state.batch_items < max_items and waited >= thresholds.grow_every_s:
        return Decision(replace(state, batch_items=min(max_items, state.batch_items * 2), resized_at=now))
    return Decision(state)


def pressed_for(state: State, now: float) -> float:
    """Seconds for which every sample was at or above the line of *shrink*."""
    return 0.0 if state.pressed_since is None else now - state.pressed_since
