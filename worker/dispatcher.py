"""Between what is decoded and the engine: holds waiting chunks, and sends them as the engine has room.

Several batches are under way at once. What leaves the engine makes room for what waits, chunk by chunk, so that a
long file neither keeps short ones waiting nor waits for its own slowest chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from engine.protocol import BatchDone, Cancel, Dispatch
from worker.assembler import BatchLimits, WaitingChunk, default_window_s, plan
from worker.governor import Governor
from worker.keeper import EngineKeeper

log = logging.getLogger("decibatch.dispatch")


class Dispatcher:
    """Owns the waiting chunks and those in the engine. All methods belong to the event loop's thread."""

    def __init__(
        self,
        keeper: EngineKeeper,
        governor: Governor,
        limits: BatchLimits,
        *,
        more_coming: Callable[[], bool],
        on_dispatch: Callable[[tuple[WaitingChunk, ...], float], None],
    ) -> None:
        self._keeper = keeper
        self._governor = governor
        self._limits = limits
        self._more_coming = more_coming
        self._on_dispatch = on_dispatch
        self._waiting: dict[str, WaitingChunk] = {}
        self._running: dict[str, WaitingChunk] = {}
        self._batches: set[int] = set()
        """Sent, and not yet told to be over."""
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self.batch_sizes: deque[int] = deque(maxlen=1024)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether the engine has nothing of ours."""
        return not self._batches

    @property
    def running_jobs(self) -> set[str]:
        """Jobs with a chunk in the engine."""
        return {chunk.request.job for chunk in self._running.values()}

    def offer(self, chunks: Iterable[WaitingChunk]) -> None:
        for chunk in chunks:
            self._waiting[chunk.request.id] = chunk
        self.poke()

    def withdraw(self, chunk_ids: Iterable[str]) -> None:
        """Forget chunks, wherever they are; those in the engine are cancelled before its next step."""
        ids = tuple(chunk_ids)
        for chunk_id in ids:
            self._waiting.pop(chunk_id, None)
        in_engine = tuple(chunk_id for chunk_id in ids if chunk_id in self._running)
        if in_engine:
            self._keeper.send(Cancel(in_engine))

    def poke(self) -> None:
        """Something changed: decide again."""
        self._changed.set()

    def answered(self, chunk_id: str) -> None:
        if self._running.pop(chunk_id, None) is not None and self._waiting:
            self.poke()

    def batch_done(self, event: BatchDone) -> None:
        self._batches.discard(event.batch)
        self.poke()

    def engine_gone(self) -> tuple[str, ...]:
        """The engine has died. Returns the jobs that were in it."""
        suspects = tuple(self.running_jobs)
        self._running.clear()
        self._batches.clear()
        return suspects

    async def run(self) -> None:
        """Send batches until cancelled."""
        again_at: float | None = None
        while True:
            timeout = None if again_at is None else max(0.0, again_at - time.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout)
            self._changed.clear()
            again_at = self._decide(time.monotonic())

    def _decide(self, now: float) -> float | None:
        """Send what fits. Returns when to look again, where that is not only when something changes."""
        while self._keeper.ready and self._waiting:
            max_items = min(self._limits.max_items, self._governor.max_items(idle=not self._running))
            if max_items < 1:
                return None
            decision = plan(
                tuple(self._waiting.values()),
                now,
                self._limits,
                max_items=max_items,
                max_window_s=self.max_window_s(),
                more_coming=self._more_coming(),
                running=tuple(self._running.values()),
            )
            if not decision.batch:
                return decision.again_at
            self._dispatch(decision.batch, now)
        return None

    def max_window_s(self) -> float:
        """Padded seconds that the engine may hold now."""
        if self._limits.max_window_s is not None:
            return self._limits.max_window_s
        widths = [loaded.n_audio_state for loaded in self._keeper.loaded.values()]
        device = self._keeper.device
        memory = self._governor.budget_bytes or (device.memory_total if device else 0)
        return default_window_s(memory, max(widths, default=0))

    def _dispatch(self, batch: tuple[WaitingChunk, ...], now: float) -> None:
        number = next(self._numbers)
        for chunk in batch:
            del self._waiting[chunk.request.id]
            self._running[chunk.request.id] = chunk
        self._batches.add(number)
        self.batch_sizes.append(len(batch))
        self._on_dispatch(batch, now)
        self._keeper.send(Dispatch(number, tuple(chunk.request for chunk in batch)))
