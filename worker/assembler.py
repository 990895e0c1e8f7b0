"""Which chunks go next, together: a pure decision over what waits (design, habit 1).

A batch is alike in model and window: its rows are encoded together, and a row's window must depend on its
chunk alone (invariant I8). It joins what runs already, so the bounds hold for all that is in the engine at
once. Lanes go first to last; age lifts a chunk over the lane before it, so that bulk work is slow but never
starved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.protocol import ChunkRequest, DecodeOptions, Loaded
from queueing.job import LANES, Lane
from worker.governor.cost import Row

LANE_RANK: dict[str, int] = {lane.value: rank for rank, lane in enumerate(LANES)}


PADDED_S = 60.0
LARGEST_LAYERS, LARGEST_WIDTH = 32, 1280
"""Of large and large-v3 (Whisper paper, table 1)."""
LARGEST_KEPT = LARGEST_LAYERS * LARGEST_WIDTH * 2


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds on what the engine holds at once. Items and seconds after D1 and D2 of the requirements (R2)."""

    max_items: int = 16
    max_window_s: float | None = None
    """Padded seconds of all rows; None derives it from memory and model (:func:`default_window_s`)."""
    max_items_per_job: int = 8
    """Chunks of one job in the engine, while others wait: a long file must not fill it."""
    reserve: float = 0.125
    """Share of items and seconds that one job leaves free even where nobody waits, for who comes next."""
    linger_s: float = 0.24
    """How long an idle engine waits for short companions that media is still decoding (one window of D0)."""
    aging_s: float = 20.0
    """Seconds of waiting that lift a chunk by one lane."""


@dataclass(frozen=True, slots=True)
class WaitingChunk:
    request: ChunkRequest
    lane: Lane
    ready_at: float
    """Monotonic seconds at which it was decoded."""
    window_s: float
    """Encoded seconds: its bucket."""
    alone: bool = False
    """Suspected of crashing the engine: shares a batch with nobody."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Dispatch ``batch`` now; or, where it is empty, look again at ``again_at`` or when something changes."""

    batch: tuple[WaitingChunk, ...] = ()
    again_at: float | None = None


def row_of(chunk: WaitingChunk) -> Row:
    """What the governor counts of it."""
    return Row(chunk.window_s, chunk.request.duration_s, _lines(chunk.request.options))


def _lines(options: DecodeOptions) -> int:
    """Lines of the decoder that the first try takes."""
    return options.beam_size if options.temperatures[:1] == (0.0,) else options.best_of


def default_window_s(memory_bytes: int, loaded: Iterable[Loaded]) -> float:
    """Padded seconds that a batch may hold: 60 s for a 16 GB machine and the largest Whisper in half precision.

    D2 allows 30 s of audio; a window is padded to about twice the length of a short clip. What stays of each second
    while its row runs are the keys and values of every decoder layer: a model with less of them may have
    proportionally more. A model that does not tell its layers is taken for one of the largest.
    """
    kept = max((_kept(one) for one in loaded), default=LARGEST_KEPT)
    return max(PADDED_S, PADDED_S * (memory_bytes / (16 * 1024**3)) * (LARGEST_KEPT / kept))


def _kept(loaded: Loaded) -> int:
    """Bytes for each encoder frame, but for the factor that all have in common."""
    layers = loaded.shape.n_text_layer or LARGEST_LAYERS
    return layers * (loaded.n_audio_state or LARGEST_WIDTH) * loaded.shape.item_bytes


def priority(chunk: WaitingChunk, now: float, aging_s: float) -> tuple[float, float]:
    """Smaller goes first: lane less age in lanes, then who came first."""
    return (LANE_RANK[chunk.lane] - max(0.0, now - chunk.ready_at) / aging_s, chunk.ready_at)


@dataclass(frozen=True, slots=True)
class _Room:
    """What may still join, and what one job may have."""

    items: int
    window_s: float
    items_per_job: int
    window_s_per_job: float


def plan(
    waiting: Sequence[WaitingChunk],
    now: float,
    limits: BatchLimits,
    *,
    max_items: int,
    max_window_s: float,
    more_coming: bool,
    running: Sequence[WaitingChunk] = (),
    room: Callable[[WaitingChunk], int] | None = None,
) -> Plan:
    """Choose the next batch to join what is running.

    ``max_items`` and ``max_window_s`` bound what the engine holds, the batch included; they are what the governor
    allows at this moment, at most the limits' own. ``room`` says how many chunks like the first one may join what
    runs, by prediction of memory. ``more_coming`` says that media is decoding something that could still join. In an
    idle engine one chunk always fits into the bounds, however small: work must be able to go on.
    Nothing overtakes the first in order: where it does not fit, room is kept until it does.
    """
    if not waiting:
        return Plan()
    ordered = sorted(waiting, key=lambda chunk: priority(chunk, now, limits.aging_s))
    leader = _leader(ordered, running, limits, max_items, max_window_s)
    if leader is None or not all(_may_meet(leader, other) for other in running):
        return Plan()
    if room is not None:
        joining = room(leader)
        if joining < 1:
            return Plan()
        max_items = min(max_items, len(running) + joining)
    alike = [chunk for chunk in ordered if _may_share(leader, chunk)]
    batch = _gather(alike, running, _room(alike, running, limits, max_items, max_window_s))
    full = len(batch) >= max_items or (len(batch) + 1) * leader.window_s > max_window_s
    linger_until = leader.ready_at + limits.linger_s
    if not running and more_coming and not full and not leader.alone and now < linger_until:
        return Plan(again_at=linger_until)
    return Plan(batch)


def _leader(
    ordered: Sequence[WaitingChunk],
    running: Sequence[WaitingChunk],
    limits: BatchLimits,
    max_items: int,
    max_window_s: float,
) -> WaitingChunk | None:
    """The first whose job has not had its share already: that one alone is overtaken."""
    room = _room(ordered, running, limits, max_items, max_window_s)
    return next((chunk for chunk in ordered if _has_share(chunk, running, room)), None)


def _room(
    candidates: Sequence[WaitingChunk],
    running: Sequence[WaitingChunk],
    limits: BatchLimits,
    max_items: int,
    max_window_s: float,
) -> _Room:
    jobs = {chunk.request.job for chunk in candidates}
    most = max(1, max_items - int(max_items * limits.reserve))
    return _Room(
        items=max_items - len(running),
        window_s=max_window_s - sum(chunk.window_s for chunk in running),
        items_per_job=min(most, limits.max_items_per_job) if len(jobs) > 1 else most,
        window_s_per_job=max_window_s * (1 - limits.reserve),
    )


def _has_share(chunk: WaitingChunk, taken: Iterable[WaitingChunk], room: _Room) -> bool:
    """Whether the chunk's job may have it too, besides those of its chunks that are taken. The first always may."""
    own = [other.window_s for other in taken if other.request.job == chunk.request.job]
    if not own:
        return True
    return len(own) < room.items_per_job and sum(own) + chunk.window_s <= room.window_s_per_job


def _gather(
    alike: Iterable[WaitingChunk], running: Sequence[WaitingChunk], room: _Room
) -> tuple[WaitingChunk, ...]:
    batch: list[WaitingChunk] = []
    for chunk in alike:
        if not running and not batch:
            batch.append(chunk)
            continue
        if len(batch) >= room.items or (len(batch) + 1) * chunk.window_s > room.window_s:
            break
        if _has_share(chunk, (*running, *batch), room):
            batch.append(chunk)
    return tuple(batch)


def _may_share(leader: WaitingChunk, chunk: WaitingChunk) -> bool:
    """Whether two may be in one batch."""
    alike = chunk.request.model == leader.request.model and chunk.window_s == leader.window_s
    return alike and _may_meet(leader, chunk)


def _may_meet(one: WaitingChunk, other: WaitingChunk) -> bool:
    """Whether two may be in the engine at once: a suspect meets nobody but chunks of its own job."""
    return one.request.job == other.request.job or not (one.alone or other.alone)
