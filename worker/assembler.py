"""Which chunks go next, together: a pure decision over what waits (design, habit 1).

A batch is alike in model and window, because all its rows are encoded at one length and a row's
window must depend on its chunk alone (invariant I8). Lanes go first to last; age lifts a chunk over
the lane before it, so that bulk work is slow but never starved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.protocol import ChunkRequest
from queueing.job import LANES, Lane

LANE_RANK: dict[str, int] = {lane.value: rank for rank, lane in enumerate(LANES)}


PADDED_S = 60.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds on a batch. Items and seconds after D1 and D2 of the requirements (R2)."""

    max_items: int = 16
    max_window_s: float | None = None
    """Padded seconds of all rows; None derives it from memory and model (:func:`default_window_s`)."""
    max_items_per_job: int = 8
    """Chunks of one job in a batch, while others wait: a long file must not fill it."""
    linger_s: float = 0.24
    """How long an idle engine waits for companions that media is still decoding (one window of D0)."""
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


def default_window_s(memory_bytes: int, n_audio_state: int) -> float:
    """Padded seconds that a batch may hold: 60 s for a 16 GB machine and the widest Whisper (1280).

    D2 allows 30 s of audio; a window is padded to about twice the length of a short clip.
    Activations grow with the width of the encoder, so a narrower model may have proportionally more.
    """
    width = n_audio_state or 1280
    return max(PADDED_S, PADDED_S * (memory_bytes / (16 * 1024**3)) * (1280 / width))


def priority(chunk: WaitingChunk, now: float, aging_s: float) -> tuple[float, float]:
    """Smaller goes first: lane less age in lanes, then who came first."""
    return (LANE_RANK[chunk.lane] - max(0.0, now - chunk.ready_at) / aging_s, chunk.ready_at)


def plan(
    waiting: Sequence[WaitingChunk],
    now: float,
    limits: BatchLimits,
    *,
    max_items: int,
    max_window_s: float,
    more_coming: bool,
    room: Callable[[WaitingChunk], int] | None = None,
) -> Plan:
    """Choose the next batch.

    ``max_items`` and ``max_window_s`` are what the governor allows at this moment, at most the
    limits' own; ``room`` says how many chunks like the first one fit into memory, by prediction.
    ``more_coming`` says that media is decoding something that could still join. One chunk always
    fits into ``max_window_s``, however small: work must be able to go on.
    """
    if not waiting:
        return Plan()
    ordered = sorted(waiting, key=lambda chunk: priority(chunk, now, limits.aging_s))
    leader = ordered[0]
    if room is not None:
        max_items = min(max_items, room(leader))
        if max_items < 1:
            return Plan()
    batch = _gather(leader, ordered, limits, max_items, max_window_s)
    full = len(batch) >= max_items or (len(batch) + 1) * leader.window_s > max_window_s
    linger_until = leader.ready_at + limits.linger_s
    if more_coming and not full and not leader.alone and now < linger_until:
        return Plan(again_at=linger_until)
    return Plan(batch)


def _gather(
    leader: WaitingChunk,
    ordered: Iterable[WaitingChunk],
    limits: BatchLimits,
    max_items: int,
    max_window_s: float,
) -> tuple[WaitingChunk, ...]:
    alike = [chunk for chunk in ordered if _may_share(leader, chunk)]
    others_wait = any(chunk.request.job != leader.request.job for chunk in alike)
    per_job: dict[str, int] = {}
    batch: list[WaitingChunk] = []
    for chunk in alike:
        if len(batch) >= max(1, max_items):
            break
        if batch and (len(batch) + 1) * leader.window_s > max_window_s:
            break
        job = chunk.request.job
        if others_wait and per_job.get(job, 0) >= limits.max_items_per_job:
            continue
        per_job[job] = per_job.get(job, 0) + 1
        batch.append(chunk)
    return tuple(batch)


def _may_share(leader: WaitingChunk, chunk: WaitingChunk) -> bool:
    if chunk.request.model != leader.request.model or chunk.window_s != leader.window_s:
        return False
    return chunk.request.job == leader.request.job or not (leader.alone or chunk.alone)
